"""How long a candidate that breaks under users keeps its traffic, on the real stack: Triton, Envoy, PostgreSQL, Valkey.

Run `python -m benchmarks.rollback_time [--runs 20] [--faults errors,some_errors,slow,hang,crash,kill,engine,wrong] [--out FILE]`.

For each fault one release passes its gates once. Each run rolls it out, lets it answer users for two seconds, and then lets users
ask what it breaks on, so that probes and gates meet a model that is right. The clock starts when the first of them asks that
(`fault`), whichever release that goes to, and ends when every gateway has acknowledged weight 0 (`zero`, the product's own
clock, docs/rollouts.md). Users ask at their own pace, however slow the answers are. `kill` ends the candidate's server from outside:
its clock starts at the kill. `engine` kills the leading engine when the model begins to fail. *Shown* is the product's own
`fault_to_zero_s` of the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from benchmarks.faulty_code import FAILS, breaking
from benchmarks.load_generator import LoadGenerator
from sluicegate.client.names import release_of, release_path
from sluicegate.stack import Stack, running
from tests.flows.tiny import ENVIRONMENT, MODEL, Shop

GOOD_S = 2.0
#: Between two runs: the server of the last one is to be gone, also as far as the agent has heard.
PAUSE_S = 3.0


@dataclass(frozen=True)
class Fault:
    """What the model does to this share of the users' requests; what the rollout needs to see it."""

    words: str
    does: str
    share: float = 1.0
    guards: tuple[dict[str, Any], ...] = ({"indicator": "errors"}, {"indicator": "slow", "threshold_ms": 250})
    mirrored_pct: float = 0
    kills: str = ""  # killed from outside at the fault: `server`, the candidate's, or `engine`


FAULTS = {
    "errors": Fault("all requests fail", FAILS),
    "some_errors": Fault("5 % of the requests fail", FAILS, 0.05),
    "slow": Fault("20 % of the requests take 0.6 s more", "time.sleep(0.6)", 0.20),
    "hang": Fault("every request hangs", "time.sleep(3600)"),
    "crash": Fault("the model process dies", "os._exit(1)"),
    "kill": Fault("the server is killed", "pass", kills="server"),
    "engine": Fault("all requests fail, and the engine is killed", FAILS, kills="engine"),
    "wrong": Fault(
        "20 % of the answers are wrong", "y = 3 * x", 0.20, ({"indicator": "errors"}, {"indicator": "wrong"}), 50
    ),
}


def measure(
    stack: Stack,
    folder: Path,
    faults: list[str],
    *,
    runs: int,
    rate_per_s: float,
    keep: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """{fault: [row of each run]}. `keep` gets what is known after each run."""
    found: dict[str, Any] = {}
    with Shop(stack, folder, step_s=1) as shop:
        first = shop.start(shop.prove("first"))
        shop.until(first, "shifting")
        shop.until_acknowledged(first)
        with LoadGenerator(f"{stack.gateway_http}/v2/models/{MODEL}/infer", rate_per_s) as crowd:
            shop.until(first, "promoted")
            for name in faults:
                fault = FAULTS[name]
                release = shop.prove(name, code=breaking(does=fault.does, share=fault.share))
                policy = policy_of(fault, WEIGHT_PCT)
                found[name] = []
                for run in range(1, runs + 1):
                    found[name].append(one_run(shop, crowd, release, policy, run, kills=fault.kills))
                    keep(found)
    return found


def policy_of(fault: Fault, weight_pct: float) -> dict[str, Any]:
    """One long step, so that only a breach ends it."""
    stage = {"min_s": 300, "min_samples": 30, "deadline_s": 400}
    shadow = {"sample_pct": fault.mirrored_pct, "min_s": 1, "min_samples": 10, "deadline_s": 60}
    steps = [{"weight_pct": weight_pct, **stage}]
    return {
        "preset": "fast",
        "second_look": {"looks": 1},
        "steps": steps,
        "guards": list(fault.guards),
        "shadow": shadow,
    }


def one_run(
    shop: Shop,
    crowd: LoadGenerator,
    release: str,
    policy: dict[str, Any],
    run: int,
    *,
    good_s: float = GOOD_S,
    replicas: int | None = None,
    kills: str = "",
) -> dict[str, Any]:
    """One rollout of the release, broken after it has served for `good_s`; of so many replicas, if they are told.

    `users_failed` is from the candidate's first traffic on; `failed_before` while its servers started, on the same cores.
    """
    crowd.broke_at = None
    failed_at_first, wrong_before = len(crowd.failed), len(crowd.wrong)
    time.sleep(PAUSE_S)
    number = shop.start(release, policy=policy, again=run > 1)
    if replicas is not None:
        # before it gets traffic: a server that starts takes its time of the machine from those that answer
        await_replicas(shop, release, 1)
        scale(shop, release, replicas)
        await_replicas(shop, release, replicas)
    shop.until(number, "shifting")
    shop.until_acknowledged(number)
    failed_before = len(crowd.failed)
    time.sleep(good_s)
    killed_at = kill_server(shop.stack, release) if kills == "server" else None
    if kills == "engine":
        os.kill(shop.stack.leading_engine(), signal.SIGKILL)
    crowd.breaks = True
    try:
        seen = shop.until(number, "rolled_back", within_s=300)
    finally:
        crowd.breaks = False
    clock, fault_at = seen["clock"], killed_at or crowd.broke_at
    assert fault_at is not None
    zero_at, decided_at = (datetime.fromisoformat(clock[key]).timestamp() for key in ("zero_at", "decided_at"))
    row = {
        "code": next(one["code"] for one in seen["decisions"] if one["action"] == "roll_back"),
        "fault_to_zero_s": round(zero_at - fault_at, 3),
        "shown_s": round(clock["fault_to_zero_s"], 3),
        "fault_to_decision_s": round(decided_at - fault_at, 3),
        "decision_to_zero_s": round(zero_at - decided_at, 3),
        "bad_candidate_attempts": clock["bad_candidate_attempts"],
        "users_failed": len(crowd.failed) - failed_before,
        "failed_before": failed_before - failed_at_first,
        "users_wrong": len(crowd.wrong) - wrong_before,
        "asked_late": sum(at >= fault_at for at in crowd.late),
    }
    for at, what in crowd.failed[failed_before:]:
        print(f"  a user's failure {at - fault_at:+.2f} s after the fault: {what}", flush=True)
    print(f"{release} run {run}: {row}", flush=True)
    return row


def kill_server(stack: Stack, release: str) -> float:
    """Kills the server process of a release (`double/r2`); returns when, in seconds since the epoch."""
    asked = (
        "SELECT s.pid FROM serving_server s JOIN serving_deployment d ON d.id = s.deployment_id "
        "JOIN registry_release r ON r.id = d.release_id JOIN registry_servedmodel m ON m.id = r.model_id "
        "WHERE s.ended_at IS NULL AND s.pid > 0 AND m.slug = %s AND r.number = %s"
    )
    model, number = release_of(release)
    with psycopg.connect(stack.database_url, autocommit=True) as session:
        rows = session.execute(asked, [model, int(number.removeprefix("r"))]).fetchall()
    for (pid,) in rows:
        os.kill(pid, signal.SIGKILL)
    assert rows, f"{release} has no server"
    return time.time()


def scale(shop: Shop, release: str, replicas: int) -> None:
    body = {"environment": ENVIRONMENT, "replicas": replicas}
    shop.manager.post(f"{release_path(release)}/replicas", body, is_any_version=True)


def await_replicas(shop: Shop, release: str, replicas: int, *, within_s: float = 120) -> None:
    """Raises TimeoutError."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        told = shop.manager.get(f"{release_path(release)}/replicas")["results"]
        if any(one["environment"] == ENVIRONMENT and one["answering"] >= replicas for one in told):
            return
        time.sleep(0.2)
    raise TimeoutError(f"{release} has no {replicas} replicas that answer after {within_s:.0f} s: {told}")


WEIGHT_PCT = 25.0
COLUMNS = {
    "fault_to_zero_s": "fault → zero weight, s",
    "shown_s": "shown, s",
    "fault_to_decision_s": "fault → decision, s",
    "decision_to_zero_s": "decision → zero weight, s",
    "bad_candidate_attempts": "failed attempts",
    "users_failed": "users' failures",
    "users_wrong": "wrong answers seen",
}


def table(found: dict[str, Any]) -> list[str]:
    """The lines to print, as a table of docs/rollouts.md."""
    lines = ["| fault | runs | " + " | ".join(f"{words}: p50 / p95" for words in COLUMNS.values()) + " | decided by |"]
    lines.append("|---" * (len(COLUMNS) + 3) + "|")
    for name, rows in found.items():
        cells = []
        for key in COLUMNS:
            values = np.array([row[key] for row in rows], dtype=float)
            cells.append(f"{np.median(values):.3g} / {np.quantile(values, 0.95):.3g}")
        codes = [row["code"] for row in rows]
        said = ", ".join(f"{code} {codes.count(code)}" for code in sorted(set(codes)))
        lines.append(f"| {FAULTS[name].words} | {len(rows)} | {' | '.join(cells)} | {said} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--faults", default=",".join(FAULTS), help="comma-separated; all by default")
    parser.add_argument(
        "--rate", type=float, default=40, help="users' requests per second; a quarter goes to the candidate"
    )
    parser.add_argument("--out", type=Path, help="also write the rows as JSON")
    asked = parser.parse_args()
    names = asked.faults.split(",")
    if unknown := set(names) - set(FAULTS):
        parser.error(f"unknown faults: {', '.join(sorted(unknown))}; known are {', '.join(FAULTS)}")
    with tempfile.TemporaryDirectory(prefix="sluicegate-rollback-") as name, running(Path(name) / "state") as stack:

        def keep(found: dict[str, Any]) -> None:
            if asked.out:
                known = {"rate_per_s": asked.rate, "weight_pct": WEIGHT_PCT, "runs": found}
                asked.out.write_text(json.dumps(known, indent=1))

        found = measure(stack, Path(name), names, runs=asked.runs, rate_per_s=asked.rate, keep=keep)
    print("\n".join(table(found)))
    every = [row for rows in found.values() for row in rows]
    if any(row["users_failed"] or row["asked_late"] for row in every):
        raise SystemExit("Users saw failures, or were too few or too slow to ask in time: then it was another load.")


if __name__ == "__main__":
    main()
