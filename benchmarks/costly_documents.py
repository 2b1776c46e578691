"""Cost of the costliest document of each door, for the web process and for callers of other addresses.

Run `python -m benchmarks.costly_documents [--out FILE]`; about three minutes on a stack of its own.
`tests/support/worlds/costly_documents.py` has the documents. `cpu` is the processor time of the web process for one
request, from /proc. Then three callers repeat a document while another asks for `GET /me`. The exit code is 1 if a
document took more than MOST_CPU_S.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx

from sluicegate.cli import model
from sluicegate.client import Client
from sluicegate.stack import Stack, running
from tests.support.worlds.costly_documents import BODIES, MODEL, RAW

#: Promised for each request, in seconds.
MOST_CPU_S = 1.0
_BESIDE_S, _BESIDE = 10.0, ("unknown keys, allowed", "golden set", "golden set of mistakes")
_CONTRACT = {
    "inputs": [{"name": "text", "data_type": "BYTES", "dims": [1]}],
    "outputs": [{"name": "probabilities", "data_type": "FP32", "dims": [2]}],
}
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def asked(client: httpx.Client, name: str) -> httpx.Response:
    if name in RAW:
        door, data = RAW[name]
        return client.post(f"{MODEL}/{door}", content=data, headers={"Content-Type": "text/plain"})
    method, url, body = BODIES[name]
    headers = {"Content-Type": "application/json", "If-Match": "1"}
    return client.request(method, url, content=json.dumps(body).encode(), headers=headers)


def beside(stack: Stack, client: httpx.Client, name: str) -> float:
    """The 95th percentile of `GET /me` while three callers repeat the document, in seconds."""
    ends = time.monotonic() + _BESIDE_S

    def repeat() -> None:
        with caller(stack) as own:
            while time.monotonic() < ends:
                asked(own, name)

    threads = [threading.Thread(target=repeat) for _ in range(3)]
    for thread in threads:
        thread.start()
    times = []
    while time.monotonic() < ends:
        began = time.monotonic()
        client.get("/api/v1/me").raise_for_status()
        times.append(time.monotonic() - began)
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    return quantiles(times, n=20)[-1]


def caller(stack: Stack) -> httpx.Client:
    token = stack.admin_token
    return httpx.Client(base_url=stack.base_url, headers={"Authorization": f"Bearer {token}"}, timeout=120)


def rows() -> list[tuple[str, Any, float, float]]:
    """(document, status, processor time in seconds, wall time in seconds), then the rows of `GET /me` with its p95 as the last."""
    with tempfile.TemporaryDirectory(prefix="sluicegate-costly-") as folder, running(Path(folder) / "state") as stack:
        with Client(stack.base_url, stack.admin_token) as admin:
            admin.post("/teams", {"slug": "vision", "title": "Vision"})
            document = {"slug": "sentiment", "team": "vision", "title": "Sentiment", "contract": _CONTRACT}
            model.create(admin, document, None)
        pid, found = stack.pid_of("web"), list[tuple[str, Any, float, float]]()
        with caller(stack) as client:
            client.get("/api/v1/me").raise_for_status()
            asked(client, "long text")
            for name in (*BODIES, *RAW):
                before, began = cpu_s(pid), time.monotonic()
                answer = asked(client, name)
                found.append((name, answer.status_code, cpu_s(pid) - before, time.monotonic() - began))
            for name in _BESIDE:
                before = cpu_s(pid)
                p95 = beside(stack, client, name)
                found.append((f"GET /me beside 3 × {name}", 200, cpu_s(pid) - before, p95))
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the table there")
    to = parser.parse_args().out
    found = rows()
    lines = ["| document | status | CPU, s | wall, s |", "|---|---|---|---|"]
    lines += [f"| {name} | {status} | {cpu:.2f} | {wall:.2f} |" for name, status, cpu, wall in found]
    text = "\n".join(lines) + "\n"
    print(text)
    if to:
        to.write_text(text)
    return int(any(cpu > MOST_CPU_S for name, _, cpu, _ in found if "/me" not in name))


if __name__ == "__main__":
    sys.exit(main())
