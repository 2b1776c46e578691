"""The bound on what is in flight on a release, in a real Envoy: who is refused, how that reads, and what it leaves alone."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from serving.traffic.core.request_limits import Limits
from serving.traffic.core.routes import Arm
from tests.support.rigs.gateway_rig import MODEL, UNBOUNDED, Answer, Backend, Rig, Traffic, grpc_infer, rig, wait_until

pytestmark = pytest.mark.real("envoy")
STABLE, CANDIDATE = Rig.STABLE, Rig.CANDIDATE


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path) as built:
        yield built


def stable(parts: Rig, max_in_flight: int) -> Arm:
    return Arm("r1", STABLE, (parts.stable.endpoint,), max_in_flight)


def candidate(parts: Rig, max_in_flight: int) -> Arm:
    return Arm("r2", CANDIDATE, (parts.candidate.endpoint,), max_in_flight)


def at_once(parts: Rig, users: int, *, held: int, by: Backend | None = None) -> list[Answer]:
    """The answers of so many users over HTTP. `by` (stable) answers nobody until all have theirs but `held`, who are in flight."""
    return together([parts.envoy.http] * users, held, by or parts.stable)


def at_once_grpc(parts: Rig, users: int, *, held: int, by: Backend | None = None) -> Counter[grpc.StatusCode]:
    with parts.envoy.channel() as channel:
        return Counter(one[0] for one in together([partial(grpc_infer, channel)] * users, held, by or parts.stable))


def together(asks: Sequence[Callable[[], Any]], held: int, by: Backend) -> list[Any]:
    with ThreadPoolExecutor(len(asks)) as pool:
        with by.held():
            asked = [pool.submit(ask) for ask in asks]
            wait_until(lambda: sum(one.done() for one in asked) >= len(asks) - held, f"all but {held} are answered")
        return [one.result() for one in asked]


@pytest.mark.parametrize("workers", [1, 2])
def test_no_more_than_the_bound_is_in_flight_and_the_rest_is_refused_at_once(parts: Rig, workers: int) -> None:
    parts.envoy.stop()
    parts.envoy.start(workers=workers)
    parts.apply(None, stable=stable(parts, 6))
    answers = at_once(parts, 12, held=3)  # those who are refused are, before anybody is answered
    assert Counter(answer.status for answer in answers) == {200: 3, 429: 9}
    assert parts.stable.hits == 3
    assert at_once_grpc(parts, 12, held=3) == {grpc.StatusCode.OK: 3, grpc.StatusCode.RESOURCE_EXHAUSTED: 9}


def test_a_refusal_says_why_and_when_to_come_again(parts: Rig) -> None:
    parts.apply(None, stable=stable(parts, 2))
    refused = next(answer for answer in at_once(parts, 3, held=1) if answer.status == 429)
    assert (refused.headers["retry-after"], refused.headers["x-envoy-overloaded"]) == ("1", "true")
    assert b"too many requests are in flight on this release" in refused.body
    assert refused.headers["content-type"] == "application/json"


def test_both_protocols_together_stay_within_the_bound(parts: Rig) -> None:
    parts.apply(None, stable=stable(parts, 4))
    with parts.envoy.channel() as channel:
        asks = [parts.envoy.http, partial(grpc_infer, channel)] * 8
        answers = together(asks, 4, parts.stable)
    assert sum(answer.status == 200 for answer in answers[::2]) == 2
    assert sum(answer[0] is grpc.StatusCode.OK for answer in answers[1::2]) == 2
    assert parts.stable.hits == 4


@pytest.mark.parametrize("ask", [at_once, at_once_grpc])
def test_what_is_refused_does_not_make_the_rest_look_faster(parts: Rig, ask: Callable[..., Any]) -> None:
    """Half is shed in no time, the other half is slow: all that was timed is slow."""
    parts.apply(
        10_000, candidate=candidate(parts, 1), limits=Limits(10.0, 4.0)
    )  # 16 times its bound, halved by protocol
    parts.candidate.delay_s = 1.0
    ask(parts, 16, held=8, by=parts.candidate)
    one = parts.counters().by_release[CANDIDATE]
    assert (one.routed, one.shed, one.decided, one.timed) == (16, 8, 8, 8)
    assert one.latency_us[750_000] == 0


def test_once_there_is_room_everybody_is_answered(parts: Rig) -> None:
    parts.apply(None, stable=stable(parts, 4))
    assert {answer.status for answer in at_once(parts, 12, held=2)} == {200, 429}
    assert [parts.envoy.http().status for _ in range(20)] == [200] * 20


def test_a_candidate_that_hangs_costs_nobody_an_answer(parts: Rig) -> None:
    """Its bound holds what would hang at the rate at which it was well, and stable has room for what it hands back."""
    users = 16  # and stable takes as many over HTTP: on a machine that stalls, all of them are handed back at once
    parts.apply(10_000, stable=stable(parts, 2 * users), candidate=candidate(parts, 16), limits=Limits(5.0, 0.5))
    parts.candidate.mode = "hang"
    asked: list[Any] = []
    with ThreadPoolExecutor(users) as pool:
        # 30 a second: 15 hang at once, twice what a bound of 16 is over HTTP where it is not widened
        for _ in range(50):
            asked.append(pool.submit(parts.envoy.http))
            time.sleep(1 / 30)
        assert {one.result().status for one in asked} == {200}
    assert {one.result().release for one in asked} == {"r1"}


def test_a_failure_is_retried_where_stable_is_within_its_bound_and_told_where_it_is_full(parts: Rig) -> None:
    parts.apply(10_000, stable=stable(parts, 8))
    parts.candidate.mode = "error"
    assert {answer.status for answer in at_once(parts, 4, held=4)} == {200}
    assert Counter(answer.status for answer in at_once(parts, 8, held=4)) == {200: 4, 429: 4}


def test_a_new_bound_is_in_force_once_acknowledged_and_loses_no_request(parts: Rig) -> None:
    parts.apply(None, stable=stable(parts, UNBOUNDED))
    parts.stable.delay_s = 0.02
    traffic = Traffic(parts.envoy)
    for bound in (40, 80, 20, 100):
        parts.apply(None, stable=stable(parts, bound))
        traffic.go_on()
    assert set(traffic.stop()) == {""}
    parts.apply(None, stable=stable(parts, 4))
    assert Counter(answer.status for answer in at_once(parts, 6, held=2)) == {200: 2, 429: 4}


def test_a_promotion_gives_the_candidate_the_bound_of_a_stable_and_loses_no_request(parts: Rig) -> None:
    arms = {"stable": stable(parts, 20), "candidate": candidate(parts, 20)}
    parts.apply(10_000, **arms)
    parts.candidate.delay_s = 0.01
    traffic = Traffic(parts.envoy)
    traffic.go_on()
    parts.apply(None, stable=candidate(parts, 20), candidate=None)
    promoted = time.monotonic()
    traffic.go_on()
    assert set(traffic.stop()) == {""}
    assert {release for began, release, _ in traffic.calls if began > promoted} == {"r2"}
    name = f"{MODEL}_{CANDIDATE.removeprefix('sha256:')[:12]}_http"
    wait_until(lambda: f"{name}::default_priority::max_requests::10" in parts.envoy.admin("/clusters"), "its bound")


def test_a_request_that_its_user_gave_up_makes_room(parts: Rig) -> None:
    parts.apply(None, stable=stable(parts, 2), limits=Limits(3.0, 3.0))
    parts.stable.mode = "hang"
    hung = threading.Thread(target=parts.envoy.http)
    hung.start()
    wait_until(lambda: parts.stable.hits == 1, "the request that hangs")
    assert parts.envoy.http().status == 429
    assert hung.is_alive()
    hung.join()
    parts.stable.mode = "ok"
    assert parts.envoy.http().status == 200
