"""Properties are asked of many examples, and no example is timed: on a busy machine the process may rest in the middle of one."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
