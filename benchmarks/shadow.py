"""What shadowing finds and what it costs, on the real stack: Triton, Envoy, the prober, PostgreSQL.

Run `python -m benchmarks.shadow [--rate 22] [--sample 20] [--seconds 60] [--per-s 20]`. A stable release serves users at a
steady rate. Then, one after the other, two candidates are shadowed (no user is served by them): the same graph once more,
and code that answers one input in ten subtly wrong. Printed for each: comparisons a second, how many were wrong, the processor time of
the prober and of everything else, and the users' latencies beside those without any rollout.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from django.utils.crypto import salted_hmac

from ledger.adapters.deadline_http import DeadlineConnection
from sluicegate.cli import rollout
from sluicegate.stack import Stack, running
from tests.flows.tiny import ENVIRONMENT, Shop, Users

#: The users' first number goes through 0 … 19: two of the twenty are off by one in a hundred.
SUBTLY_WRONG = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            y = (2 * x).astype(np.float32)
            y[(x[:, 0] % 10 == 3) & (x[:, 3] == 3), 1] *= 1.01
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]))
        return answers
"""
#: Shadowing that lasts, with bars that nothing passes: what is wrong is counted, and nothing is decided.
STAGE = {"min_s": 600, "min_samples": 100_000, "deadline_s": 86_400}
GUARD = {
    "indicator": "wrong",
    "max_frac": 0.9,
    "roll_back_over": {"ratio": 100, "plus_frac": 1},
    "promote_within": {"ratio": 1, "plus_frac": 0.01},
}


class Timed(Users):
    """Users whose latencies are noted."""

    def __init__(self, stack: Stack, *, rate_per_s: float) -> None:
        super().__init__(stack, rate_per_s=rate_per_s)
        self.latencies_ms: list[float] = []

    def _ask(self, client: httpx.Client, x: list[float]) -> None:
        began = time.perf_counter()
        super()._ask(client, x)
        self.latencies_ms.append((time.perf_counter() - began) * 1000)


def cpu_s(pid: int) -> float:
    """Processor seconds of a process so far. Source: proc_pid_stat(5), utime and stime."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    """What is this process's own share of memory. Source: proc_pid_smaps_rollup, Pss."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


class Watch:
    """One stretch of traffic: what users saw and what the prober did meanwhile."""

    def __init__(self, stack: Stack, users: Timed) -> None:
        self.stack, self.users = stack, users

    def status(self) -> dict[str, int]:
        secret = Path(self.stack.env["SLUICEGATE_SECRET_KEY_FILE"]).read_text().strip()
        known = salted_hmac("sluicegate.mirror", "gateway", secret=secret, algorithm="sha256").hexdigest()
        with DeadlineConnection(self.stack.env["SLUICEGATE_PROBER_ADDRESS"], time.monotonic() + 5) as line:
            _, body = line.ask("GET", "/status", headers={"x-sluicegate-mirror-secret": known})
        found: dict[str, int] = json.loads(body)["seen"]
        return found

    def over(self, seconds: float) -> dict[str, Any]:
        pids = {name: self.stack.pid_of(name) for name in ("prober", "envoy")}
        began, cpu, seen = time.monotonic(), {name: cpu_s(pid) for name, pid in pids.items()}, self.status()
        self.users.latencies_ms.clear()
        time.sleep(seconds)
        took, after = time.monotonic() - began, self.status()
        latencies = np.array(self.users.latencies_ms)
        return {
            "requests_per_s": round(len(latencies) / took, 2),
            "user_p50_ms": round(float(np.median(latencies)), 2),
            "user_p99_ms": round(float(np.quantile(latencies, 0.99)), 2),
            "compared_per_s": round((after.get("shadow_compared", 0) - seen.get("shadow_compared", 0)) / took, 2),
            "prober_cpu_pct": round(100 * (cpu_s(pids["prober"]) - cpu["prober"]) / took, 2),
            "envoy_cpu_pct": round(100 * (cpu_s(pids["envoy"]) - cpu["envoy"]) / took, 2),
            "prober_memory_mb": round(memory_mb(pids["prober"])),
            "dropped": {
                k: v - seen.get(k, 0)
                for k, v in after.items()
                if k not in {"taken", "shadow_compared"} and v > seen.get(k, 0)
            },
        }


@contextmanager
def shadowed(shop: Shop, name: str, sample_pct: float) -> Iterator[int]:
    """A rollout of this release that is shadowing, and is taken back at the end."""
    policy = {"preset": "demo", "shadow": {"sample_pct": sample_pct, **STAGE}, "guards": [GUARD], "deadline_s": 86_400}
    begun = shop.author.start_rollout(name, environment=ENVIRONMENT, policy=policy)
    one = int(begun["id"])
    shop.until(one, "shadowing")
    yield one
    rollout.act(shop.author, one, "abort", reason="The measurement is over.")
    shop.until(one, "rolled_back")


def wrong(shop: Shop, one: int) -> dict[str, Any]:
    """What the engine has of the guard `wrong` in this stage."""
    (guard,) = [guard for guard in shop.view(one)["guards"] if guard["name"] == "wrong"]
    return {
        key: guard[key]
        for key in guard
        if key in {"bad_candidate", "candidate", "bad_stable", "stable", "rate_candidate", "rate_stable"}
    }


def measure(stack: Stack, folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with Shop(stack, folder, step_s=1) as shop, Timed(stack, rate_per_s=asked.rate) as users:
        first = shop.start(shop.prove("first"))
        shop.until(first, "promoted")
        users.failures.clear()  # before the first release there was nobody to answer
        watch = Watch(stack, users)
        found["no rollout"] = watch.over(asked.seconds)
        for label, code in (("same graph", ""), ("subtly wrong", SUBTLY_WRONG)):
            name = shop.prove(label.replace(" ", "-"), code=code)
            with shadowed(shop, name, asked.sample) as one:
                time.sleep(5)
                found[label] = {**watch.over(asked.seconds), **wrong(shop, one)}
        found["users"] = {"requests": len(users.answers), "failures": users.failures}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=22, help="users' requests per second")
    parser.add_argument("--sample", type=float, default=20, help="mirrored share, percent")
    parser.add_argument("--seconds", type=float, default=60, help="of each stretch")
    parser.add_argument("--per-s", type=float, default=20, help="the prober's most comparisons a second")
    asked = parser.parse_args()
    env = {"SLUICEGATE_PROBER_PER_S": str(asked.per_s)}
    with (
        tempfile.TemporaryDirectory(prefix="sluicegate-shadow-") as name,
        running(Path(name) / "state", env=env) as stack,
    ):
        found = measure(stack, Path(name), asked)
    for label, values in found.items():
        print(f"{label}: {json.dumps(values)}")
    if found["users"]["failures"]:
        raise SystemExit("Users saw failures.")


if __name__ == "__main__":
    main()
