"""Answers of vLLM, as it was seen to answer, through a real Envoy: what callers get, and what each counts as."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from registry.core.kinds import KINDS
from serving.traffic.core.routes import Arm
from tests.support.rigs.gateway_rig import MODEL, UNBOUNDED, Rig, rig, wait_until
from tests.support.servers.event_server import DONE, EventServer, Play, chat, error, event_server

pytestmark = pytest.mark.real("envoy")
BUSY, OVER = "engine is currently busy", "cannot schedule new futures after shutdown"


@pytest.fixture(scope="module")
def server() -> Iterator[EventServer]:
    with event_server() as built:
        yield built


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, server: EventServer) -> Iterator[Rig]:
    with rig(tmp_path_factory.mktemp("vllm")) as built:
        built.apply(None, stable=Arm("r1", Rig.STABLE, (server.endpoint,), UNBOUNDED, kind="vllm"))
        yield built


def refusal(status: int, said: str) -> Play:
    document = {"error": {"message": said, "type": "Error", "param": None, "code": status}}
    body = json.dumps(document, separators=(",", ":")).encode()
    head = f"HTTP/1.1 {status} No\r\ncontent-type: application/json\r\nconnection: close\r\n"
    return Play([], head=f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)


@pytest.mark.parametrize(
    ("play", "streams", "status", "expected"),  # decided, failed, shed, refused
    [
        (Play([chat(), chat("", "stop"), DONE]), True, 200, (1, 0, 0, 0)),
        (Play([chat(), chat("", "abort"), DONE]), True, 200, (1, 1, 0, 0)),  # the server was told to end
        (Play([error(503, BUSY), DONE]), True, 200, (0, 0, 1, 0)),
        (Play([chat(), error(500, OVER), DONE]), True, 200, (1, 1, 0, 0)),
        (refusal(503, BUSY), False, 429, (0, 0, 1, 0)),
        (refusal(503, "in other words"), False, 503, (1, 1, 0, 0)),
        (refusal(500, OVER), False, 500, (1, 1, 0, 0)),
        (refusal(400, "the prompt is too long"), False, 400, (0, 0, 0, 1)),
        (refusal(404, "The model `other` does not exist."), False, 404, (0, 0, 0, 1)),
    ],
    ids=["whole", "aborted", "busy stream", "broken stream", "busy", "unavailable", "over", "mistake", "unknown"],
)
def test_an_answer_counts_as_what_it_means(
    gateway: Rig,
    server: EventServer,
    play: Play,
    streams: bool,
    status: int,
    expected: tuple[int, ...],
) -> None:
    def counts() -> tuple[int, ...]:
        now = gateway.counters().by_release[Rig.STABLE]
        return now.decided, now.failed, now.shed, now.refused

    before = counts()
    server.plays = [play]
    body = json.dumps({"model": MODEL, "stream": streams}).encode()
    answer = gateway.envoy.http("/v1/chat/completions", {"content-type": "application/json"}, body)
    assert answer.status == status, answer.body
    wait_until(lambda: counts() != before, "the request has ended")
    assert tuple(now - was for now, was in zip(counts(), before, strict=True)) == expected


def test_the_gateway_names_each_call_once_for_all_kinds_that_have_it(gateway: Rig) -> None:
    said = gateway.envoy.http("/v1/embeddings", {"content-type": "application/json"}).body.decode()
    words = KINDS["vllm"].calls.words
    assert said.count(words) == 1 and f"models on llamacpp, vllm, sglang, nim: {words}" in said
