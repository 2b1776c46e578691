"""Rollouts of a text model whose callers ask for streams: the engine, a real gateway, llama.cpp, and servers of events."""

from __future__ import annotations

import itertools
import json
import re
import time
from contextlib import ExitStack
from http.client import HTTPConnection
from typing import Any

import pytest
from django.utils import timezone

from registry.models import Release
from rollouts.models import DecisionRecord
from serving.models import Route
from serving.ports import FIRST_TEXT, LARGEST_GAP
from tests.real import test_llamacpp
from tests.real.test_llamacpp import Shop, chat
from tests.support.servers.event_server import DONE, Play, error, event_server
from tests.support.servers.event_server import chat as text
from tests.support.worlds.factories import make_replica, make_server

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.real("envoy", "llamacpp"),
    pytest.mark.timeout(600),
]
STALLED_MS, LATE_MS = 750, 1000
OBJECTIVES = {
    "errors_max_frac": 0.05,
    "first_token": {"threshold_ms": LATE_MS, "max_frac": 0.05},
    "stalled": {"threshold_ms": STALLED_MS, "max_frac": 0.05},
}
STREAM = chat(stream=True, max_tokens=12)
#: Milliseconds by which the clocks of a caller and of the gateway may differ on a busy machine, beside Envoy's two digits.
TOLERANCE_MS, DIGITS = 60.0, 0.06
HEALTHY = Play([text(""), 0.02, text(), 0.02, text(), 0.02, text("", "stop"), DONE])
FAULTS = {
    "stalled": Play([text(), 1.2, text(), DONE]),
    "first_token": Play([text(""), 1.5, text(), DONE]),
    "errors": Play([text(), error(500), DONE]),
}
#: A fixture of that file.
shop = test_llamacpp.shop


@pytest.fixture
def streams(shop: Shop) -> Shop:
    return promising(shop, OBJECTIVES)


def promising(shop: Shop, objectives: dict[str, Any]) -> Shop:
    shop.model.objectives = objectives
    shop.model.save()
    return shop


def serve_events(shop: Shop, release: Release, stack: ExitStack, *plays: Play) -> None:
    server = stack.enter_context(event_server(*plays))
    replica = make_replica(release, shop.environment, state="ready")
    make_server(replica, http_port=server.port, grpc_port=server.port, probed_at=timezone.now())


def seen(shop: Shop, body: bytes) -> tuple[float, float, int]:
    """Milliseconds to the first text, the largest gap, and the number of events with text, by a caller's clock."""
    line = HTTPConnection("127.0.0.1", shop.parts.envoy.port, timeout=60)
    times = [time.monotonic()]
    line.request("POST", "/v1/chat/completions", body)
    answer = line.getresponse()
    while data := answer.readline():
        if data.startswith(b"data: {") and json.loads(data[6:])["choices"][0]["delta"].get("content"):
            times.append(time.monotonic())
    line.close()
    gaps = [1000 * (after - before) for before, after in itertools.pairwise(times)]
    return gaps[0], max(gaps[1:]), len(gaps)


def value_of(shop: Shop, stat: str) -> float:
    """The one value of a histogram, by Envoy's own summary."""
    page = shop.parts.envoy.admin(f"/stats?usedonly&filter=^sli.{stat}.")
    (found,) = re.findall(r"P100\([^,]*,([\d.]+)\)", page)
    return float(found)


def test_a_stream_of_llama_cpp_is_measured_as_its_caller_sees_it(streams: Shop) -> None:
    stable = streams.push()
    streams.serve(stable)[1].close()
    streams.route(stable)
    first_ms, gap_ms, texts = seen(streams, chat(stream=True, max_tokens=40))
    counted = streams.counted(stable)
    assert (counted.decided, counted.failed) == (1, 0)
    assert {counted.spread(name).count for name in (FIRST_TEXT, LARGEST_GAP, "texts")} == {1}
    assert abs(value_of(streams, FIRST_TEXT) - first_ms) <= TOLERANCE_MS + DIGITS * first_ms
    assert abs(value_of(streams, LARGEST_GAP) - gap_ms) <= TOLERANCE_MS + DIGITS * gap_ms
    assert 1 < texts == int(value_of(streams, "texts"))


def test_a_healthy_candidate_of_llama_cpp_is_promoted_by_its_streams(shop: Shop) -> None:
    """On a busy machine a first token of four slots may take seconds."""
    generous = {"threshold_ms": 30_000, "max_frac": 0.5}
    streams = promising(shop, {"errors_max_frac": 0.2, "first_token": generous, "stalled": generous})
    stable, candidate = streams.push(), streams.push(seed=1)
    for release in (stable, candidate):
        streams.serve(release)[1].close()
    streams.begin(stable, candidate)
    assert streams.rollout is not None
    guards = {guard.name for guard in streams.rollout.effective_policy.guards}
    assert {"first_token_30000ms", "stalled_30000ms", "errors"} <= guards
    streams.until("promoted", [chat(stream=True)] * 40)
    assert set(streams.statuses) == {200}
    assert Route.objects.get().stable_id == candidate.pk


@pytest.mark.parametrize("guard", FAULTS)
def test_a_candidate_with_faults_in_some_streams_is_rolled_back_by_its_guard(streams: Shop, guard: str) -> None:
    """One stream in five is bad. Each has status 200."""
    stable, candidate = streams.push(), streams.push(seed=1)
    with ExitStack() as stack:
        serve_events(streams, stable, stack, HEALTHY)
        serve_events(streams, candidate, stack, *[HEALTHY] * 4, FAULTS[guard])
        streams.begin(stable, candidate)
        streams.until("rolled_back", [STREAM] * 40)
    record = DecisionRecord.objects.get(action="roll_back")
    assert record.facts["guard"].startswith(guard), record.reason
    assert set(streams.statuses) == {200}
    assert (streams.counted(candidate).failed > 0) == (guard == "errors")
    assert Route.objects.get().stable_id == stable.pk
