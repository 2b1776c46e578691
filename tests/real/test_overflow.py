"""What a candidate has no room for, in a real Envoy: stable answers it once, within its own bound, and it counts as the candidate's."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from serving.ports import ArmCounters
from serving.traffic.core.request_limits import Limits
from serving.traffic.core.routes import Arm
from tests.support.rigs.gateway_rig import MODEL, UNBOUNDED, Answer, Backend, Rig, grpc_infer, rig, wait_until

pytestmark = pytest.mark.real("envoy")
STABLE, CANDIDATE = Rig.STABLE, Rig.CANDIDATE
#: With a candidate's bound of 1, as its attempts may take 2 s: sixteen times as much, half of it over each protocol.
ROOM, LIMITS = 8, Limits(40.0, 2.0)
#: No attempt is late while a test holds its server.
PATIENT = Limits(50.0, 50.0)


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path) as built:
        yield built


def apply(parts: Rig, *, room: int, stable: int = UNBOUNDED, **more: Any) -> None:
    """All is drawn for the candidate, which has so much room over each protocol."""
    more = {"limits": PATIENT, **more}
    times = 16 if more["limits"].attempt_timeout_s >= 2 else 1
    candidate = Arm("r2", CANDIDATE, (parts.candidate.endpoint,), max(2 * room // times, 1))
    bound = Arm("r1", STABLE, (parts.stable.endpoint,), stable if stable == UNBOUNDED else 2 * stable)
    parts.apply(10_000, candidate=candidate, stable=bound, **more)


def outcomes(parts: Rig, protocol: str, users: int, waits: Callable[[int], bool], *held: Backend) -> Counter[Any]:
    """(status, release) of so many users at once, while `held` answer nobody until it is true for the number of those who have theirs."""
    with parts.envoy.channel() as channel, ThreadPoolExecutor(users) as pool, contextlib.ExitStack() as stack:
        ask: Callable[[], Any] = parts.envoy.http if protocol == "HTTP" else partial(grpc_infer, channel)
        with stack:
            for one in held:
                stack.enter_context(one.held())
            asked = [pool.submit(ask) for _ in range(users)]
            wait_until(lambda: waits(sum(one.done() for one in asked)), "the answers that come meanwhile")
        return Counter(_outcome(one.result()) for one in asked)


def _outcome(answer: Answer | tuple[grpc.StatusCode, str | None, str | None]) -> tuple[Any, str | None]:
    return (answer.status, answer.release) if isinstance(answer, Answer) else (answer[0].name, answer[1])


def of_candidate(parts: Rig) -> ArmCounters:
    return parts.counters().by_release[CANDIDATE]


@pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
@pytest.mark.parametrize("workers", [1, 2])
def test_what_comes_over_the_candidates_bound_is_answered_by_stable_once(
    parts: Rig, protocol: str, workers: int
) -> None:
    parts.envoy.stop()
    parts.envoy.start(workers=workers)
    apply(parts, room=ROOM)
    found = outcomes(parts, protocol, 24, lambda done: parts.candidate.hits + done >= 24, parts.candidate)
    # two workers may both see the last place
    assert ROOM <= parts.candidate.hits < ROOM + workers
    assert {(status in (200, "OK"), release) for status, release in found} == {(True, "r1"), (True, "r2")}
    assert parts.stable.hits == 24 - parts.candidate.hits
    one = of_candidate(parts)
    assert (one.routed, one.shed, one.decided, one.failed) == (24, parts.stable.hits, parts.candidate.hits, 0)
    assert one.timed == parts.candidate.hits  # stable's time is not the candidate's
    assert parts.counters().user_errors == 0


@pytest.mark.parametrize(("protocol", "refused"), [("HTTP", 429), ("gRPC", "RESOURCE_EXHAUSTED")])
def test_where_stable_is_at_its_bound_too_the_rest_is_shed_at_once(
    parts: Rig, protocol: str, refused: int | str
) -> None:
    apply(parts, room=ROOM, stable=4)
    found = outcomes(parts, protocol, 24, lambda done: done == 12, parts.candidate, parts.stable)
    assert sum(n for (what, _), n in found.items() if what == refused) == 12
    assert (parts.candidate.hits, parts.stable.hits) == (ROOM, 4)
    counters = parts.counters()
    one = counters.by_release[CANDIDATE]
    assert (one.routed, one.shed, one.decided, counters.user_errors) == (24, 16, 8, 12)
    assert STABLE not in counters.by_release or not counters.by_release[STABLE].shed  # nothing was drawn for it


def test_who_is_shed_by_both_is_told_when_to_come_again(parts: Rig) -> None:
    apply(parts, room=ROOM, stable=1)
    with ThreadPoolExecutor(ROOM + 1) as pool, parts.candidate.held(), parts.stable.held():
        asked = [pool.submit(parts.envoy.http) for _ in range(ROOM + 1)]
        wait_until(lambda: parts.candidate.hits + parts.stable.hits == ROOM + 1, "both at their bounds")
        answer = parts.envoy.http()
        assert (answer.status, answer.headers["retry-after"]) == (429, "1")
        assert not any(one.done() for one in asked)


@pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
def test_a_server_whose_queue_is_full_is_asked_and_then_stable_and_nobody_a_third_time(
    parts: Rig, protocol: str
) -> None:
    apply(parts, room=100)
    parts.candidate.mode = "full"
    assert {release for _, release in outcomes(parts, protocol, 6, lambda done: done == 6)} == {"r1"}
    assert (parts.candidate.hits, parts.stable.hits) == (6, 6)
    parts.stable.mode = "full"
    assert {what for what, _ in outcomes(parts, protocol, 6, lambda done: done == 6)} <= {429, "RESOURCE_EXHAUSTED"}
    assert (parts.candidate.hits, parts.stable.hits) == (12, 12)
    one = of_candidate(parts)
    assert (one.routed, one.shed, one.decided, parts.counters().user_errors) == (12, 12, 0, 6)


@pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
def test_a_full_queue_of_stable_is_not_tried_anew_for_what_the_candidates_bound_refused(
    parts: Rig, protocol: str
) -> None:
    twin = Backend(parts.loop, "twin", mode="full").start()
    try:
        parts.stable.mode = "full"
        both = Arm("r1", STABLE, tuple(sorted((parts.stable.endpoint, twin.endpoint))), UNBOUNDED)
        candidate = Arm("r2", CANDIDATE, (parts.candidate.endpoint,), 1)
        parts.apply(10_000, stable=both, candidate=candidate, limits=LIMITS)
        outcomes(parts, protocol, 20, lambda done: done == 20 - ROOM, parts.candidate)
        assert parts.stable.hits + twin.hits == 20 - ROOM
    finally:
        twin.stop()


def test_what_may_not_be_asked_twice_is_stables_where_the_gateway_refused_it_and_never_where_a_server_did(
    parts: Rig,
) -> None:
    """A server that says so may have computed: an ensemble passes on that a later step's queue is full."""
    apply(parts, room=ROOM, is_idempotent=False)
    found = outcomes(parts, "HTTP", 12, lambda done: done == 12 - ROOM, parts.candidate)
    assert found == {(200, "r2"): ROOM, (200, "r1"): 12 - ROOM}
    parts.candidate.mode = "full"
    before = parts.stable.hits
    assert parts.envoy.http().status == 429
    assert parts.stable.hits == before
    assert of_candidate(parts).shed == 12 - ROOM + 1


def test_streams_take_no_place_of_requests(parts: Rig) -> None:
    apply(parts, room=ROOM)
    with ThreadPoolExecutor(3 * ROOM) as pool, parts.candidate.held():
        path = f"/v2/models/{MODEL}/generate_stream"
        streams = [pool.submit(parts.envoy.http, path) for _ in range(2 * ROOM)]
        wait_until(lambda: parts.candidate.hits == 2 * ROOM, "open streams")
        asked = [pool.submit(parts.envoy.http) for _ in range(ROOM)]
        wait_until(lambda: parts.candidate.hits == 3 * ROOM, "requests beside them")
    assert {one.result().release for one in (*streams, *asked)} == {"r2"}
    assert parts.stable.hits == 0


def test_whether_there_is_room_is_asked_when_the_body_is_there_and_not_with_the_head(parts: Rig) -> None:
    apply(parts, room=ROOM)
    with socket.create_connection(("127.0.0.1", parts.envoy.port), 50) as slow, ThreadPoolExecutor(ROOM) as pool:
        slow.sendall(f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nhost: g\r\ncontent-length: 2\r\n\r\n".encode())
        assert [parts.envoy.http().release for _ in range(3)] == ["r2"] * 3  # one worker: its head came before these
        with parts.candidate.held():
            asked = [pool.submit(parts.envoy.http) for _ in range(ROOM)]
            wait_until(lambda: parts.candidate.hits == 3 + ROOM, "the candidate at its bound")
            slow.sendall(b"{}")
            answer = slow.recv(65536)
        assert b"200 OK" in answer and b'"by":"stable"' in answer
        assert {one.result().release for one in asked} == {"r2"}
    assert parts.candidate.hits == 3 + ROOM


def test_a_full_queues_answer_is_read_however_slowly_its_caller_sent(parts: Rig) -> None:
    """The time of an attempt begins when the body is there; an answer that comes at its end is not read."""
    apply(parts, room=ROOM, limits=LIMITS)
    parts.candidate.mode = "full"
    with socket.create_connection(("127.0.0.1", parts.envoy.port), 50) as slow:
        slow.sendall(f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nhost: g\r\ncontent-length: 2\r\n\r\n".encode())
        time.sleep(LIMITS.attempt_timeout_s)
        slow.sendall(b"{}")
        answer = slow.recv(65536)
    assert b"200 OK" in answer and b'"by":"stable"' in answer
    assert of_candidate(parts).shed == 1


def test_no_caller_can_say_that_there_is_no_room_and_no_server_hears_of_it(parts: Rig) -> None:
    apply(parts, room=ROOM)
    for said in ("no", "yes"):
        assert parts.envoy.http(headers={"x-sluicegate-room": said}).release == "r2"
        assert b"x-sluicegate-room" not in parts.candidate.head
    one = of_candidate(parts)
    assert (one.shed, one.decided) == (0, 2)
    parts.apply(0)
    assert parts.envoy.http(headers={"x-sluicegate-room": "no"}).release == "r1"
    assert parts.counters().by_release[STABLE].shed == 0


def test_a_late_answer_of_stable_in_the_candidates_place_is_not_the_candidates_lateness(parts: Rig) -> None:
    apply(parts, room=ROOM, limits=LIMITS)
    parts.stable.delay_s = 1.2 * LIMITS.attempt_timeout_s
    with ThreadPoolExecutor(ROOM + 1) as pool:
        parts.candidate.delay_s = 0.9 * LIMITS.attempt_timeout_s
        asked = [pool.submit(parts.envoy.http) for _ in range(ROOM)]
        wait_until(lambda: parts.candidate.hits == ROOM, "the candidate at its bound")
        late = parts.envoy.http()
        assert {one.result().status for one in asked} == {200}
    assert late.release == "r1"
    one = of_candidate(parts)
    assert (one.shed, one.timed) == (1, one.decided)


def test_the_share_that_is_drawn_is_the_weight(parts: Rig) -> None:
    candidate = Arm("r2", CANDIDATE, (parts.candidate.endpoint,), UNBOUNDED)
    parts.apply(2500, candidate=candidate)
    for _ in range(1200):
        parts.envoy.http()
    one = of_candidate(parts)
    assert 200 <= one.routed <= 400  # 300 are due; six of its standard deviations are 90


def test_the_script_never_fails(parts: Rig) -> None:
    apply(parts, room=ROOM)
    outcomes(parts, "HTTP", 12, lambda done: done == 12 - ROOM, parts.candidate)
    outcomes(parts, "gRPC", 12, lambda done: done == 12 - ROOM, parts.candidate)
    assert "lua" not in Path(parts.envoy.log.name).read_text().lower()
    assert json.loads(parts.envoy.http().body)["by"] == "candidate"
