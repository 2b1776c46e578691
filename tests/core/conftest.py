"""Properties are asked of many examples, and no example is timed: on a busy machine the process may rest in the middle of one."""

import os

from hypothesis import settings

#: `make fast` asks of fewer examples, where a test does not say of how many.
EXAMPLES = int(os.environ.get("SLUICEGATE_TEST_EXAMPLES", "100"))  # 100 is Hypothesis' own default

settings.register_profile("untimed", deadline=None, max_examples=EXAMPLES)
settings.load_profile("untimed")
