"""The cold start gate's judgement: how long a release took from nothing to ready, and whether ready was true."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from validators.core.verdict import Judgement, Verdict

_STILL_LOADING = re.compile(r"still loading after ([\d.]+) s")
#: The measured parts of a cold start, in the order in which they happen.
PARTS = ("fetch_s", "load_s", "warmup_s")


def still_loading_s(reason: str) -> float | None:
    """Seconds for which a load was waited for in vain, by the launcher's sentence; None if that was not the reason."""
    found = _STILL_LOADING.search(reason)
    return float(found[1].rstrip(".")) if found else None


def judge_cold_start(
    timings: Mapping[str, float], latencies_ms: Sequence[float], policy: Mapping[str, Any]
) -> Judgement:
    """The verdict on measured `timings` (seconds by part) and the first inferences after ready (ms, in order, at least 5).

    Limits: the policy's `max_s` over all parts, and `max_first_excess_ms` by which the first inference may be slower than the
    median of the later half. The envelope's own limits are judged by `validators.core.envelope`.
    """
    parts = {part: round(float(timings[part]), 3) for part in PARTS if part in timings}
    total_s = round(sum(parts.values()), 3)
    steady = median(latencies_ms[len(latencies_ms) // 2 :])
    excess = latencies_ms[0] - steady
    evidence = {
        "timings": parts,
        "total_s": total_s,
        "max_s": policy["max_s"],
        "first_ms": round(latencies_ms[0], 3),
        "steady_ms": round(steady, 3),
        "inferences": len(latencies_ms),
        "first_excess_ms": round(excess, 3),
    }
    if not parts:
        return Judgement(
            Verdict.ERRORED, "The node's agent measured no cold start, so there is nothing to judge.", evidence
        )
    if total_s > policy["max_s"]:
        return Judgement(
            Verdict.FAILED,
            f"It took {total_s:.1f} s from nothing to ready; {policy['max_s']:g} s are allowed.",
            evidence,
        )
    if excess > policy["max_first_excess_ms"]:
        return Judgement(
            Verdict.FAILED,
            f"The first inference after ready took {latencies_ms[0]:.0f} ms, {excess:.0f} ms more than later ones; "
            f"{policy['max_first_excess_ms']:g} ms are allowed. Declare a warm-up that covers it.",
            evidence,
        )
    return Judgement(
        Verdict.PASSED,
        f"Ready after {total_s:.1f} s; the first inference took {latencies_ms[0]:.0f} ms, later ones {steady:.0f} ms.",
        evidence,
    )
