"""A real Envoy mirrors to a prober that is well, frozen, or gone: what is copied, and that users never notice."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from serving.environments.core.addresses import Address
from serving.traffic.adapters.envoy_counters import EnvoyCounters
from serving.traffic.control_plane.clusters import MAX_MIRRORED, MIRROR_TIMEOUT_S, PROBER_CLUSTER
from serving.traffic.core.request_limits import Limits
from serving.traffic.core.routes import Arm, Prober
from tests.support.rigs.gateway_rig import FORCES, MODEL, Answer, Rig, Traffic, free_port, grpc_infer, rig, wait_until

pytestmark = [pytest.mark.real("envoy"), pytest.mark.timeout(300)]

ROUNDS = 4
#: Stands where the prober stands, in a process of its own that can be frozen: notes each copy and answers it with nothing.
SINK = """
import asyncio, json, sys

async def serve(reader, writer):
    try:
        while head := await reader.readuntil(b"\\r\\n\\r\\n"):
            line, *rest = head.decode().strip().split("\\r\\n")
            headers = dict(one.split(": ", 1) for one in rest)
            if "content-length" in headers:
                size = len(await reader.readexactly(int(headers["content-length"])))
            else:
                size = 0
                while chunk := int(await reader.readline(), 16):
                    size += len(await reader.readexactly(chunk + 2)) - 2
                await reader.readline()
            print(json.dumps({"path": line.split()[1], "headers": headers, "size": size}), flush=True)
            writer.write(b"HTTP/1.1 204 No Content\\r\\n\\r\\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]), limit=2**27)
    await server.serve_forever()

asyncio.run(main())
"""


@dataclass
class Sink:
    port: int
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def address(self) -> Prober:
        return Prober(Address("127.0.0.1", self.port))

    def copies(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def is_open(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.2):
            return True
        return False

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[Sink]:
    port, log = free_port(), tmp_path / "copies"
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-c", SINK, str(port)], stdout=out)
    made = Sink(port, log, process)
    try:
        wait_until(made.is_open, "the sink's port")
        yield made
    finally:
        made.kill()


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path) as built:
        yield built


def copied(parts: Rig) -> int:
    """Copies that the gateway has begun to send since it knows the prober."""
    rows = [line.split("::") for line in parts.envoy.admin("/clusters").splitlines()]
    return sum(int(row[3]) for row in rows if row[0] == PROBER_CLUSTER and row[2:3] == ["rq_total"])


def mirror(parts: Rig, sink: Sink, mirror_bp: int = 10_000, *, candidate_bp: int = 0, **changes: Any) -> None:
    parts.apply(candidate_bp, mirror_bp=mirror_bp, prober=sink.address, **changes)


def seconds(parts: Rig, calls: int, body: bytes = b"{}", *, clients: int = 1) -> np.ndarray[Any, Any]:
    """How long each of `calls` requests took, which are binary: JSON may not be as large. Asserts that all were answered."""
    headers = {"inference-header-content-length": "0"}
    with ThreadPoolExecutor(clients) as pool:
        answers: list[Answer] = list(pool.map(lambda _: parts.envoy.http(body=body, headers=headers), range(calls)))
    assert {answer.status for answer in answers} == {200}
    return np.array([answer.seconds for answer in answers])


def test_both_protocols_are_copied_whole_with_the_number_of_the_route(parts: Rig, sink: Sink) -> None:
    mirror(parts, sink, candidate_bp=5000, route_id=77)
    body = json.dumps({"inputs": "x" * 300_000}).encode()
    forged = {"x-sluicegate-mirror": "1"}
    assert parts.envoy.http(body=body, headers=forged).status == 200
    with parts.envoy.channel() as channel:
        assert grpc_infer(channel)[0] is grpc.StatusCode.OK
    over_http, over_grpc = wait_until(lambda: len(found := sink.copies()) == 2 and found, "two copies")
    assert (over_http["path"], over_http["size"]) == (f"/v2/models/{MODEL}/infer", len(body))
    assert over_grpc["path"] == "/inference.GRPCInferenceService/ModelInfer"
    assert over_grpc["size"] == 5 + 2 + len(MODEL)  # frame, field 1, the model's name
    assert {one["headers"]["x-sluicegate-mirror"] for one in (over_http, over_grpc)} == {"77"}
    assert {one["headers"]["x-sluicegate-model"] for one in (over_http, over_grpc)} == {MODEL}


def test_forced_requests_are_not_copied(parts: Rig, sink: Sink) -> None:
    mirror(parts, sink, allows_forced=True)
    assert parts.envoy.http(headers={**FORCES, "x-sluicegate-release": "r2"}).release == "r2"
    assert parts.envoy.http().release == "r1"
    wait_until(sink.copies, "the copy")
    parts.envoy.flushed()
    assert copied(parts) == len(sink.copies()) == 1


def test_the_share_is_kept_and_can_be_changed(parts: Rig, sink: Sink) -> None:
    calls = 600
    for mirror_bp in (2000, 0, 5000):
        mirror(parts, sink, mirror_bp)
        before = len(sink.copies())
        seconds(parts, calls, clients=4)
        wait_until(lambda: len(sink.copies()) >= copied(parts), "all copies have come")
        share = mirror_bp / 10_000
        deviation = math.sqrt(calls * share * (1 - share))
        assert abs(len(sink.copies()) - before - calls * share) <= 4.5 * deviation


def test_copies_are_counted_for_no_release(parts: Rig, sink: Sink) -> None:
    mirror(parts, sink, candidate_bp=5000)
    seconds(parts, 100)
    wait_until(lambda: len(sink.copies()) == 100, "all copies have come")
    parts.envoy.flushed()
    by_model = EnvoyCounters().read(gateway="gateway-1", admin_url=parts.envoy.admin_url, timeout_s=20)
    assert set(by_model) == {MODEL}
    counters = by_model[MODEL]
    assert sum(arm.timed for arm in counters.by_release.values()) == 100
    assert set(counters.by_release) <= {Rig.STABLE, Rig.CANDIDATE}
    assert (counters.user_requests, counters.user_errors) == (100, 0)


def test_turning_it_on_and_off_loses_no_request_and_the_cluster_comes_and_goes(parts: Rig, sink: Sink) -> None:
    def has_cluster() -> bool:
        return f"{PROBER_CLUSTER}::" in parts.envoy.admin("/clusters")

    parts.apply(0)
    assert not has_cluster()
    traffic = Traffic(parts.envoy)
    for mirror_bp in (10_000, 0, 2500, 10_000, 0):
        mirror(parts, sink, mirror_bp)
        traffic.go_on()
    assert set(traffic.stop()) == {""}
    assert sink.copies()
    wait_until(lambda: not has_cluster(), "the unused cluster is gone")


def test_without_a_prober_the_route_is_published_and_nothing_is_mirrored(parts: Rig) -> None:
    parts.apply(5000, mirror_bp=10_000)
    seconds(parts, 20)
    assert PROBER_CLUSTER not in parts.envoy.admin("/config_dump")


def test_several_models_share_one_prober(parts: Rig, sink: Sink) -> None:
    parts.apply(0)
    first = parts.route(0, mirror_bp=10_000, prober=sink.address)
    other = parts.route(0, mirror_bp=10_000, prober=sink.address, model="other", route_id=2)
    parts.publish(first, other)
    wait_until(lambda: parts.acked(other.generation), "both models")
    parts.envoy.http()
    parts.envoy.http(path="/v2/models/other/infer")
    found = wait_until(lambda: len(copies := sink.copies()) == 2 and copies, "two copies")
    assert [one["headers"]["x-sluicegate-mirror"] for one in found] == ["1", "2"]


@pytest.mark.parametrize("fault", ["frozen", "gone"])
@pytest.mark.parametrize("size", [2, 1_000_000, 8_000_000], ids=["2 B", "1 MB", "8 MB"])
def test_a_prober_that_is_frozen_or_gone_costs_users_nothing(parts: Rig, sink: Sink, fault: str, size: int) -> None:
    body = b"x" * size
    mirror(parts, sink)
    seconds(parts, 5, body)
    wait_until(sink.copies, "a copy")
    (sink.freeze if fault == "frozen" else sink.kill)()
    # What it cost, it would cost in every round; the noise of a shared machine is far below what one awaited copy would cost.
    assert any(costs_nothing(parts, sink, body) for _ in range(ROUNDS))


def costs_nothing(parts: Rig, sink: Sink, body: bytes) -> bool:
    """Whether users are answered as fast while they are mirrored as while they are not."""
    calls = 3 * MAX_MIRRORED
    mirror(parts, sink, 0)
    seconds(parts, 5, body)
    plain = seconds(parts, calls, body)
    mirror(parts, sink)
    faulty = seconds(parts, calls, body)
    is_median_well = np.median(faulty) < 2 * np.median(plain) + 0.010
    return bool(is_median_well and np.quantile(faulty, 0.9) < np.quantile(plain, 0.9) + MIRROR_TIMEOUT_S / 2)


def test_traffic_through_a_freezing_prober_is_never_lost(parts: Rig, sink: Sink) -> None:
    mirror(parts, sink, candidate_bp=5000, limits=Limits(timeout_s=5.0, attempt_timeout_s=2.0))
    traffic = Traffic(parts.envoy, clients=8)
    wait_until(lambda: len(sink.copies()) > 50, "copies before it freezes")
    sink.freeze()
    time.sleep(4 * MIRROR_TIMEOUT_S)
    traffic.go_on(100)
    frozen = len(sink.copies())
    sink.process.send_signal(signal.SIGCONT)
    wait_until(lambda: len(sink.copies()) > frozen + 50, "copies after it thawed")
    sink.kill()
    time.sleep(2 * MIRROR_TIMEOUT_S)
    traffic.go_on(100)
    assert set(traffic.stop()) == {""}
    assert {release for _, release, _ in traffic.calls} == {"r1", "r2"}


def test_a_name_that_does_not_resolve_holds_up_no_route(parts: Rig) -> None:
    parts.apply(5000, mirror_bp=10_000, prober=Prober(Address("prober.invalid", 18010)))
    seconds(parts, 20)
    parts.apply(0, stable=Arm("r2", Rig.CANDIDATE, (parts.candidate.endpoint,)), candidate=None)
    assert parts.envoy.http().release == "r2"
