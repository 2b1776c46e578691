"""How long a candidate that breaks under users keeps its traffic, on the real stack: Triton, Envoy, PostgreSQL, Valkey.

Run `python -m benchmarks.rollback_time [--runs N] [--fault raise|die]`. Each run pushes a new release that passes its gates, starts a
rollout of it, lets it answer users for two seconds, and then has it fail every one of them: `raise` in its code, `die` with
its model process. The clock is the product's own (docs/rollouts.md); it begins at the last reading before the first bad
attempt. `last good → zero` is seen from outside: from when the candidate's last right answer was asked for. `server lost →
decision` begins when the agent says that a server does not answer, if it does.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from sluicegate.cli import rollout
from sluicegate.stack import Stack, running
from tests.flows.tiny import ENVIRONMENT, Shop, Users

#: Only users send …, 1, 2, 3: probes and gates meet a model that is right.
CODE = """
import os, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.breaks_at = None

    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            if (x[:, 1:] == [1, 2, 3]).all(axis=1).any():
                self.breaks_at = self.breaks_at or time.monotonic() + {good_s}
                if time.monotonic() > self.breaks_at:
                    {fault}
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", (2 * x).astype(np.float32))]))
        return answers
"""
GOOD_S = 2.0
FAULTS = {"raise": 'raise ValueError("broken in run {run}")', "die": "os._exit({run})"}
COLUMNS = {
    "fault_to_zero_s": "fault → zero weight, s",
    "last_good_to_zero_s": "last good → zero weight, s",
    "decision_to_zero_s": "decision → zero weight, s",
    "lost_to_decision_s": "server lost → decision, s",
    "bad_candidate_attempts": "bad attempts",
}


def measure(
    stack: Stack, folder: Path, *, runs: int, fault: str, weight_pct: float, rate_per_s: float
) -> dict[str, Any]:
    """The figures of every run, and the users' requests and failures over all of them."""
    with Shop(stack, folder, step_s=1) as shop:
        first = shop.start(shop.prove("first"))
        shop.until(first, "shifting")
        shop.until_acknowledged(first)
        with Users(stack, rate_per_s=rate_per_s) as users:
            shop.until(first, "promoted")
            rows = [one_run(shop, users, run, fault=fault, weight_pct=weight_pct) for run in range(1, runs + 1)]
    return {"runs": rows, "users": {"requests": len(users.answers), "failures": users.failures}}


def one_run(shop: Shop, users: Users, run: int, *, fault: str, weight_pct: float) -> dict[str, Any]:
    """One broken release, from its push to its rollback."""
    code = CODE.format(good_s=GOOD_S, fault=FAULTS[fault].format(run=run))
    name = shop.prove(f"broken-{run}", code=code)
    stage = {"min_s": 60, "min_samples": 30, "deadline_s": 120}
    policy = {"preset": "demo", "steps": [{"weight_pct": weight_pct, **stage}]}
    begun = rollout.start(shop.author, name, environment=ENVIRONMENT, policy=policy)
    begun_at = time_of(begun["created_at"])
    seen = shop.until(int(begun["id"]), "rolled_back")
    clock, zero_at, decided_at = seen["clock"], time_of(seen["clock"]["zero_at"]), time_of(seen["clock"]["decided_at"])
    good = [asked for answered, asked in users.answers if answered == seen["candidate"]["name"] and asked <= zero_at]
    lost = [time_of(one["at"]) for one in shop.author.get("/events?verb=server.lost")["results"]]
    lost_at = max((at for at in lost if begun_at < at <= decided_at), default=None)
    code_said = next(one["code"] for one in seen["decisions"] if one["action"] == "roll_back")
    row = {
        "code": code_said,
        "fault_to_zero_s": clock["fault_to_zero_s"],
        "last_good_to_zero_s": round(zero_at - max(good), 3),
        "decision_to_zero_s": clock["decision_to_zero_s"],
        "lost_to_decision_s": None if lost_at is None else round(decided_at - lost_at, 3),
        "bad_candidate_attempts": clock["bad_candidate_attempts"],
    }
    print(f"run {run}: {row}", flush=True)
    return row


def time_of(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def table(found: dict[str, Any]) -> list[str]:
    """The lines to print."""
    rows, users = found["runs"], found["users"]
    lines = [f"{'':>28} {'p50':>8} {'p95':>8} {'max':>8}"]
    for key, words in COLUMNS.items():
        values = np.array([row[key] for row in rows if row[key] is not None], dtype=float)
        if not values.size:
            continue
        lines.append(f"{words:>28} {np.median(values):>8.3g} {np.quantile(values, 0.95):>8.3g} {values.max():>8.3g}")
    codes = [row["code"] for row in rows]
    said = ", ".join(f"{code} {codes.count(code)}" for code in sorted(set(codes)))
    return [*lines, f"decided by: {said}", f"users: {users['requests']} requests, {len(users['failures'])} failed"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--fault", choices=sorted(FAULTS), default="raise")
    parser.add_argument("--weight", type=float, default=25, help="the candidate's share, percent")
    parser.add_argument("--rate", type=float, default=22, help="users' requests per second")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluicegate-rollback-") as name, running(Path(name) / "state") as stack:
        found = measure(
            stack, Path(name), runs=asked.runs, fault=asked.fault, weight_pct=asked.weight, rate_per_s=asked.rate
        )
    print("\n".join(table(found)))
    print(json.dumps({"asked": vars(asked), **found}))
    if found["users"]["failures"]:
        raise SystemExit("Users saw failures.")


if __name__ == "__main__":
    main()
