"""Sizes of users' requests, as counted by a rollout's gateways, for the gates that send such requests."""

from __future__ import annotations

from accounts.core.access import Actor
from rollouts.core.counter_deltas import Arms
from rollouts.core.request_mix import classes_of
from rollouts.models import Rollout
from validators.actions import keep_seen_sizes
from validators.core.seen_sizes import SeenSizes


def keep_sizes_of(rollout: Rollout, *, actor: Actor) -> None:
    """At the end of a rollout: the requests of both arms since it began, as its engine summed them up."""
    total = rollout.engine_state.get("total")
    if total is None or rollout.ended_at is None:
        return
    arms = Arms.from_json(total)
    whole = arms.candidate + arms.stable
    seen = SeenSizes(classes_of(whole.bad, whole.routed), rollout.started_at or rollout.created_at, rollout.ended_at)
    keep_seen_sizes(actor=actor, model_id=rollout.model_id, environment_id=rollout.environment_id, seen=seen)
