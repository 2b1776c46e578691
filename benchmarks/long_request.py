"""A request close to its model's time limit, then a frozen server, on a whole local stack.

Run `python -m benchmarks.long_request [--seconds N]`; N seconds and about three minutes. The model allows requests of 600 s. Its
code sleeps for the request's first value, in seconds, on the only instance. A request of N seconds goes through the gateway.
Then the server's process is stopped, and the time counts until the agent takes the server away: 30 s and a look for
the last server of stable (docs/time-limits.md).

The exit code is 1 if an answer was wrong, the server was lost while it worked, or the freeze was not found in MOST_FROZEN_S.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psycopg

from serving.servers.adapters.triton import TritonServer
from sluicegate.cli import release
from sluicegate.stack import Stack, running
from tests.flows.tiny import MODEL, Shop, model_document, write_release

ALLOWED_S, MOST_FROZEN_S = 600, 45.0
#: Answers y = 2x. If the first value is above 100, it sleeps for that many seconds first.
WAITS = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            if x[0, 0] > 100:
                time.sleep(float(x[0, 0]))
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", (2 * x).astype(np.float32))]))
        return answers
"""


def lost(stack: Stack) -> list[str]:
    """Reasons for which servers were taken away, the oldest first."""
    with psycopg.connect(stack.database_url, autocommit=True) as session:
        rows = session.execute("SELECT reason FROM ledger_event WHERE verb = 'server.lost' ORDER BY seq")
        return [str(reason) for (reason,) in rows]


def server_pid(stack: Stack) -> int:
    with psycopg.connect(stack.database_url, autocommit=True) as session:
        rows = session.execute("SELECT pid FROM serving_server WHERE ended_at IS NULL AND pid > 0 ORDER BY id DESC")
        return int(rows.fetchall()[0][0])


def by_http(stack: Stack, seconds: float) -> bool:
    x = [seconds, 1.0, 2.0, 3.0]
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": x}]}
    answer = httpx.post(f"{stack.gateway_http}/v2/models/{MODEL}/infer", json=body, timeout=ALLOWED_S + 30)
    return answer.status_code == 200 and answer.json()["outputs"][0]["data"] == [2 * value for value in x]


def by_grpc(stack: Stack, seconds: float) -> bool:
    host, _, port = stack.gateway_grpc.rpartition(":")
    gateway, x = TritonServer(host, 0, int(port)), np.array([[seconds, 1, 2, 3]], np.float32)
    try:
        return bool((gateway.infer(MODEL, {"x": x}, timeout_s=ALLOWED_S + 30).outputs["y"] == 2 * x).all())
    finally:
        gateway.close()


def serves(shop: Shop) -> None:
    """Brings the model into production, with the time that it allows."""
    document: dict[str, Any] = model_document(1)
    document["objectives"] = {"errors_max_frac": 0.01, "timeout_s": ALLOWED_S, "attempt_timeout_s": ALLOWED_S}
    shop.offer(document)
    folder = write_release(shop.folder / "waits", shop.image, note="waits", code=WAITS)
    name = shop.seal(folder)
    release.waive(shop.manager, name, "read for this benchmark")
    rollout = shop.start(shop.pass_gates(name))
    shop.until_acknowledged(rollout)
    deadline = time.monotonic() + 300
    while shop.view(rollout)["state"] != "promoted":
        assert by_http(shop.stack, 1.0) and time.monotonic() < deadline, shop.view(rollout)
        time.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=590.0, help="how long the request waits (above 100)")
    asked = parser.parse_args()
    with ExitStack() as until_the_end:
        folder = Path(until_the_end.enter_context(tempfile.TemporaryDirectory(prefix="sluicegate-long-")))
        stack = until_the_end.enter_context(running(folder / "state"))
        shop = until_the_end.enter_context(Shop(stack, folder, step_s=1, has_model=False))
        serves(shop)
        began, pid = time.monotonic(), server_pid(stack)
        pool = until_the_end.enter_context(ThreadPoolExecutor(1))
        waiting = pool.submit(by_http, stack, asked.seconds)
        is_right, took_s = waiting.result(), time.monotonic() - began
        is_kept = not lost(stack) and server_pid(stack) == pid
        print(
            f"HTTP, {asked.seconds:g} s: {'right' if is_right else 'WRONG'} after {took_s:.1f} s; server kept: {is_kept}"
        )
        is_short_right = by_grpc(stack, 2.0)
        print(f"gRPC after it: {'right' if is_short_right else 'WRONG'}", flush=True)
        began = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        while not (reasons := lost(stack)):
            if time.monotonic() - began > 10 * MOST_FROZEN_S:
                break
            time.sleep(0.1)
        frozen_s = time.monotonic() - began
        print(f"Frozen: taken away after {frozen_s:.1f} s: {reasons[:1]}")
    return int(not (is_right and is_kept and is_short_right and frozen_s <= MOST_FROZEN_S))


if __name__ == "__main__":
    sys.exit(main())
