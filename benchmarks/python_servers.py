"""What exceptions in a candidate's model cost users where MLServer or KServe serves it, which run models in Python.

Run `python -m benchmarks.python_servers [--requests 2400] [--clients 6] [--only kserve]`. A real Envoy before a stub of stable and a real
server of the candidate, which has half of the traffic; its model raises at every second request. *Lost* are answers that are no 200 or
OK; *others'* those of them to requests at which the model does not raise. *Charged* are the candidate's failed first attempts, as the
engine reads them. Ends with 1 where a case loses what it need not, or charges nothing where it should (`Case`).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sluicegate.settings")

import django

django.setup()

import grpc  # noqa: E402
import numpy as np  # noqa: E402
from tritonclient.grpc import service_pb2  # noqa: E402

from serving.traffic.core.request_limits import Limits  # noqa: E402
from serving.traffic.core.routes import Arm  # noqa: E402
from tests.contracts import serving_models as made  # noqa: E402
from tests.support.rigs.gateway_rig import MODEL, UNBOUNDED, Rig, grpc_infer, rig  # noqa: E402
from tests.support.rigs.kserve_rig import kserve  # noqa: E402
from tests.support.rigs.mlserver_rig import mlserver  # noqa: E402
from tests.support.rigs.parts import absent  # noqa: E402

SERVERS = {"mlserver": mlserver, "kserve": kserve}
#: What an input of these values makes the models of the rigs raise.
RAISES = {
    ("mlserver", 500): "MLServerError",
    ("mlserver", 501): "RuntimeError",
    ("kserve", 500): "RuntimeError",
    ("kserve", 501): "kserve.errors.InferenceError",
}


@dataclass(frozen=True)
class Case:
    server: str
    value: int
    protocol: str
    retries_resets: bool

    @property
    def may_lose(self) -> bool:
        """Where the server ends the connection behind an answer, and nobody asks again; or where it blames its callers."""
        ends = self.protocol == "HTTP" and RAISES[self.server, self.value] == "RuntimeError" and not self.retries_resets
        return ends or self.is_uncharged

    @property
    def is_uncharged(self) -> bool:
        return (self.server, self.value, self.protocol) == ("kserve", 501, "gRPC")


@dataclass
class Found:
    lost: int = 0
    of_others: int = 0
    charged: int = 0


def measure(case: Case, requests: int, clients: int) -> Found:
    found, counting = Found(), threading.Lock()
    with (
        tempfile.TemporaryDirectory() as folder,
        rig(Path(folder)) as parts,
        SERVERS[case.server](Path(folder) / "server", MODEL, made.serving()) as real,
    ):
        endpoint = replace(parts.candidate.endpoint, http_port=real.http_port, grpc_port=real.grpc_port)
        candidate = Arm("r2", Rig.CANDIDATE, (endpoint,), UNBOUNDED)
        patient = Limits(timeout_s=60.0, attempt_timeout_s=60.0)  # a slow answer is no failure here
        parts.apply(5_000, candidate=candidate, retries_resets=case.retries_resets, limits=patient)

        def ask(client: int) -> None:
            with parts.envoy.channel() as channel:
                for at in range(requests // clients):
                    raises = (at + client) % 2 == 0
                    is_well = answered(parts, channel, case.protocol, case.value if raises else 1)
                    with counting:
                        found.lost += not is_well
                        found.of_others += not is_well and not raises

        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(ask, range(clients)))
        found.charged = parts.counters().by_release[Rig.CANDIDATE].failed
    return found


def is_sound(case: Case, found: Found) -> bool:
    return (not found.lost or case.may_lose) and bool(found.charged) != case.is_uncharged


def answered(parts: Rig, channel: grpc.Channel, protocol: str, value: float) -> bool:
    if protocol == "HTTP":
        tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [value] * 4}
        body = json.dumps({"inputs": [tensor]}).encode()
        return parts.envoy.http(headers={"Content-Type": "application/json"}, body=body).status == 200
    request = service_pb2.ModelInferRequest(
        model_name=MODEL, raw_input_contents=[np.full((1, 4), value, np.float32).tobytes()]
    )
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    return grpc_infer(channel, request=request.SerializeToString())[0] is grpc.StatusCode.OK


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2_400)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--only", default="", help="one server: mlserver or kserve")
    asked = parser.parse_args()
    print("| server | its model raises | protocol | `retry_on_reset` | lost | others' | charged | |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    logging.disable(logging.WARNING)
    wrong = 0
    for (server, value), raises in RAISES.items():
        if asked.only not in ("", server):
            continue
        if why := absent(server):
            print(f"| {server} | left out: {why} | | | | | | |")
            continue
        for protocol, again in (("HTTP", False), ("HTTP", True), ("gRPC", False)):
            case = Case(server, value, protocol, again)
            found = measure(case, asked.requests, asked.clients)
            is_right = is_sound(case, found)
            wrong += not is_right
            print(
                f"| {server} | {raises} | {protocol} | {'yes' if again else 'no'} | {found.lost} | {found.of_others} | {found.charged} "
                f"| {'' if is_right else 'WRONG'} |",
                flush=True,
            )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
