"""Sizes of users' requests that a rollout's gateways counted, kept for the gates: the newest of each environment, once."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from accounts.core.access import Actor, Role
from ledger.core.errors import Refused
from registry.models import ServedModel
from rollouts.actions.engine_effects import finish_rollback
from rollouts.actions.seen_sizes import keep_sizes_of
from rollouts.models import Rollout
from serving.traffic.core.buckets import SIZE_EDGES
from tests.support.worlds.factories import make_actor, make_environment, make_release
from tests.support.worlds.gate_setup import POLICY, Stage, developer, model, stage, validated  # noqa: F401
from tests.support.worlds.rollout_setup import put, with_stable
from validators.actions import keep_seen_sizes
from validators.core.seen_sizes import LEAST_SEEN, SeenSizes
from validators.models import SeenSizesRecord
from validators.queries.seen_sizes import seen_sizes

pytestmark = pytest.mark.django_db
ENGINE = Actor.system("engine")


def arm(routed: int, *over: int) -> dict[str, Any]:
    bad = {f"bytes_{edge}": count for edge, count in zip(SIZE_EDGES, over, strict=True)}
    return {"attempts": routed, "routed": routed, "bad": {"errors": 1, **bad}}


def ended(candidate: int, stable: int) -> Rollout:
    """One whose traffic went back, with so many requests over 512 bytes of 100 and of 1000."""
    total = {"candidate": arm(100, candidate, 0, 0, 0, 0), "stable": arm(1000, stable, 10, 0, 0, 0)}
    rollout = put(with_stable()[0], "rolling_back", engine_state={"total": total})
    finish_rollback(rollout, confirmed_at=timezone.now(), fence=7)
    return rollout


def test_the_end_of_a_rollout_keeps_what_both_arms_were_sent_and_twice_is_once() -> None:
    rollout = ended(candidate=40, stable=300)
    (kept,) = SeenSizesRecord.objects.values()
    assert (kept["counts"], kept["requests"]) == ([760, 330, 10, 0, 0, 0], 1100)
    assert (kept["since_at"], kept["until_at"]) == (rollout.started_at or rollout.created_at, rollout.ended_at)
    keep_sizes_of(rollout, actor=ENGINE)
    assert list(SeenSizesRecord.objects.values()) == [kept]
    found = seen_sizes(rollout.model)
    assert found is not None and (found.counts, found.environment) == ((760, 330, 10, 0, 0, 0), "production")


def test_a_rollout_that_no_engine_looked_at_keeps_nothing() -> None:
    rollout = put(with_stable()[0], "rolling_back")
    finish_rollback(rollout, confirmed_at=None, fence=7)
    assert not SeenSizesRecord.objects.exists() and seen_sizes(rollout.model) is None


def test_enough_that_are_newer_replace_those_of_their_environment() -> None:
    rollout, _ = with_stable()
    model, here, there = rollout.model, rollout.environment, make_environment("elsewhere")
    now = timezone.now()

    def keep(environment: Any, requests: int, until: datetime = now, actor: Actor = ENGINE) -> bool:
        seen = SeenSizes((requests, 0, 0, 0, 0, 0), until - timedelta(hours=1), until)
        return keep_seen_sizes(actor=actor, model_id=model.pk, environment_id=environment.pk, seen=seen)

    def told() -> tuple[str, int] | None:
        found = seen_sizes(model)
        return found and (found.environment, found.requests)

    assert not keep(here, LEAST_SEEN - 1) and told() is None
    assert keep(here, 5000) and keep(there, 4000) and told() == (here.slug, 5000)
    assert not keep(here, 9000, now - timedelta(days=1)) and told() == (here.slug, 5000)
    assert keep(here, LEAST_SEEN, now + timedelta(days=1)) and told() == ("elsewhere", 4000)
    assert SeenSizesRecord.objects.count() == 2
    with pytest.raises(Refused):
        keep(here, 5000, now + timedelta(days=2), actor=make_actor(Role.MODEL_TEAM))


def test_every_gate_that_sends_a_load_sends_the_sizes_that_are_kept(
    stage: Stage, developer: Actor, model: ServedModel
) -> None:
    where, now = make_environment("production"), timezone.now()
    seen = SeenSizes((600, 400, 0, 0, 0, 0), now, now)
    assert keep_seen_sizes(actor=ENGINE, model_id=model.pk, environment_id=where.pk, seen=seen)
    model.gate_policy = {"gates": ["load"], "load": POLICY["load"]}
    model.save()
    found = validated(developer, make_release(model)).results.get(gate="load")
    assert found.evidence["sizes_seen"]["environment"] == "production" and found.evidence["sizes_from"] == "seen"
    assert found.evidence["sizes_sent"] == [64, 0, 0, 0, 0, 0] and found.evidence["unseen_frac"] == 0.4
    assert found.reason.endswith(" For 40% of users' requests there is no example of their size.")
