"""Which requests a real Envoy asks a second time, of whom, and which never."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from serving.traffic.core.request_limits import Limits
from serving.traffic.core.routes import Arm, ServerAddress
from tests.support.rigs.gateway_rig import UNBOUNDED, Rig, grpc_infer, rig

pytestmark = pytest.mark.real("envoy")
LATE = Limits(20.0, 0.2)


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path) as built:
        yield built


def ask(parts: Rig, protocol: str) -> Any:
    if protocol == "http":
        return parts.envoy.http().status
    with parts.envoy.channel() as channel:
        return grpc_infer(channel)[0]


BOTH = pytest.mark.parametrize(("protocol", "well"), [("http", 200), ("grpc", grpc.StatusCode.OK)])


@BOTH
@pytest.mark.parametrize("mode", ["error", "unavailable", "lost"])
def test_what_is_not_idempotent_and_was_sent_is_not_asked_again(
    parts: Rig, protocol: str, well: Any, mode: str
) -> None:
    parts.candidate.mode = mode
    parts.apply(10_000, is_idempotent=False)
    assert ask(parts, protocol) != well
    assert (parts.candidate.hits, parts.stable.hits) == (1, 0)
    parts.apply(10_000)
    assert ask(parts, protocol) == well
    assert (parts.candidate.hits, parts.stable.hits) == (2, 1)


@BOTH
def test_what_was_in_flight_on_a_server_that_died_is_asked_again_where_the_model_says_so(
    parts: Rig, protocol: str, well: Any
) -> None:
    parts.candidate.mode = "cut"
    at = parts.candidate.endpoint  # its port for HTTP cuts whatever comes
    cutting = Arm("r2", Rig.CANDIDATE, (ServerAddress(at.host, at.http_port, at.http_port),), UNBOUNDED)
    parts.apply(10_000, candidate=cutting)
    assert ask(parts, protocol) != well and parts.stable.hits == 0
    parts.apply(10_000, candidate=cutting, retries_resets=True)
    assert ask(parts, protocol) == well and parts.stable.hits == 1
    counted = parts.counters().by_release[Rig.CANDIDATE]
    assert (counted.timed, counted.failed, counted.saved) == (2, 2, 1)


@BOTH
def test_what_is_not_idempotent_may_take_the_whole_time(parts: Rig, protocol: str, well: Any) -> None:
    parts.candidate.delay_s = 1.0
    parts.apply(10_000, is_idempotent=False, limits=LATE)
    assert ask(parts, protocol) == well
    assert (parts.candidate.hits, parts.stable.hits) == (1, 0)


@BOTH
def test_what_never_reached_a_server_is_asked_of_another_one(parts: Rig, protocol: str, well: Any) -> None:
    parts.candidate.stop()
    parts.apply(10_000, is_idempotent=False)
    assert ask(parts, protocol) == well
    assert parts.stable.hits == 1


@BOTH
def test_a_server_that_is_late_is_not_given_the_same_request_again(parts: Rig, protocol: str, well: Any) -> None:
    parts.stable.delay_s = 1.0
    parts.apply(None, limits=LATE)
    assert ask(parts, protocol) == well
    assert parts.stable.hits == 1


@BOTH
def test_with_another_server_a_late_request_is_asked_there(parts: Rig, protocol: str, well: Any) -> None:
    parts.stable.delay_s = parts.candidate.delay_s = 1.0
    two = Arm("r1", Rig.STABLE, (parts.stable.endpoint, parts.candidate.endpoint), UNBOUNDED)
    parts.apply(None, stable=two, limits=LATE)
    assert ask(parts, protocol) == well
    assert (parts.stable.hits, parts.candidate.hits) == (1, 1)
