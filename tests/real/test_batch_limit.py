"""A batch that is larger than any release of the model takes is refused at the gateway, before a server hears of it."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from serving.traffic.core.routes import Arm
from tests.support.rigs.gateway_rig import MODEL, Rig, grpc_infer, rig
from tests.support.servers.hostile import GOOD, message, packed, raw, tensor, unpacked

pytestmark = pytest.mark.real("envoy")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rig(tmp_path_factory.mktemp("batches")) as built:
        yield built


def route(parts: Rig, stable: int, candidate: int | None = None) -> None:
    """The split between releases that declare these batches; None: there is stable alone."""
    one = Arm("r1", Rig.STABLE, (parts.stable.endpoint,), 100, max_batch=stable)
    other = Arm("r2", Rig.CANDIDATE, (parts.candidate.endpoint,), 100, max_batch=candidate or 0)
    parts.apply(None, stable=one) if candidate is None else parts.apply(0, stable=one, candidate=other)


def over_http(parts: Rig, *shapes: list[int]) -> int:
    """The status of a request with inputs of these shapes."""
    inputs = b",".join(tensor(shape=one, data=[0] * max(one[0], 0) * 4)[len(b'{"inputs": [') : -2] for one in shapes)
    answer = parts.envoy.http(body=b'{"inputs": [' + inputs + b"]}")
    assert answer.status == 200 or b"batches of up to 8" in answer.body
    return answer.status


def test_a_batch_above_the_largest_is_refused_over_http(parts: Rig) -> None:
    route(parts, 8)
    before = parts.stable.hits
    assert [over_http(parts, [items, 4]) for items in (0, 1, 8, 9, 4000)] == [200, 200, 200, 400, 400]
    assert (over_http(parts, [8, 4], [9, 4]), over_http(parts, [8, 4], [8, 1])) == (400, 200)
    assert parts.stable.hits == before + 4
    assert parts.envoy.http(body=GOOD).status == 200
    assert parts.envoy.http(body=b'{"inputs":[{"name":"x","datatype":"FP32","shape":[],"data":[1]}]}').status == 200


def test_a_batch_above_the_largest_is_refused_over_grpc(parts: Rig) -> None:
    route(parts, 8)
    with parts.envoy.channel() as channel:
        for shape in (packed, unpacked):
            for items, code in ((8, grpc.StatusCode.OK), (9, grpc.StatusCode.INVALID_ARGUMENT)):
                sent = message(MODEL, shape(items, 4)) + raw(b"\0" * 16 * items)
                assert grpc_infer(channel, request=sent)[0] is code


def test_such_a_batch_is_nobodys_failure(parts: Rig) -> None:
    route(parts, 8)
    before = parts.counters()
    over_http(parts, [9, 4])
    after = parts.counters()
    was, arm = before.by_release[Rig.STABLE], after.by_release[Rig.STABLE]
    assert (arm.decided, arm.failed, arm.shed) == (was.decided, was.failed, was.shed)
    assert after.user_errors == before.user_errors


@pytest.mark.parametrize(("stable", "candidate"), [(0, None), (8, 0), (8, 16)])
def test_what_one_of_its_releases_may_take_passes(parts: Rig, stable: int, candidate: int | None) -> None:
    route(parts, stable, candidate)
    assert over_http(parts, [16, 4]) == 200
