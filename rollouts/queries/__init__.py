"""Named reads of rollouts."""

from __future__ import annotations

from rollouts.queries.approvals import approvals_of
from rollouts.queries.rollout_view import decision_row, summary, view_of
from rollouts.queries.rollouts import (
    active_rollouts,
    active_rows,
    active_ticks,
    ended_to_settle,
    get_rollout,
    rollout_end,
)

__all__ = [
    "active_rollouts",
    "active_rows",
    "active_ticks",
    "approvals_of",
    "decision_row",
    "ended_to_settle",
    "get_rollout",
    "rollout_end",
    "summary",
    "view_of",
]
