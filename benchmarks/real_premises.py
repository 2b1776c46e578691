"""Healthy releases under slow answers and poisoned requests on the real stack, and a regression that poison might hide.

Run `python -m benchmarks.real_premises [--runs 20] [--only lag,late_poison,poison,regression] [--rate 60] [--out FILE]`.

- `lag`: answers come after 1.9 s (half of the runs) or 4.8 s, just under the edges of 2 and 5 s by which gateways time answers, so
  that the engine waits no longer than it must. 2 % of the attempts fail at once, by chance; their second attempts are as late as
  others. The releases are alike: none may be taken back.
- `late_poison`: the same, but 2 % of the requests fail at once whichever release they meet, and again on the second attempt. So, as
  long as an answer takes, nothing but failures has ended after a change of weight. The releases are alike here too.
- `poison`: 1.5 % of the requests fail whichever release they meet, and again on the second attempt; 1 % are no JSON at all. The
  releases are alike: none may be taken back.
- `regression`: a release that begins to fail 5 % of what it is asked, with and without that poison in turn. Each is to be taken back,
  and the poison is not to make that slower.

Each release passes its gates once; probes and gates meet what fails nowhere. Healthy ones are promoted over each other in turn.
Users ask at their own pace, however slow the answers are.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.as_ended import worst_as_ended
from benchmarks.faulty_code import breaking, late
from benchmarks.load_generator import LoadGenerator, Mix
from benchmarks.rollback_time import PAUSE_S, Fault, one_run, policy_of
from rollouts.core.policy_schema import parse_policy
from sluicegate.stack import running
from tests.flows.tiny import Shop, model_document

#: Room for what is answered late: requests that one server may have at a time.
MOST_AT_ONCE, MOST_WAITING = 1500, 600
LATE_S, LATE_FAILS = (1.9, 4.8), 0.02
NO_MIX = Mix()
POISON = Mix(poisoned_frac=0.015, malformed_frac=0.01)
REGRESSION = Fault("5 % of the requests fail", "", 0.05, ({"indicator": "errors"},))
REGRESSION_WEIGHT_PCT = 50
#: A healthy rollout that has not ended by then is told as it stands.
WITHIN_S = 400.0
OBJECTIVES = {
    "errors_max_frac": 0.05,
    "slow": {"threshold_ms": 10_000, "max_frac": 0.05},
    "timeout_s": 20,
    "attempt_timeout_s": 10,
}
_STAGE = {"min_s": 6, "min_samples": 100, "deadline_s": 300}
#: Tolerances, chances and limits of `fast` on the side of taking back. What is proven good enough is roomier, so that the time goes
#: into many changes of weight and not into proofs.
HEALTHY_POLICY: dict[str, Any] = {
    "preset": "fast",
    "second_look": {"looks": 1},
    "steps": [{"weight_pct": weight, **_STAGE} for weight in (25, 50)],
    "bake": _STAGE,
    "holdback_pct": 25,
    "guards": [{"indicator": "errors", "promote_within": {"ratio": 3, "plus_frac": 0.03}}],
}
Keep = Callable[[str, list[dict[str, Any]]], None]


@dataclass(frozen=True)
class Bench:
    """What every scenario needs."""

    shop: Shop
    folder: Path
    rate_per_s: float
    runs: int
    late_s: tuple[float, ...] = LATE_S

    @contextmanager
    def serving(self, slug: str, code: str) -> Iterator[LoadGenerator]:
        """A model whose first release has been promoted, and its users."""
        self.shop.offer({**model_document(1), "slug": slug, "objectives": OBJECTIVES})
        release = self.prove(slug, "first", code)
        first = self.shop.start(release)
        self.shop.until(first, "shifting")
        self.shop.until_acknowledged(first)
        url = f"{self.shop.stack.gateway_http}/v2/models/{slug}/infer"
        with LoadGenerator(url, self.rate_per_s, most_waiting=MOST_WAITING) as crowd:
            self.shop.until(first, "promoted")
            yield crowd

    def prove(self, slug: str, name: str, code: str) -> str:
        """The name of a release of that code that passed its gates."""
        return self.shop.prove(f"{slug}-{name}", code=code, model=slug, most_at_once=MOST_AT_ONCE)

    def healthy(self, crowd: LoadGenerator, release: str) -> dict[str, Any]:
        """One rollout of a healthy release, and how it ended."""
        time.sleep(PAUSE_S)
        asked, failed, begun = crowd.asked, len(crowd.failed), time.monotonic()
        poisoned, malformed = len(crowd.poisoned), len(crowd.malformed)
        number = self.shop.start(release, policy=HEALTHY_POLICY)
        try:
            seen = self.shop.until(number, "promoted", "rolled_back", "paused", within_s=WITHIN_S)
        except AssertionError:
            seen = self.shop.view(number)
        acted = next((one for one in seen["decisions"] if one["action"] in {"roll_back", "pause"}), None)
        row = {
            "release": release,
            "outcome": seen["state"],
            "took_s": round(time.monotonic() - begun, 1),
            "rate_per_s": round((crowd.asked - asked) / (time.monotonic() - begun), 1),
            "users_asked": crowd.asked - asked,
            "users_failed": len(crowd.failed) - failed,
            "poisoned": dict(Counter(crowd.poisoned[poisoned:])),
            "malformed": dict(Counter(crowd.malformed[malformed:])),
            "stages_at": [datetime.fromisoformat(one["at"]).timestamp() for one in seen["steps"] if one["at"]],
            "code": acted["code"] if acted else "",
            "phi": max(
                (one["facts"]["guards"]["errors"]["phi"] for one in seen["decisions"] if "guards" in one["facts"]),
                default=1.0,
            ),
        }
        if row["outcome"] != "promoted":
            print(f"NOT PROMOTED: {seen['reason']}\n{json.dumps(seen['decisions'][:3], indent=1)}", flush=True)
        for at, what in crowd.failed[failed:][:5]:
            print(f"  a user's failure at {at:.2f}: {what}", flush=True)
        return row


def lag(bench: Bench, keep: Keep) -> None:
    """Healthy releases that answer late, and some of whose attempts fail at once."""
    _late(bench, keep, "late", f"{LATE_FAILS:.0%} of the attempts fail at once", share=LATE_FAILS)


def late_poison(bench: Bench, keep: Keep) -> None:
    """Healthy releases that answer late, but for requests that fail at once wherever they go."""
    mix = Mix(poisoned_frac=LATE_FAILS)
    _late(bench, keep, "poisoned-late", f"{LATE_FAILS:.0%} of the requests fail at once everywhere", mix=mix)


def _late(bench: Bench, keep: Keep, kind: str, words: str, *, share: float = 0.0, mix: Mix = NO_MIX) -> None:
    for index, late_s in enumerate(bench.late_s):
        runs = bench.runs // len(bench.late_s) + (index < bench.runs % len(bench.late_s))
        slug = f"{kind}{late_s:g}".replace(".", "-")
        logs = [bench.folder / f"{slug}-{name}.log" for name in ("first", "second")]
        codes = [late(log, late_s=late_s, share=share) for log in logs]
        rows: list[dict[str, Any]] = []
        with bench.serving(slug, codes[0]) as crowd:
            arms = [f"{slug}/r1", bench.prove(slug, "second", codes[1])]
            crowd.mix = mix
            for run in range(runs):
                candidate = 1 - run % 2
                row = bench.healthy(crowd, arms[candidate])
                policy = parse_policy(HEALTHY_POLICY, OBJECTIVES)
                row["as_ended"] = worst_as_ended(policy, row["stages_at"], logs[candidate], logs[1 - candidate])
                _say(slug, run, row)
                rows.append(row)
                keep(f"answers after {late_s:g} s, {words}", rows)


def poison(bench: Bench, keep: Keep) -> None:
    """Healthy releases under requests that fail wherever they go."""
    code = [breaking(share=0, does=f"pass  # {name}") for name in ("first", "second")]
    rows: list[dict[str, Any]] = []
    with bench.serving("poisoned", code[0]) as crowd:
        arms = ["poisoned/r1", bench.prove("poisoned", "second", code[1])]
        crowd.mix = POISON
        for run in range(bench.runs):
            row = bench.healthy(crowd, arms[1 - run % 2])
            _say("poison", run, row)
            rows.append(row)
            keep("1.5 % poisoned, 1 % malformed", rows)


def regression(bench: Bench, keep: Keep) -> None:
    """A release that gets worse, with and without poison."""
    policy = policy_of(REGRESSION, REGRESSION_WEIGHT_PCT)
    rows: dict[str, list[dict[str, Any]]] = {"no poison": [], "1.5 % poisoned, 1 % malformed": []}
    with bench.serving("regressing", breaking(share=0)) as crowd:
        release = bench.prove("regressing", "worse", breaking(share=REGRESSION.share))
        for run in range(bench.runs):
            for (name, found), mix in zip(rows.items(), (NO_MIX, POISON), strict=True):
                crowd.mix = mix
                found.append(one_run(bench.shop, crowd, release, policy, run + 1))
                keep(f"5 % regression, {name}", found)


def _say(name: str, run: int, row: dict[str, Any]) -> None:
    print(f"{name} run {run + 1}: {row}", flush=True)


SCENARIOS: dict[str, Callable[[Bench, Keep], None]] = {
    "lag": lag,
    "late_poison": late_poison,
    "poison": poison,
    "regression": regression,
}


def table(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """The lines to print, as the tables of docs/rollouts.md."""
    healthy = {name: rows for name, rows in found.items() if "took_s" in rows[0]}
    worse = {name: rows for name, rows in found.items() if name not in healthy}
    lines = []
    if healthy:
        lines += [
            "| healthy releases | rollouts | promoted | rolled back | seconds: p50 / p95 | requests | failures that users saw | "
            "poisoned: statuses | malformed: statuses | taken back, were answers counted when they end |",
            "|---" * 10 + "|",
            *[_healthy_line(name, rows) for name, rows in healthy.items()],
        ]
    if worse:
        lines += [
            "",
            "| regression | rollouts | rolled back by | fault → zero weight, s: p50 / p95 | failed attempts: p50 / p95 | "
            "failures that users saw |",
            "|---" * 6 + "|",
            *[_worse_line(name, rows) for name, rows in worse.items()],
        ]
        medians = [float(np.median([row["fault_to_zero_s"] for row in rows])) for rows in worse.values()]
        if len(medians) == 2:
            lines.append(f"median with poison / without: {medians[1] / medians[0]:.2f}")
    return lines


def _healthy_line(name: str, rows: list[dict[str, Any]]) -> str:
    ends = Counter(row["outcome"] for row in rows)
    sums = [sum((Counter(row[key]) for row in rows), Counter()) for key in ("poisoned", "malformed")]
    statuses = [", ".join(f"{count} × {status}" for status, count in sorted(one.items())) or "–" for one in sums]
    ended = sum(bool(row["as_ended"]) for row in rows) if "as_ended" in rows[0] else "–"
    return (
        f"| {name} | {len(rows)} | {ends['promoted']} | {ends['rolled_back']} | {_quantiles(rows, 'took_s')} | "
        f"{sum(row['users_asked'] for row in rows)} | {sum(row['users_failed'] for row in rows)} | "
        f"{' | '.join(statuses)} | {ended} |"
    )


def _worse_line(name: str, rows: list[dict[str, Any]]) -> str:
    codes = Counter(row["code"] for row in rows)
    said = ", ".join(f"{code} {count}" for code, count in sorted(codes.items()))
    return (
        f"| {name} | {len(rows)} | {said} | {_quantiles(rows, 'fault_to_zero_s')} | "
        f"{_quantiles(rows, 'bad_candidate_attempts')} | {sum(row['users_failed'] for row in rows)} |"
    )


def _quantiles(rows: list[dict[str, Any]], key: str) -> str:
    values = np.array([row[key] for row in rows], dtype=float)
    return f"{np.median(values):.3g} / {np.quantile(values, 0.95):.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="rollouts of each scenario; `regression` makes pairs")
    parser.add_argument("--only", default=",".join(SCENARIOS), help="comma-separated; all by default")
    parser.add_argument("--late", default=",".join(map(str, LATE_S)), help="seconds until an answer, comma-separated")
    parser.add_argument("--rate", type=float, default=60, help="users' requests per second")
    parser.add_argument("--out", type=Path, help="also write the rows as JSON")
    asked = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {}
    print(f"{asked.rate:g} requests/s; policy of healthy rollouts: {json.dumps(HEALTHY_POLICY)}", flush=True)

    def keep(name: str, rows: list[dict[str, Any]]) -> None:
        found[name] = rows
        if asked.out:
            known = {"rate_per_s": asked.rate, "policy": HEALTHY_POLICY, "objectives": OBJECTIVES, "runs": found}
            asked.out.write_text(json.dumps(known, indent=1))

    with (
        tempfile.TemporaryDirectory(prefix="sluicegate-premises-") as name,
        running(Path(name) / "state") as stack,
        Shop(stack, Path(name), step_s=1) as shop,
    ):
        bench = Bench(shop, Path(name), asked.rate, asked.runs, tuple(float(one) for one in asked.late.split(",")))
        for scenario in asked.only.split(","):
            SCENARIOS[scenario](bench, keep)
            print("\n".join(table(found)), flush=True)
    if any(row.get("outcome", "promoted") != "promoted" for rows in found.values() for row in rows):
        raise SystemExit("A healthy release was not promoted.")


if __name__ == "__main__":
    main()
