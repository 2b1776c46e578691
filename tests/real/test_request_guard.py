"""Hostile requests on real servers behind a real gateway: who sends them is told, and nobody else notices."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from serving.ports import ArmCounters
from serving.traffic.core.routes import Arm
from tests.support.rigs.gateway_rig import MODEL, Rig
from tests.support.rigs.hostile_rig import METHOD, Servers, servers, told
from tests.support.servers.hostile import (
    FOUR,
    GOOD,
    OVER_HTTP,
    OverHttp,
    good_message,
    message,
    over_grpc,
    packed,
    raw,
    tensor,
)

pytestmark = [pytest.mark.real("envoy", "triton"), pytest.mark.timeout(300)]
TIMES = 3
#: What a server that is starved, swaps or queues is beyond at once, in every round; a machine that is busy otherwise may be twice as
#: slow, and slower in some.
SLOWER, ROUNDS = 5.0, 15


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with servers(tmp_path_factory.mktemp("guard")) as both:
        both.split(5000)
        yield both


@pytest.fixture(autouse=True)
def _nobody_is_harmed(world: Servers) -> Iterator[None]:
    """After every test: the same processes, right answers from each release, and no fault of the script."""
    world.split(5000)
    before = world.processes()
    assert all(len(group) >= 2 for group in before.values())  # the server's and its model's
    yield
    assert world.processes() == before
    with world.parts.envoy.channel() as channel:
        for bp in (0, 10_000):
            world.split(bp)
            assert world.is_well(channel)
    assert "lua" not in Path(world.parts.envoy.log.name).read_text().lower()


def test_hostile_requests_are_told_so_and_slow_nobody_down(world: Servers) -> None:
    world.probe()
    before_s, wrong = world.p99_s(), {}
    for name, one in OVER_HTTP.items():
        for _ in range(TIMES):
            asked = world.asked()
            status, head = world.http(one)
            is_grpc = one.headers.get("content-type") == "application/grpc"
            is_told = (status, head.get("grpc-status")) == (200, "3") if is_grpc else status in one.told
            if not is_told or (one.is_stopped and world.asked() != asked):
                wrong[name] = (status, world.asked() - asked)
    with world.parts.envoy.channel() as channel:
        for name, request in over_grpc(MODEL).items():
            for _ in range(TIMES):
                asked = world.asked()
                code = told(channel, request)
                expected = "RESOURCE_EXHAUSTED" if name == "20 MB" else "INVALID_ARGUMENT"
                if code.name != expected or world.asked() != asked:
                    wrong[f"gRPC: {name}"] = (code.name, world.asked() - asked)
    assert wrong == {}
    assert len(OVER_HTTP) + len(over_grpc(MODEL)) >= 60
    assert any(world.p99_s(1) <= SLOWER * before_s for _ in range(ROUNDS))


def test_hostile_requests_are_nobodys_failure(world: Servers) -> None:
    before = world.counters()
    for one in OVER_HTTP.values():
        world.http(one)
    with world.parts.envoy.channel() as channel:
        for request in over_grpc(MODEL).values():
            told(channel, request)
    after = world.counters()
    assert after.user_errors == before.user_errors
    for digest in (Rig.STABLE, Rig.CANDIDATE):
        one, was = after.by_release[digest], before.by_release.get(digest, ArmCounters())
        assert (one.failed, one.shed) == (was.failed, was.shed)


def test_frames_that_are_compressed_doubled_or_missing_are_refused(world: Servers) -> None:
    asked = world.asked()
    with world.parts.envoy.channel() as channel:
        zeros = message(MODEL, packed(1, 1000)) + raw(b"\0" * 4000)  # gRPC packs nothing that would not get smaller
        assert told(channel, zeros) is grpc.StatusCode.OK
        asked += 1
        assert told(channel, zeros, compression=grpc.Compression.Gzip) is grpc.StatusCode.INVALID_ARGUMENT
        frames = channel.stream_unary(METHOD)
        for sent in ([], [good_message(MODEL)] * 2):
            with pytest.raises(grpc.RpcError) as caught:
                frames(iter(sent), timeout=60, metadata=(("x-sluicegate-model", MODEL),))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert world.asked() == asked


def test_what_is_large_and_sound_passes(world: Servers) -> None:
    many = [float(i) for i in range(200_000)]
    with world.parts.envoy.channel() as channel:
        for data in (b"\0" * 4_000_000, struct.pack("<200000f", *many)):
            request = message(MODEL, packed(1, len(data) // 4)) + raw(data)
            assert told(channel, request) is grpc.StatusCode.OK
    sound = {
        "a megabyte of numbers": OverHttp(tensor(shape=[1, len(many)], data=many)),
        "data in two dimensions": OverHttp(tensor(shape=[2, 2], data=[[1, 2], [3, 4]])),
        "brackets and a shape in a text": OverHttp(GOOD[:-1] + b',"id":"[[[{\\"shape\\":[9999999999]}"}'),
        "an accent in a name": OverHttp(GOOD[:-1] + b',"parameters":{"caf\\u00e9":1}}'),
        "a parameter called shape": OverHttp(GOOD[:-1] + b',"parameters":{"shape":"round"}}'),
        "200 parameters": OverHttp(tensor(parameters={f"p{i}": i for i in range(200)})),
    }
    for name, one in sound.items():
        assert world.http(one)[0] == 200, name
    head = GOOD.replace(b'"data": [1.0, 2.0, 3.0, 4.0]', b'"parameters": {"binary_data_size": 16}')
    binary = OverHttp(head + FOUR, headers={"inference-header-content-length": str(len(head))})
    assert world.http(binary)[0] == 200
    assert world.http(OverHttp(b'{"x": [1, 2, 3, 4]}', call="generate"))[0] == 200


def test_a_release_says_how_large_its_requests_may_be(world: Servers) -> None:
    def limited(arm: Arm) -> Arm:
        return Arm(arm.name, arm.digest, arm.endpoints, arm.max_in_flight, max_request_bytes=10_000)

    world.parts.apply(None, stable=limited(world.arm("r1")))
    asked = world.asked()
    assert world.http(OverHttp(tensor(shape=[1, 4000], data=[0] * 4000)))[0] == 413
    with world.parts.envoy.channel() as channel:
        request = message(MODEL, packed(1, 3000)) + raw(b"\0" * 12_000)
        assert told(channel, request) is grpc.StatusCode.RESOURCE_EXHAUSTED
        named = channel.unary_unary(METHOD)
        with pytest.raises(grpc.RpcError) as caught:  # without the header, the model is known once the message is there
            named(request, timeout=60)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert world.asked() == asked
        assert world.is_well(channel)


def test_the_largest_request_passes_and_one_byte_more_does_not(world: Servers) -> None:
    """The limit is the gateway's: no server knows of it."""
    limit = 10_000
    arm = world.arm("r1")
    world.parts.apply(None, stable=Arm(arm.name, arm.digest, arm.endpoints, arm.max_in_flight, max_request_bytes=limit))
    numbers = message(MODEL, packed(1, 1000)) + raw(b"\0" * 4000)
    framed = 5 + len(numbers) + 3  # a message has a frame of five bytes; an id, its field and its length in two more

    def over_grpc(size: int) -> bytes:
        letters = size - framed
        return numbers + bytes([0x1A, letters % 128 | 0x80, letters // 128]) + b"x" * letters

    def over_http(size: int) -> OverHttp:
        return OverHttp(GOOD[:-1] + b',"id":"' + b"x" * (size - len(GOOD) - 8) + b'"}')

    with world.parts.envoy.channel() as channel:
        for size in (limit - 1, limit):
            assert told(channel, over_grpc(size)) is grpc.StatusCode.OK
            assert len(over_http(size).body) == size and world.http(over_http(size))[0] == 200
        asked = world.asked()
        assert told(channel, over_grpc(limit + 1)) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert world.http(over_http(limit + 1))[0] == 413
        assert world.asked() == asked and world.is_well(channel)
