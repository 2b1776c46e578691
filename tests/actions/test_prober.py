"""The prober on a real database and fake servers: mirrored requests, who leads, what is written, and its door."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import numpy as np
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from ledger.models import Lease
from registry.core.lifecycle import ReleaseState
from registry.models import Release
from rollouts.core.counter_deltas import difference as counted_since
from rollouts.models import Mismatch, ProbeTally, Rollout
from rollouts.prober import shadow_comparison
from rollouts.prober.endpoint import MirrorEndpoint
from rollouts.prober.prober import LEASE, Prober
from rollouts.prober.requests import MAX_BODY_BYTES
from rollouts.prober.tallies import MOST_EXAMPLES
from rollouts.queries.prober_tallies import wrong_readings
from serving.models import Server
from serving.ports import InferenceError
from serving.traffic.control_plane.virtual_hosts import MIRROR_SECRET_HEADER
from tests.support.worlds.factories import make_model
from tests.support.worlds.prober_setup import MODEL, PATH, World, body_of, double, make_world, until, world  # noqa: F401

pytestmark = pytest.mark.django_db


# -- mirrored requests ---------------------------------------------------------------------------------------------------


def test_stable_is_asked_twice_and_the_candidate_between(world: World) -> None:
    assert world.ask(body_of(1, 2)) == [True]
    assert world.asked == ["r1", "r2", "r1"]
    assert world.tally() == (1, 0, 1, 0)
    assert not Mismatch.objects.exists()


def test_another_server_of_stable_gives_the_second_answer(world: World) -> None:
    assert world.stable is not None
    world.serve(world.stable, port=9500).compute = lambda arrays: {"y": 3 * arrays["x"]}
    world.prober.turn()
    world.ask(body_of(1), body_of(1))
    candidate_attempts, candidate_bad, stable_attempts, stable_bad = world.tally()
    assert (candidate_attempts, stable_attempts, stable_bad) == (2, 2, 2)  # the two servers of stable do not agree
    assert candidate_bad == 1  # the candidate agrees with one of them


def test_wrong_answers_are_counted_and_shown_without_the_input(world: World) -> None:
    world.candidate_model.compute = lambda arrays: {"y": 2 * arrays["x"] + (arrays["x"] == 7)}
    world.ask(*(body_of(value) for value in range(10)))
    assert world.tally() == (10, 1, 10, 0)
    shown = Mismatch.objects.get()
    assert (shown.rollout_id, shown.source) == (world.rollout.pk, "shadow")
    assert shown.summary == "r2: y[0, 0] is 15, expected 14 (1 of 4 values differ)"
    assert (shown.facts["kind"], shown.facts["output"]) == ("value", "y")
    assert shown.facts["input_digest"].startswith("sha256:")
    assert set(shown.facts) == {"kind", "output", "input_digest"}


def test_what_differs_by_itself_is_held_against_stable_as_well(world: World) -> None:
    draw = np.random.default_rng(1)
    noisy = lambda arrays: {"y": draw.normal(size=arrays["x"].shape).astype(np.float32)}  # noqa: E731
    world.stable_model.compute = world.candidate_model.compute = noisy
    world.ask(*[body_of(1)] * 5)
    assert world.tally() == (5, 5, 5, 5)


def test_a_failing_candidate_is_wrong(world: World) -> None:
    world.candidate_model.breaks = InferenceError("server_error", "ValueError: no kernel\x00 for this")
    world.ask(body_of(1))
    assert world.tally() == (1, 1, 1, 0)
    said = "r2: it fails where stable answers: ValueError: no kernel for this [server_error]"
    assert Mismatch.objects.get().summary == said


def test_a_hung_candidate_is_wrong_and_starves_nobody(world: World) -> None:
    answers = threading.Event()

    def hung(arrays: dict[str, Any]) -> dict[str, Any]:
        answers.wait(60)
        raise InferenceError("timeout", "No answer within 2 s.")

    world.candidate_model.compute = hung
    take, body = world.prober.shadowing.take, body_of(1)
    taken = [take(world.route.pk, PATH, {}, body) for _ in range(3 * shadow_comparison.MOST_OPEN)]
    assert taken == [True] * shadow_comparison.MOST_OPEN + [False] * 2 * shadow_comparison.MOST_OPEN
    assert world.seen["busy"] == 2 * shadow_comparison.MOST_OPEN
    answers.set()
    until(lambda: not world.open())
    assert world.tally() == (shadow_comparison.MOST_OPEN, shadow_comparison.MOST_OPEN, shadow_comparison.MOST_OPEN, 0)
    assert shadow_comparison.MOST_OPEN < shadow_comparison.WORKERS


def test_when_stable_itself_fails_it_counts_for_nobody(world: World) -> None:
    world.stable_model.breaks = InferenceError("rejected", "x is not what it should be")
    world.ask(body_of(1))
    assert world.asked == ["r1"]
    assert world.tally() == (0, 0, 0, 0)
    world.stable_model.breaks = None
    answers = iter([2, None])

    def once(arrays: dict[str, Any]) -> dict[str, Any]:
        if next(answers) is None:
            raise ValueError("out of memory")
        return double(arrays)

    world.stable_model.compute = once
    world.candidate_model.compute = lambda arrays: {"y": arrays["x"]}
    world.ask(body_of(1))
    assert world.tally() == (0, 0, 0, 0)
    assert world.seen["stable_failed"] == 2


def test_no_more_is_asked_than_the_rate_allows(make_world: Callable[..., World]) -> None:
    world = make_world(per_s=0.001)
    world.prober.turn()
    assert world.ask(*[body_of(1)] * 5) == [True] + [False] * 4
    assert world.seen == {"taken": 1, "shadow_compared": 1, "over_rate": 4}
    assert len(world.asked) == 3


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        (f"/v2/models/{MODEL}/config", b"", "no_inference"),
        (PATH, b"{", "malformed"),
        (PATH, b'{"parameters": {"sequence_id": 3}, "inputs": []}', "sequence"),
    ],
)
def test_what_is_no_plain_inference_is_left_out(world: World, path: str, body: bytes, reason: str) -> None:
    world.prober.shadowing.take(world.route.pk, path, {}, body)
    until(lambda: reason in world.seen)
    assert world.asked == []
    assert world.tally() == (0, 0, 0, 0)


def test_who_has_no_server_or_no_rollout_is_not_asked(world: World) -> None:
    assert world.ask(body_of(1), route=world.route.pk + 1) == [False]
    Server.objects.filter(replica__release=world.candidate).update(is_serving=False)
    world.prober.turn()
    assert world.ask(body_of(1)) == [False]
    assert world.seen == {"not_watched": 1, "no_server": 1}
    assert world.asked == []


@pytest.mark.parametrize("state", ["preparing", "rolling_back", "promoted", "rolled_back"])
def test_a_rollout_that_is_not_live_is_let_alone(world: World, state: str) -> None:
    Rollout.objects.update(state=state)
    world.prober.turn()
    assert world.ask(body_of(1)) == [False]
    at = ProbeTally.objects.filter(rollout=world.rollout).values_list("at", flat=True).first()
    world.prober.turn()
    assert ProbeTally.objects.filter(rollout=world.rollout).values_list("at", flat=True).first() == at


@pytest.mark.parametrize("state", ["shadowing", "shifting", "paused", "baking"])
def test_every_live_state_is_watched(world: World, state: str) -> None:
    Rollout.objects.update(state=state)
    world.prober.turn()
    assert world.ask(body_of(1)) == [True]


def test_a_first_release_has_nothing_to_compare_with(make_world: Callable[..., World]) -> None:
    world = make_world(with_stable=False)
    world.prober.turn()
    assert world.ask(body_of(1)) == [False]
    assert world.tally() == (0, 0, 0, 0)


def test_only_so_many_examples_are_kept_also_by_the_next_prober(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.prober.turn()
    world.candidate_model.compute = lambda arrays: {"y": arrays["x"]}
    world.ask(*[body_of(1)] * (MOST_EXAMPLES - 5))
    world.prober.turn()
    world.prober._leave()
    world.prober = Prober(lambda endpoint: world.fakes[endpoint], per_s=1000, lease_s=300)
    world.prober.shadowing.start()
    world.prober.turn()
    world.ask(*[body_of(1)] * 10)
    assert world.tally()[1] == 10
    assert Mismatch.objects.count() == MOST_EXAMPLES
    world.prober.stop()


# -- who leads, and what is written --------------------------------------------------------------------------------------


def test_a_second_prober_lets_everything_go_until_the_first_is_gone(world: World) -> None:
    second = Prober(lambda endpoint: world.fakes[endpoint], per_s=1000, lease_s=300)
    assert not second.turn()
    assert not second.shadowing.take(world.route.pk, PATH, {}, body_of(1))
    world.ask(body_of(1))
    assert world.tally() == (1, 0, 1, 0)
    world.prober._leave()
    assert second.turn()
    assert second.shadowing.take(world.route.pk, PATH, {}, body_of(1))


def test_a_new_term_is_a_new_epoch_so_nothing_is_counted_twice(world: World) -> None:
    world.ask(*[body_of(1)] * 5)
    world.tally()
    first = wrong_readings([world.rollout.pk])[world.rollout.pk]
    world.prober._leave()
    world.prober.turn()
    world.ask(*[body_of(1)] * 2)
    assert world.tally() == (2, 0, 2, 0)
    second = wrong_readings([world.rollout.pk])[world.rollout.pk]
    assert second.epoch != first.epoch
    assert counted_since(first, second).candidate.attempts == 2
    assert counted_since(second, second).candidate.attempts == 0


def test_who_slept_through_its_lease_overwrites_nothing(world: World) -> None:
    world.ask(body_of(1))
    Lease.objects.filter(name=LEASE).update(expires_at=timezone.now() - timedelta(seconds=1))
    other = Prober(lambda endpoint: world.fakes[endpoint], lease_s=300)
    other.turn()
    other.turn()
    epoch = ProbeTally.objects.get().epoch
    assert epoch == other.book.epoch
    assert not world.prober.turn()
    assert ProbeTally.objects.get().epoch == epoch
    assert not world.ask(body_of(1))[0]


def test_what_was_begun_in_another_term_does_not_count(world: World) -> None:
    may_answer = threading.Event()
    world.candidate_model.compute = lambda arrays: double(arrays) if may_answer.wait(60) else {}
    world.prober.shadowing.take(world.route.pk, PATH, {}, body_of(1))
    world.prober._leave()
    world.prober.turn()
    may_answer.set()
    until(lambda: len(world.asked) == 3 and not world.open())
    assert world.tally() == (0, 0, 0, 0)


def test_a_tally_is_as_old_as_its_prober_is_silent(world: World) -> None:
    before = timezone.now().timestamp()
    world.tally()
    reading = wrong_readings([world.rollout.pk])[world.rollout.pk]
    assert before - 0.1 < reading.at < timezone.now().timestamp() + 0.1
    world.tally()  # nothing new to count, and written all the same
    assert wrong_readings([world.rollout.pk])[world.rollout.pk].at > reading.at


def test_readings_are_one_query_and_leave_out_who_was_never_probed(world: World) -> None:
    world.ask(body_of(1))
    world.tally()
    with CaptureQueriesContext(
        connection,
    ) as asked:
        found = wrong_readings([world.rollout.pk, world.rollout.pk + 1])
    assert len(asked) == 1
    assert list(found) == [world.rollout.pk]
    reading = found[world.rollout.pk]
    assert (reading.candidate.attempts, reading.candidate.bad) == (1, {"wrong": 0})
    assert (reading.stable.attempts, reading.stable.bad) == (1, {"wrong": 0})


def test_a_turn_costs_the_same_few_statements_whatever_it_watches(world: World) -> None:
    def statements() -> int:
        with CaptureQueriesContext(connection) as asked:
            world.prober.turn()
        return len([one for one in asked if not one["sql"].startswith(("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE"))])

    world.prober.turn()
    alone = statements()
    for number in range(20):
        Rollout.objects.create(
            model=make_model(f"other-{number}"), environment=world.environment, candidate=world.candidate, policy={},
            policy_digest="", state="shifting",
        )  # fmt: skip
    world.prober.turn()
    world.prober.turn()
    assert statements() == alone <= 6
    assert ProbeTally.objects.count() == 21


def test_one_odd_rollout_does_not_blind_the_others(world: World) -> None:
    odd = Release.objects.create(
        id=uuid.uuid4(), model=world.model, number=3, state=ReleaseState.SEALED, manifest="{}", digest="sha256:x",
        sealed_at=timezone.now(),
    )  # fmt: skip
    Rollout.objects.create(
        model=make_model("odd"),
        environment=world.environment,
        candidate=odd,
        policy={},
        policy_digest="",
        state="shifting",
    )
    world.prober.turn()
    assert world.ask(body_of(1)) == [True]
    assert world.tally() == (1, 0, 1, 0)


# -- endpoint ------------------------------------------------------------------------------------------------------------


def through_the_door(
    world: World, method: str, path: str, headers: dict[str, str], body: bytes, secret: str | None = "s3cret"
) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=MirrorEndpoint(world.prober, "s3cret"))  # type: ignore[arg-type]
        known = {} if secret is None else {MIRROR_SECRET_HEADER: secret}
        async with httpx.AsyncClient(transport=transport, base_url="http://prober") as client:
            return await client.request(method, path, headers={**headers, **known}, content=body)

    return asyncio.run(send())


def test_the_door_takes_a_request_and_answers_with_nothing(world: World) -> None:
    answer = through_the_door(world, "POST", PATH, {"x-sluicegate-mirror": str(world.route.pk)}, body_of(3))
    assert (answer.status_code, answer.content) == (204, b"")
    until(lambda: world.seen.get("shadow_compared"))
    assert world.tally() == (1, 0, 1, 0)


@pytest.mark.parametrize("secret", [None, "", "s3cre", "s3crets", "S3CRET"])
def test_a_copy_that_no_gateway_sent_is_refused_and_counts_nothing(world: World, secret: str | None) -> None:
    forged = {"x-sluicegate-mirror": str(world.route.pk)}
    assert through_the_door(world, "POST", PATH, forged, body_of(3), secret).status_code == 403
    assert through_the_door(world, "GET", "/status", {}, b"", secret).status_code == 403
    assert world.seen == {} and world.open() == 0


@pytest.mark.parametrize(
    ("headers", "size", "reason"),
    [({}, 2, "no_route"), ({"x-sluicegate-mirror": "x"}, 2, "no_route"), ({"x-sluicegate-mirror": "1"}, MAX_BODY_BYTES + 1, "too_large")],
)  # fmt: skip
def test_the_door_lets_go_what_it_cannot_use(world: World, headers: dict[str, str], size: int, reason: str) -> None:
    assert through_the_door(world, "POST", PATH, headers, b"x" * size).status_code == 204
    assert world.seen == {reason: 1}


def test_the_door_tells_what_became_of_the_requests(world: World) -> None:
    world.ask(body_of(1))
    told = through_the_door(world, "GET", "/status", {}, b"").json()
    assert told["leads"] is True
    assert told["seen"] == {"taken": 1, "shadow_compared": 1}
