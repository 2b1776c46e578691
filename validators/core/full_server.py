"""What a server does once it is full: a burst that makes a queue, and whether that queue ever empties."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serving.traffic.core.admission import Proof
from serving.traffic.core.routes import WELL_WITHIN_S
from validators.core.evidence import result_with
from validators.core.load import Attempt
from validators.core.verdict import Judgement, Verdict

#: A burst is this many full batches for each instance, this multiple of what is in flight at the rate, and from 16 to 256
#: requests, each of which takes a thread.
_FULL_BATCHES, _FULL_FLIGHTS, _LEAST_AT_ONCE, _MOST_AT_ONCE = 4, 4, 16, 256


@dataclass(frozen=True)
class Burst:
    """Requests that all come at once, of which at most `at_once` are in flight; the others follow as those are answered."""

    requests: int
    at_once: int
    timeout_s: float  # for each from when it is sent; a server that keeps to the rate answers all of them within it


def burst_of(
    policy: Mapping[str, Any], *, p50_s: float, max_batch_size: int, instances: int, max_concurrency: int | None
) -> Burst:
    """A burst that makes a queue: behind full batches on every instance, and behind all that is in flight at the rate.

    At the rate it lasts no longer than `max_duration_s`, unless 16 requests do. `p50_s` is what a request takes at leisure,
    `max_concurrency` what the envelope declares: gateways let no more through.
    """
    rate_per_s = float(policy["rate_per_s"])
    wanted = max(_FULL_BATCHES * max(1, max_batch_size) * instances, _FULL_FLIGHTS * rate_per_s * p50_s)
    most = min(_MOST_AT_ONCE, rate_per_s * policy["max_duration_s"])
    requests = max(_LEAST_AT_ONCE, math.ceil(min(wanted, most)))
    return Burst(requests, min(requests, max_concurrency or requests), policy["timeout_s"] + requests / rate_per_s)


def judge_full(
    found: Judgement, attempts: Sequence[Attempt], burst: Burst, policy: Mapping[str, Any], *, p50_s: float
) -> Judgement:
    """`found`, or failed where a full server breaks, hangs, or answers more slowly than it is asked.

    Every server meets a queue one day: a stall of half a second makes one. Where a full server does less than the rate,
    that queue never empties, however well it serves at leisure. Requests that it refuses for being full do not count.
    Errored where only the client's lateness stands between the answers and the rate. `attempts` are in the order of sending.
    """
    counted = [attempt for attempt in attempts if not attempt.is_refused]
    errors = [attempt.error for attempt in counted if attempt.error]
    ends, rate_per_s = sorted(attempt.done_s for attempt in counted), float(policy["rate_per_s"])
    per_s = max((count / max(end, 0.001) for count, end in _last_tenth(ends)), default=0.0)
    evidence = {
        **found.evidence,
        "full_requests": len(attempts),
        "full_at_once": burst.at_once,
        "full_refused": len(attempts) - len(counted),
        "full_errors": len(errors),
        "full_per_s": round(per_s, 2),
    }
    asked = f"Of {len(attempts)} requests, {burst.at_once} at once,"
    late_s = max((attempt.sent_s - attempt.due_s for attempt in attempts[: burst.at_once]), default=0.0)
    # what a request takes at leisure, which no rate shortens, but not what it waits there
    first_s = max(1 / rate_per_s, min(p50_s, ends[0]) if ends else 0.0)
    verdict, reason = found.verdict, found.reason
    if len(errors) > policy["max_error_frac"] * len(counted):
        verdict = Verdict.FAILED
        reason = f"{asked} {len(errors)} failed: {'; '.join(list(dict.fromkeys(errors))[:3])}. At leisure: {reason}"
    elif _keeps_up(ends, rate_per_s, first_s=first_s):
        pass
    elif _keeps_up(ends, rate_per_s, first_s=first_s + late_s):
        verdict = Verdict.ERRORED
        reason = (
            f"generator_limited: {asked} it sent one {late_s * 1000:.0f} ms late, so they say nothing about the server."
        )
    else:
        verdict = Verdict.FAILED
        reason = (
            f"{asked} it answered {per_s:.1f}/s, and {rate_per_s:g}/s is the rate: "
            f"once a queue has formed it never empties. At leisure: {reason}"
        )
    return Judgement(verdict, reason, evidence)


def _last_tenth(ends: Sequence[float]) -> list[tuple[int, float]]:
    """(how many had ended, when) for the last tenth of them: a few long answers say nothing of the others."""
    return list(enumerate(ends, 1))[-1 - len(ends) // 10 :]


def _keeps_up(ends: Sequence[float], rate_per_s: float, *, first_s: float) -> bool:
    """Whether requests that were all due at 0 ended, at these seconds, as fast as the rate asks after the first, at `first_s`.

    So `n` at once, each of which takes `first_s`, keep up with n / first_s, wave after wave.
    """
    return any(end <= (count - 1) / rate_per_s + first_s for count, end in _last_tenth(ends))


def measured_when_full(report: Mapping[str, Any], digest: str) -> Proof | None:
    """Rate of a full server in a report's load gate; None if the gate did not pass, or the server refused or broke requests."""
    load = result_with(report, "full_per_s")
    told = load["evidence"]
    per_s, at_once = told.get("full_per_s"), told.get("full_at_once")
    if (
        load.get("verdict") != "passed"
        or not per_s
        or not at_once
        or told.get("full_errors")
        or told.get("full_refused")
    ):
        return None
    within_s = WELL_WITHIN_S if told.get("slo_ms") is None else float(told["slo_ms"]) / 2000
    return Proof(float(per_s), within_s, digest, int(at_once))
