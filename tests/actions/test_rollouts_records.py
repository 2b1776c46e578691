"""What was decided, observed and approved stays as it was written."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from rollouts import actions
from rollouts.core.counter_deltas import Counts, Reading
from rollouts.engine.gateway_counters import snapshot_of
from rollouts.models import Approval, DecisionRecord, Observation, Rollout
from serving.models import Gateway
from serving.ports import ArmCounters, GatewayCounters
from serving.traffic.adapters.counter_readers import CounterReaders
from tests.support.worlds.rollout_setup import awaiting, with_stable

pytestmark = pytest.mark.django_db


def test_the_database_refuses_to_change_what_was_decided_observed_or_approved() -> None:
    rollout, _, manager = awaiting()
    actions.approve(actor=manager, rollout=rollout, expected_version=rollout.version)
    observed(rollout, 1, 1)
    for table in (DecisionRecord, Approval, Observation):
        row = table.objects.filter(rollout=rollout).first()
        assert row is not None
        for sql in (
            f"UPDATE {table._meta.db_table} SET rollout_id = rollout_id WHERE id = %s",
            f"DELETE FROM {table._meta.db_table} WHERE id = %s",
        ):
            with (
                pytest.raises(IntegrityError, match="append-only|only replaced"),
                transaction.atomic(),
                connection.cursor() as cursor,
            ):
                cursor.execute(sql, [row.pk])


def observed(rollout: Rollout, first: int, last: int) -> Observation:
    at = rollout.created_at
    return Observation.objects.create(
        rollout=rollout, first_tick=first, tick=last, from_at=at, at=at, state="shifting", weight_bp=0, candidate={},
        stable={}, evidence={},
    )  # fmt: skip


def test_an_observation_goes_only_when_a_coarser_one_covers_it() -> None:
    rollout, *_ = awaiting()
    first, second = observed(rollout, 1, 5), observed(rollout, 6, 9)
    whole = observed(rollout, 1, 9)
    first.delete()
    second.delete()
    with pytest.raises(IntegrityError, match="only replaced"), transaction.atomic():
        whole.delete()
    assert list(Observation.objects.filter(rollout=rollout)) == [whole]


class _OneTalksNonsense:
    def read(
        self, *, gateway: str, admin_url: str, timeout_s: float, models: Collection[str] | None = None
    ) -> dict[str, GatewayCounters]:
        if gateway == "odd":
            raise ValueError("no number")
        return {model: GatewayCounters(gateway, "one", timezone.now(), {}) for model in models or ()}


def test_a_gateway_that_talks_nonsense_does_not_blind_the_engine_to_the_others() -> None:
    rollout, _ = with_stable()
    for name in ("odd", "sound"):
        Gateway.objects.create(environment=rollout.environment, name=name, admin_url="", http_url="", grpc_address="")
    gateways = list(rollout.environment.gateways.order_by("name"))
    readers = CounterReaders(_OneTalksNonsense(), wait_s=60.0)
    readers.ask(gateways, {rollout.environment_id: [rollout.model.slug]})
    while not readers.are_settled(["odd", "sound"]):
        readers.wait()
    pages = readers.take(["odd", "sound"])
    assert "odd cannot be made out" in str(pages["odd"])
    assert set(pages["sound"]) == {rollout.model.slug}
    seen = snapshot_of(rollout, gateways, pages, (), stale_s=15, now=timezone.now().timestamp())
    assert seen.problem == "provider_down" and set(seen.readings) == {"sound"}


@pytest.mark.parametrize(
    ("last", "epoch", "counted", "followed"),
    [
        (2, "one", {2: 9}, 2),
        (0, "one", {0: 9}, 0),  # it is several behind
        (0, "one", {1: 9}, 1),  # and took one of them since
        (
            0,
            "one",
            {0: 2, 1: 9, 3: 4},
            1,
        ),  # late answers under an older label; and it has just taken the newest, unknown yet
        (1, "one", {}, 1),
        (3, "one", {}, 3),
        (0, "two", {0: 9}, 2),  # it began anew: nobody knows
        (None, "one", {0: 9}, 2),
    ],
)
def test_what_a_gateway_follows_that_did_not_take_the_weight_shows_in_what_it_counted(
    last: int | None, epoch: str, counted: dict[int, int], followed: int
) -> None:
    rollout, _ = with_stable()
    one = Gateway.objects.create(environment=rollout.environment, name="g", admin_url="", http_url="", grpc_address="")
    digest = str(rollout.candidate.digest)
    stood = {slot: 100 + slot for slot in range(4)}
    by_slot = {slot: {digest: ArmCounters(routed=count + counted.get(slot, 0))} for slot, count in stood.items()}
    pages = {"g": {rollout.model.slug: GatewayCounters("g", "one", timezone.now(), {}, by_slot=by_slot)}}
    arms = {slot: (Counts(0, count), Counts()) for slot, count in stood.items()}
    before = {}
    if last is not None:
        now = arms.pop(last)
        before = {"g": Reading(epoch, 0.0, *now, slot=last, others=arms)}
    seen = snapshot_of(rollout, [one], pages, (), stale_s=15, now=0.0, slot=3, taken_by=[], before=before)
    reading = seen.readings["g"]
    assert (reading.slot, reading.candidate.routed) == (followed, stood[followed] + counted.get(followed, 0))


@pytest.mark.parametrize(
    "table", ["rollouts_rollout", "rollouts_decisionrecord", "rollouts_approval", "rollouts_observation"]
)
def test_no_record_of_a_rollout_can_be_emptied(table: str) -> None:
    with pytest.raises(IntegrityError, match="never deleted"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {table} CASCADE")
