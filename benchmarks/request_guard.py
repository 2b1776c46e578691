"""What the gateway's request guard costs: good requests through a gateway that reads them, and through one that does not.

Run `python -m benchmarks.request_guard [--requests 300] [--deaths 5]`; about two minutes. Two real Envoys before one real Triton, asked in
turn, so that whatever else the machine does meets both alike. Printed for each kind of request: the median and the 99th percentile of both
in ms, the ratio of the medians, and the processor time that one request takes of each gateway, which no other program's load changes.

Then servers that die: users ask stable and a candidate at half the traffic, the candidate is killed, and what they lost is counted.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sluicegate.settings")

import django
import grpc
import numpy as np

django.setup()

from serving.traffic.control_plane.request_guard import MODEL_HEADER  # noqa: E402
from serving.traffic.control_plane.virtual_hosts import RETRY_ON  # noqa: E402
from tests.support.rigs.gateway_rig import MODEL, Rig, Traffic, rig  # noqa: E402
from tests.support.rigs.hostile_rig import METHOD, Servers, servers  # noqa: E402
from tests.support.servers.hostile import GOOD, good_message, message, packed, raw, tensor  # noqa: E402

#: Names the model and reads nothing.
OPEN = f"""
function envoy_on_request(handle)
  handle:headers():replace("{MODEL_HEADER}", "{MODEL}")
end
"""


def no_guard(_: int) -> dict[str, Any]:
    return {
        "name": "request_guard",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
            "default_source_code": {"inline_string": OPEN},
        },
    }


@contextmanager
def gateways(both: Servers, folder: Path) -> Iterator[dict[str, Rig]]:
    """The same servers behind a gateway that reads, and one that does not."""
    folder.mkdir()
    both.parts.apply(None, stable=both.arm("r1"))  # has its listener before the other one is made without a guard
    with mock.patch("serving.traffic.control_plane.listener.request_guard", no_guard), rig(folder) as without:
        without.apply(None, stable=both.arm("r1"))
        yield {"with": both.parts, "without": without}


def http_of(body: bytes, headers: dict[str, str] | None = None) -> Callable[[Rig], Callable[[], None]]:
    def made(parts: Rig) -> Callable[[], None]:
        line = HTTPConnection("127.0.0.1", parts.envoy.port, timeout=30)

        def ask() -> None:
            line.request("POST", f"/v2/models/{MODEL}/infer", body, headers or {})
            answer = line.getresponse()
            answer.read()
            assert answer.status == 200, answer.status

        return ask

    return made


def grpc_of(request: bytes) -> Callable[[Rig], Callable[[], None]]:
    def made(parts: Rig) -> Callable[[], None]:
        call = grpc.insecure_channel(
            f"127.0.0.1:{parts.envoy.port}", options=[("grpc.max_receive_message_length", -1)]
        ).unary_unary(METHOD)
        return lambda: call(request, timeout=30, metadata=(("x-sluicegate-model", MODEL),)) and None

    return made


def kinds() -> dict[str, tuple[float, Callable[[Rig], Callable[[], None]]]]:
    """By name: megabytes, and what asks for it."""
    found: dict[str, tuple[float, Callable[[Rig], Callable[[], None]]]] = {"JSON, 80 B": (0, http_of(GOOD))}
    for n in (10_000, 100_000, 400_000):
        body = tensor(shape=[1, n], data=[1.25 + i % 1000 for i in range(n)])
        found[f"JSON, {len(body) / 1e6:.2g} MB"] = (len(body) / 1e6, http_of(body))
    data = b"\0" * 4_000_000
    head = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,1000000],"parameters":{"binary_data_size":4000000}}]}'
    found["binary, 4 MB"] = (4, http_of(head + data, {"inference-header-content-length": str(len(head))}))
    found["gRPC, 40 B"] = (0, grpc_of(good_message(MODEL)))
    found["gRPC, 4 MB"] = (4, grpc_of(message(MODEL, packed(1, 1_000_000)) + raw(data)))
    return found


def cpu_s(parts: Rig) -> float:
    """Processor seconds that the gateway has used so far."""
    process = parts.envoy._process
    assert process is not None
    times = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


def cost(both: Servers, folder: Path, requests: int) -> None:
    print(
        "| request | without, p50 / p99 ms | with, p50 / p99 ms | ratio of p50 | CPU of the gateway without / with, ms |"
    )
    print("|---|---|---|---|---|")
    with gateways(both, folder) as found:
        for name, (megabytes, made) in kinds().items():
            asks = {which: made(parts) for which, parts in found.items()}
            took: dict[str, list[float]] = {which: [] for which in found}
            rounds = requests if megabytes < 0.5 else max(requests // 6, 20)
            spent = {which: -cpu_s(parts) for which, parts in found.items()}
            for turn in range(rounds + 5):
                for which in ("with", "without") if turn % 2 else ("without", "with"):
                    began = time.perf_counter()
                    asks[which]()
                    if turn >= 5:
                        took[which].append(1000 * (time.perf_counter() - began))
            p50 = {which: float(np.median(values)) for which, values in took.items()}
            p99 = {which: float(np.quantile(values, 0.99)) for which, values in took.items()}
            cpu = {which: 1000 * (spent[which] + cpu_s(parts)) / (rounds + 5) for which, parts in found.items()}
            print(
                f"| {name} | {p50['without']:.2f} / {p99['without']:.1f} | {p50['with']:.2f} / {p99['with']:.1f} "
                f"| {p50['with'] / p50['without']:.2f} | {cpu['without']:.2f} / {cpu['with']:.2f} |",
                flush=True,
            )


#: What was tried again before: any connection that broke, too.
BEFORE = "5xx,reset,connect-failure,refused-stream,retriable-headers,retriable-status-codes"


def deaths(both: Servers, times: int, retry_on: str) -> str:
    """Kills the candidate's server under traffic, so often; what users lost."""
    lost, asked = Counter[str](), 0
    with mock.patch("serving.traffic.control_plane.virtual_hosts.RETRY_ON", retry_on):
        for _ in range(times):
            both.split(5000)
            traffic = Traffic(both.parts.envoy, clients=8, pause_s=0.0, body=GOOD, message=good_message(MODEL))
            time.sleep(1.0)
            os.kill(both.running["r2"].pid, signal.SIGKILL)
            time.sleep(1.0)
            found = traffic.stop()
            asked += found.total()
            lost.update({what: n for what, n in found.items() if what})
            both.running["r2"] = both.start("r2")
    return f"{times} deaths, 8 users at once, {asked} requests: lost {dict(lost) or 'none'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--deaths", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, servers(Path(folder) / "servers") as both:
        if asked.requests:
            cost(both, Path(folder) / "open", asked.requests)
        if asked.deaths:
            print("\nwhat broke is tried again:", deaths(both, asked.deaths, BEFORE), flush=True)
            print("it is not:", deaths(both, asked.deaths, RETRY_ON), flush=True)


if __name__ == "__main__":
    main()
