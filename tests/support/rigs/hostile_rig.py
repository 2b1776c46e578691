"""Two real Tritons behind a real Envoy, stable and candidate, and what tells that somebody harmed them."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from serving.ports import GatewayCounters, RunningServer
from serving.traffic.core.routes import Arm, ServerAddress
from tests.contracts import serving_models as made
from tests.contracts.serving_models import MemoryBlobs, launch_spec
from tests.support.rigs.gateway_rig import MODEL, Rig, rig
from tests.support.rigs.triton_rig import local_launcher
from tests.support.servers.hostile import GOOD, VALUES, OverHttp, good_message

#: Takes any number of values, which is what a shape that lies needs to do harm. 6.5 among them takes a minute.
DOUBLES = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        x = [pb_utils.get_input_tensor_by_name(one, "x").as_numpy() for one in requests]
        if any((one == 6.5).any() for one in x):
            time.sleep(60)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", (2 * one).astype(np.float32))]) for one in x]
"""
METHOD = "/inference.GRPCInferenceService/ModelInfer"


@dataclass
class Servers:
    """A gateway, and behind it r1 (stable) and r2 (candidate), each a server of its own."""

    parts: Rig
    running: dict[str, RunningServer]
    start: Callable[[str], RunningServer]  # another server of this release, loaded

    def arm(self, name: str, digest: str = "") -> Arm:
        one = self.running[name]
        digest = digest or {"r1": Rig.STABLE, "r2": Rig.CANDIDATE}[name]
        return Arm(name, digest, (ServerAddress(one.host, one.http_port, one.grpc_port),), max_in_flight=256)

    def split(self, candidate_bp: int, **changes: Any) -> None:
        self.parts.apply(candidate_bp, stable=self.arm("r1"), candidate=self.arm("r2"), **changes)

    def processes(self) -> dict[str, frozenset[int]]:
        """Every process of each server, by release: the server itself and its models'."""
        return {name: _family(one.pid) for name, one in self.running.items()}

    def asked(self, digest: str = "", what: str = "rq_total") -> int:
        """Attempts so far over HTTP and gRPC, on the servers of one release or of all; of `rq_active`, those under way."""
        rows = [line.split("::") for line in self.parts.envoy.admin("/clusters").splitlines()]
        start = f"{MODEL}_{digest.removeprefix('sha256:')[:12]}"
        return sum(int(row[3]) for row in rows if row[2:3] == [what] and row[0].startswith(start))

    def counters(self) -> GatewayCounters:
        return self.parts.counters()

    def http(self, one: OverHttp) -> tuple[int, dict[str, str]]:
        """(status, head) of the answer; status 0 where there was none."""
        line = HTTPConnection("127.0.0.1", self.parts.envoy.port, timeout=60)
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before it was sent whole
                line.request("POST", f"/v2/models/{MODEL}/{one.call}", one.body, dict(one.headers))
            answer = line.getresponse()
            answer.read()
            return answer.status, {key.lower(): value for key, value in answer.getheaders()}
        except (OSError, HTTPException):
            return 0, {}
        finally:
            line.close()

    def is_well(self, channel: grpc.Channel) -> bool:
        """Whether both protocols get the right answer, from whichever release."""
        answer = self.parts.envoy.http(body=GOOD)
        over_http = answer.status == 200 and json.loads(answer.body)["outputs"][0]["data"] == [2 * v for v in VALUES]
        return over_http and told(channel, good_message(MODEL)) is grpc.StatusCode.OK

    def probe(self, n: int = 150) -> np.ndarray[Any, Any]:
        """Seconds that each of so many good requests took, one after the other on one connection."""
        line, took = HTTPConnection("127.0.0.1", self.parts.envoy.port, timeout=60), []
        for _ in range(n):
            began = time.perf_counter()
            line.request("POST", f"/v2/models/{MODEL}/infer", GOOD)
            answer = line.getresponse()
            answer.read()
            assert answer.status == 200
            took.append(time.perf_counter() - began)
        line.close()
        return np.array(took)

    def p99_s(self, rounds: int = 3) -> float:
        """The best of some rounds: what another program does to one of them says nothing of the servers."""
        return min(float(np.quantile(self.probe(), 0.99)) for _ in range(rounds))


def told(channel: grpc.Channel, request: bytes, **options: Any) -> grpc.StatusCode:
    try:
        channel.unary_unary(METHOD)(request, timeout=60, metadata=(("x-sluicegate-model", MODEL),), **options)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


def _family(eldest: int) -> frozenset[int]:
    """The process and all that came of it, in whichever namespace."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = {eldest} & parents.keys()
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return frozenset(found)


@dataclass
class Tritons:
    """The servers of r1 and r2, loaded."""

    running: dict[str, RunningServer]
    start: Callable[[str], RunningServer]

    def with_gateway(self, parts: Rig) -> Servers:
        return Servers(parts, self.running, self.start)


@contextlib.contextmanager
def tritons(folder: Path) -> Iterator[Tritons]:
    """Both releases, loaded."""
    blobs = MemoryBlobs()
    tensors = {
        "inputs": [{"name": "x", "data_type": "FP32", "dims": [-1]}],
        "outputs": [{"name": "y", "data_type": "FP32", "dims": [-1]}],
    }
    document = made.manifest(
        blobs, MODEL, {"artifact/model.py": DOUBLES.encode()}, made.serving(**tensors), backend="python"
    )
    numbers = itertools.count(1)

    def start(name: str) -> RunningServer:
        number = next(numbers)
        one = launcher.start(launch_spec(document, launcher.folder_for(number, MODEL, name), replica_id=number))
        launcher.await_loaded(one, MODEL, timeout_s=60)
        return one

    with local_launcher(folder, blobs) as launcher:
        yield Tritons({name: start(name) for name in ("r1", "r2")}, start)


@contextlib.contextmanager
def servers(folder: Path) -> Iterator[Servers]:
    """Both releases, loaded, and the gateway with no route yet."""
    (folder / "gateway").mkdir(parents=True)
    with tritons(folder) as both, rig(folder / "gateway") as parts:
        yield both.with_gateway(parts)
