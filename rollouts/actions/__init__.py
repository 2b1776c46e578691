"""Verbs of people on a rollout; `conduct` has the engine's."""

from rollouts.actions.approvals import approve, reject
from rollouts.actions.instant_rollback import roll_back_model, shut_rollout
from rollouts.actions.operator_commands import abort, advance, cancel, pause, promote_now, resume, roll_back
from rollouts.actions.start import find_or_start, start_rollout
from rollouts.actions.supersede import supersede
from rollouts.actions.undo_window import close_undo_window

__all__ = [
    "abort",
    "advance",
    "approve",
    "cancel",
    "close_undo_window",
    "find_or_start",
    "pause",
    "promote_now",
    "reject",
    "resume",
    "roll_back",
    "roll_back_model",
    "shut_rollout",
    "start_rollout",
    "supersede",
]
