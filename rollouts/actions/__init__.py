"""What may happen to a rollout. People's verbs are in `start` and `steer`, the engine's in `conduct`."""

from rollouts.actions.start import start_rollout
from rollouts.actions.steer import abort, advance, approve, cancel, pause, reject, resume, roll_back, roll_back_model

__all__ = [
    "abort",
    "advance",
    "approve",
    "cancel",
    "pause",
    "reject",
    "resume",
    "roll_back",
    "roll_back_model",
    "start_rollout",
]
