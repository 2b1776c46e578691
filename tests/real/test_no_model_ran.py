"""What no model ran for is no release's evidence: the gateway's counts beside those of the real servers."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from serving.ports import ArmCounters
from tests.support.rigs.gateway_rig import MODEL
from tests.support.rigs.hostile_rig import Servers, servers, told
from tests.support.servers.hostile import OVER_HTTP, over_grpc
from tests.support.servers.odd_requests import in_a_hurry, over_http1, over_http2

pytestmark = [pytest.mark.real("envoy", "triton"), pytest.mark.timeout(600)]
#: So many shapes are sent before the counts are read.
AT_ONCE = 12


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with servers(tmp_path_factory.mktemp("outcomes")) as both:
        both.split(5000)
        yield both


def ran(world: Servers) -> int:
    """Requests for which a model of either release ran, as the servers themselves counted."""
    total = 0
    for one in world.running.values():
        with urllib.request.urlopen(f"http://{one.host}:{one.http_port}/v2/models/{MODEL}/stats", timeout=20) as answer:
            total += json.loads(answer.read())["model_stats"][0]["inference_stats"]["success"]["count"]
    return total


def counted(world: Servers) -> dict[str, int]:
    """Of both releases together."""
    arms = [*world.counters().by_release.values(), ArmCounters()]
    return {name: sum(getattr(arm, name) for arm in arms) for name in ("decided", "failed", "timed", "routed", "shed")}


Send = Callable[[Servers], object]


def _shapes() -> dict[str, dict[str, Send]]:
    def grpc(message: bytes) -> Send:
        def send(world: Servers) -> None:
            with world.parts.envoy.channel() as channel:
                told(channel, message)

        return send

    return {
        "odd heads": {one.name: (lambda world, one=one: one.send(world.parts.envoy.port)) for one in over_http1()},
        "odd calls": {one.name: (lambda world, one=one: one.send(world.parts.envoy.port)) for one in over_http2()},
        "hostile": {name: (lambda world, one=one: world.http(one)) for name, one in OVER_HTTP.items()},
        "hostile calls": {name: grpc(one) for name, one in over_grpc(MODEL).items()},
    }


@pytest.mark.parametrize("kind", _shapes())
def test_only_what_a_model_ran_for_is_evidence_and_nothing_is_a_failure(world: Servers, kind: str) -> None:
    shapes = list(_shapes()[kind].items())
    wrong = {}
    for at in range(0, len(shapes), AT_ONCE):
        some = shapes[at : at + AT_ONCE]
        had, before = ran(world), counted(world)
        for _, send in some:
            send(world)
        more = {name: count - before[name] for name, count in counted(world).items()}
        models_ran = ran(world) - had
        if (more["failed"], more["shed"]) != (0, 0) or not more["decided"] == more["routed"] == models_ran:
            wrong[tuple(name for name, _ in some)] = (more, models_ran)
    assert wrong == {}
    assert len(shapes) > 25


def test_a_caller_in_a_hurry_fails_no_release_and_changes_no_times(world: Servers) -> None:
    before, had = counted(world), ran(world)
    for one in in_a_hurry():
        one.send(world.parts.envoy.port)
    more = {name: count - before[name] for name, count in counted(world).items()}
    assert more["failed"] == 0 and more["timed"] == more["decided"] <= ran(world) - had
