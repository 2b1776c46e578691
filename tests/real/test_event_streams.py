"""Streams of text through a real Envoy: what the gateway measures, and how each end counts."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from serving.ports import FIRST_TEXT, LARGEST_GAP, ArmCounters, Spread
from serving.traffic.core.buckets import EDGES_US, TEXT_EDGES
from serving.traffic.core.routes import Arm
from tests.support.rigs.gateway_rig import MODEL, UNBOUNDED, Rig, rig, wait_until
from tests.support.servers.event_server import (
    DONE,
    HEAD,
    EventServer,
    Play,
    chat,
    completion,
    error,
    event,
    event_server,
)

pytestmark = pytest.mark.real("envoy")
#: Milliseconds that a busy machine may add to a pause.
LATE_MS = 150
#: Lines that are cut to 8 KiB, and the events behind them.
LONG = event({"choices": [{"delta": {"content": "x" * 100_000}}], "finish_reason": None})


@pytest.fixture(scope="module")
def server() -> Iterator[EventServer]:
    with event_server() as built:
        yield built


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, server: EventServer) -> Iterator[Rig]:
    with rig(tmp_path_factory.mktemp("streams")) as built:
        built.apply(None, stable=Arm("r1", Rig.STABLE, (server.endpoint,), UNBOUNDED, kind="llamacpp"))
        yield built


class Counted:
    """A release's counts since this began."""

    def __init__(self, parts: Rig) -> None:
        self.parts = parts
        self.before = self._now()

    def _now(self) -> ArmCounters:
        return self.parts.counters().by_release[Rig.STABLE]

    def until(self, routed: int = 1) -> dict[str, Any]:
        """Counts that this number of requests added."""
        wait_until(lambda: self._now().routed - self.before.routed == routed, "the requests have ended")
        now = self._now()
        names = ("decided", "failed", "shed", "routed")
        found: dict[str, Any] = {name: getattr(now, name) - getattr(self.before, name) for name in names}
        return found | {name: since(self.before.spread(name), now.spread(name)) for name in (*TIMES, "texts")}


TIMES = (FIRST_TEXT, LARGEST_GAP)


def since(before: Spread, now: Spread) -> Spread:
    def less(now_under: Any, before_under: Any) -> dict[int, int]:
        return {edge: count - before_under.get(edge, 0) for edge, count in now_under.items()}

    under, left_under = less(now.under, before.under), less(now.left_under, before.left_under)
    return Spread(now.count - before.count, under, now.left - before.left, left_under)


@pytest.fixture
def counted(gateway: Rig) -> Counted:
    return Counted(gateway)


def ask(parts: Rig, *, leave_after_s: float | None = None, path: str = "/v1/chat/completions") -> tuple[int, bytes]:
    """The status and the bytes of a stream that its caller reads to the end, or leaves."""
    line = http.client.HTTPConnection("127.0.0.1", parts.envoy.port, timeout=30)
    asked = json.dumps({"model": MODEL, "stream": True}).encode()
    line.request("POST", path, asked, {"content-type": "application/json"})
    try:
        if leave_after_s is not None:
            time.sleep(leave_after_s)
            return 0, b""
        answer = line.getresponse()
        try:
            return answer.status, answer.read()
        except http.client.IncompleteRead as cut:
            return answer.status, cut.partial
    finally:
        line.close()


def is_about(spread: Spread, ms: float) -> bool:
    """Whether all values lie between this time and `LATE_MS` later."""
    under = {edge: count for edge, count in spread.under.items() if edge <= 1000 * ms}
    above = {edge: count for edge, count in spread.under.items() if edge > 1000 * (ms + LATE_MS)}
    return not any(under.values()) and set(above.values()) == {spread.count}


def is_count(spread: Spread, texts: int) -> bool:
    """Whether the one value is in the histogram's class of this number."""
    return spread.under == {edge: int(texts <= edge) for edge in TEXT_EDGES}


@pytest.mark.parametrize("texts", [1, 2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("form", [chat, completion], ids=["chat", "completion"])
def test_a_healthy_streams_counts_are_what_its_caller_saw(
    gateway: Rig, server: EventServer, counted: Counted, form: Any, texts: int
) -> None:
    parts: list[bytes | float] = [0.22, form("a")]
    parts += [part for _ in range(texts - 1) for part in (0.022, form("b"))]
    server.plays = [Play([chat(""), *parts, form(""), DONE])]
    status, body = ask(gateway)
    assert status == 200 and body.endswith(DONE)
    found = counted.until()
    assert (found["decided"], found["failed"], found["shed"]) == (1, 0, 0)
    assert is_about(found[FIRST_TEXT], 200)
    assert is_about(found[LARGEST_GAP], 22) or texts == 1
    assert is_count(found["texts"], texts)


def test_the_largest_gap_of_a_stream_is_one_value(gateway: Rig, server: EventServer, counted: Counted) -> None:
    server.plays = [Play([chat(), 0.05, chat(), 0.42, chat(), 0.1, chat(), DONE])]
    ask(gateway)
    found = counted.until()
    assert is_about(found[LARGEST_GAP], 400) and found[LARGEST_GAP].count == 1


REASONING = event({"choices": [{"delta": {"reasoning_content": "hm"}}]})
TOOL = event({"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}}]})
SPACED = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
WITH_RETURNS = chat().replace(b"\n", b"\r\n")
QUOTED = chat('"content":"x","error":{"code":429},"finish_reason":"error" data: [DONE]')
EMPTY = event({"choices": [{"delta": {"content": "", "tool_calls": [], "reasoning": None}}]})


@pytest.mark.parametrize(
    ("parts", "texts"),
    [
        ([REASONING, DONE], 1),
        ([TOOL, DONE], 1),
        ([SPACED, b"data:[DONE]\n\n"], 1),
        ([WITH_RETURNS, WITH_RETURNS, DONE.replace(b"\n", b"\r\n")], 2),
        ([QUOTED, chat('"'), DONE], 2),
        ([EMPTY, b": a comment\n\n", b"id: 7\nretry: 10\n\n", DONE], 0),
        ([LONG, chat(), DONE], 2),
        ([chat()[:9], 0.05, chat()[9:], chat() + chat() + DONE[:8], 0.05, DONE[8:]], 3),
        ([chat(), b"data: [DONE]"], 1),
    ],
    ids=["reasoning", "a tool call", "spaces", "CRLF", "quotes", "no text", "long", "split", "no last newline"],
)
def test_an_event_is_read_in_each_form(
    gateway: Rig, server: EventServer, counted: Counted, parts: Sequence[bytes | float], texts: int
) -> None:
    server.plays = [Play(parts)]
    assert ask(gateway)[1] == b"".join(part for part in parts if isinstance(part, bytes))
    found = counted.until()
    assert (found["decided"], found["failed"]) == (1, 0)
    assert found[FIRST_TEXT].count == (texts > 0)
    assert is_count(found["texts"], texts)


FAILED, SHED, ANSWERED, NOTHING = (1, 1, 0), (0, 0, 1), (1, 0, 0), (0, 0, 0)


@pytest.mark.parametrize(
    ("play", "expected"),
    [
        (Play([chat(), error(500), DONE]), FAILED),
        (Play([chat(), error(429), DONE]), FAILED),
        (Play([error(500)]), FAILED),
        (Play([error(400), DONE]), FAILED),
        (Play([error("503")]), SHED),
        (Play([chat(""), error(429), DONE]), SHED),
        (Play([chat(), b'event: error\ndata: {"message": "no"}\n\n', DONE]), FAILED),
        (Play([b'error: {"code":503,"message":"no"}\n\n']), SHED),
        (Play([event({"id": "c-1", "error": {"code": 500}}), DONE]), FAILED),
        (Play([b'data: {"error":"","choices":[{"delta":{"content":"a"}}]}\n\n', DONE]), ANSWERED),
        (Play([chat(), b"data: [DONE] \n\n"]), ANSWERED),
        (Play([chat(), chat("", "abort"), DONE]), FAILED),
        (Play([chat(), chat("", "error"), DONE]), FAILED),
        (Play([chat(), chat("", "length"), DONE]), ANSWERED),
        (Play([chat(), chat("", "stop")]), FAILED),
        (Play([]), FAILED),
        (Play([chat()], "cut"), FAILED),
        (Play([], "cut"), FAILED),
        (Play([chat()], head=HEAD + b"content-encoding: gzip\r\n"), ANSWERED),
        (Play([b"{}"], head=HEAD.replace(b"text/event-stream", b"application/json")), ANSWERED),
        (Play([b"{}"], head=HEAD.replace(b"200 OK", b"503 No")), FAILED),
    ],
)
def test_each_end_of_a_stream_counts_as_the_table_states(
    gateway: Rig, server: EventServer, counted: Counted, play: Play, expected: tuple[int, int, int]
) -> None:
    server.plays = [play]
    ask(gateway)
    found = counted.until()
    assert (found["decided"], found["failed"], found["shed"]) == expected


@pytest.mark.parametrize("is_head_sent", [True, False])
def test_a_caller_that_leaves_without_text_counts_by_its_wait_alone(
    gateway: Rig, server: EventServer, counted: Counted, is_head_sent: bool
) -> None:
    server.plays = [Play([chat("")] if is_head_sent else [], "hold", HEAD if is_head_sent else b"")]
    ask(gateway, leave_after_s=0.3)
    found = counted.until()
    assert (found["decided"], found["failed"], found["shed"]) == NOTHING
    first = found[FIRST_TEXT]
    assert (first.count, first.left, first.left_over(200_000), first.left_over(1_000_000)) == (0, 1, 1, 0)
    assert found[LARGEST_GAP].left == 0


def test_a_caller_that_leaves_during_a_gap_counts_by_the_gap(
    gateway: Rig, server: EventServer, counted: Counted
) -> None:
    server.plays = [Play([chat(), 0.05, chat()], "hold")]
    ask(gateway, leave_after_s=0.4)
    found = counted.until()
    assert (found["decided"], found["failed"]) == (0, 0)
    gap = found[LARGEST_GAP]
    assert (gap.count, gap.left, gap.over(200_000), gap.over(1_000_000)) == (1, 0, 1, 0)
    assert (found[FIRST_TEXT].count, found[FIRST_TEXT].left) == (1, 0)


def test_a_gap_that_is_over_counts_if_the_caller_leaves_later(
    gateway: Rig, server: EventServer, counted: Counted
) -> None:
    server.plays = [Play([chat(), 0.6, chat()], "hold")]
    ask(gateway, leave_after_s=0.75)
    gap = counted.until()[LARGEST_GAP]
    assert (gap.count, gap.over(500_000), gap.over(1_000_000)) == (1, 1, 0)


@pytest.mark.parametrize("head", [b"content-encoding: gzip\r\n", b"content-type: application/json\r\n"])
def test_an_answer_without_events_has_no_late_first_text(
    gateway: Rig, server: EventServer, counted: Counted, head: bytes
) -> None:
    whole = HEAD + head if b"gzip" in head else HEAD.replace(b"content-type: text/event-stream\r\n", head)
    server.plays = [Play([chat()], "hold", whole)]
    ask(gateway, leave_after_s=0.3)
    found = counted.until()
    assert all(found[name].count == found[name].left == 0 for name in (FIRST_TEXT, LARGEST_GAP))


@pytest.mark.parametrize(("last", "expected"), [(DONE, ANSWERED), (error(500), FAILED)], ids=["done", "error"])
def test_a_caller_that_leaves_at_the_end_takes_nothing_back(
    gateway: Rig, server: EventServer, counted: Counted, last: bytes, expected: tuple[int, int, int]
) -> None:
    server.plays = [Play([chat(), last], "hold")]
    ask(gateway, leave_after_s=0.3)
    found = counted.until()
    assert (found["decided"], found["failed"], found["shed"]) == expected


def test_a_stream_passes_at_once_and_whole(gateway: Rig, server: EventServer, counted: Counted) -> None:
    """A line without an end holds nothing back."""
    line = http.client.HTTPConnection("127.0.0.1", gateway.envoy.port, timeout=30)
    server.plays = [Play([b"data: first", 0.5, b"x" * 3_000_000, 0.1, b"\n\n", DONE])]
    line.request("POST", "/v1/chat/completions", json.dumps({"model": MODEL, "stream": True}).encode())
    answer = line.getresponse()
    began = time.monotonic()
    assert answer.read(11) == b"data: first" and time.monotonic() - began < 0.4
    assert len(answer.read()) == 3_000_002 + len(DONE)
    line.close()
    assert counted.until()["failed"] == 0


def test_edges_are_those_of_latencies(gateway: Rig, server: EventServer, counted: Counted) -> None:
    server.plays = [Play([chat(), DONE])]
    ask(gateway)
    assert tuple(counted.until()[FIRST_TEXT].under) == EDGES_US
