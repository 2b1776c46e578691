"""Open-loop load: when requests are due, and what their answers add up to.

Requests are sent when they are due, whether or not earlier ones were answered, and latency counts from the moment a
request was due. A generator that waits for answers hides exactly the stalls that users feel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from validators.core.slo import dispersion, judge_slo, least_requests
from validators.core.verdict import Judgement, Verdict

Floats = npt.NDArray[np.float64]
#: A burst is this many full batches for each instance, this multiple of what is in flight at the rate, and from 16 to 256
#: requests, each of which takes a thread.
_FULL_BATCHES, _FULL_FLIGHTS, _LEAST_AT_ONCE, _MOST_AT_ONCE = 4, 4, 16, 256
#: Of the histogram in the evidence: about six to a decade, so that a run of any length takes the same room.
LATENCY_EDGES_MS = (
    0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000, 1500, 2000, 3000, 5000, 10000, 30000
)  # fmt: skip


@dataclass(frozen=True)
class Attempt:
    """One request. Instants are seconds since the run began. `error` is empty for an answer.

    `is_refused`: the error is that the server was full.
    """

    due_s: float
    sent_s: float
    done_s: float
    error: str = ""
    is_refused: bool = False


@dataclass(frozen=True)
class Burst:
    """Requests that all come at once, of which at most `at_once` are in flight; the others follow as those are answered."""

    requests: int
    at_once: int
    timeout_s: float  # for each from when it is sent; a server that keeps to the rate answers all of them within it


@dataclass(frozen=True)
class LoadSummary:
    """What a run measured. Latencies in ms, from when requests were due; lag is how late the generator itself sent."""

    requests: int
    errors: int
    over: int  # slower than the objective, or failed
    offered_per_s: float
    achieved_per_s: float
    latency_ms: dict[str, float]
    lag_p99_ms: float
    lag_max_ms: float
    over_per_window: tuple[int, ...]
    error_examples: tuple[str, ...]
    goodput_per_s: float = 0.0  # answers within the objective; all answers where none is stated
    latency_counts: tuple[
        int, ...
    ] = ()  # of answered requests: up to the first of LATENCY_EDGES_MS, …, beyond the last

    @property
    def error_frac(self) -> float:
        return self.errors / self.requests if self.requests else 0.0


def arrivals(rate_per_s: float, duration_s: float, *, seed: int, cv: float = 1.0) -> Floats:
    """Instants in [0, duration_s) at which requests are due, rising; the same for the same seed.

    `cv` is the coefficient of variation of the gaps between them: 1 is a Poisson process, less is more even, more is bursts.
    Source: a renewal process with Gamma gaps of shape 1 / cv², conditioned on its expected count so that every run offers the
    same load. Real traffic has 1.1 (conversations) to 13 (code completion): Patel et al., ISCA 2024.
    """
    count = max(1, round(rate_per_s * duration_s))
    random = np.random.default_rng(seed)
    if cv == 1.0:
        return np.sort(random.uniform(0.0, duration_s, count))
    instants: Floats = np.cumsum(random.gamma(1 / cv**2, 1.0, count + 1))
    return instants[:-1] * (duration_s / float(instants[-1]))


def summarise(attempts: Sequence[Attempt], *, duration_s: float, slo_ms: float, window_s: float = 1.0) -> LoadSummary:
    """The numbers of a run. Quantiles are over answered requests only; failed ones count as errors and as over."""
    answered = np.array([(a.done_s - a.due_s) * 1000 for a in attempts if not a.error])
    lags = np.array([(a.sent_s - a.due_s) * 1000 for a in attempts]) if attempts else np.zeros(1)
    is_over = [bool(a.error) or (a.done_s - a.due_s) * 1000 > slo_ms for a in attempts]
    windows = [0] * max(1, int(np.ceil(duration_s / window_s)))
    for attempt, over in zip(attempts, is_over, strict=True):
        windows[min(len(windows) - 1, int(attempt.due_s / window_s))] += over
    last_sent = max((a.sent_s for a in attempts), default=0.0)
    return LoadSummary(
        requests=len(attempts),
        errors=sum(bool(a.error) for a in attempts),
        over=sum(is_over),
        offered_per_s=round(len(attempts) / duration_s, 3),
        achieved_per_s=round(len(attempts) / max(duration_s, last_sent), 3),
        latency_ms=_quantiles(answered),
        lag_p99_ms=round(float(np.quantile(lags, 0.99)), 3),
        lag_max_ms=round(float(lags.max()), 3),
        over_per_window=tuple(windows),
        error_examples=tuple(dict.fromkeys(a.error for a in attempts if a.error))[:3],
        goodput_per_s=round((len(attempts) - sum(is_over)) / duration_s, 3),
        latency_counts=_counts(answered),
    )


def generator_limit(summary: LoadSummary, *, max_lag_ms: float) -> str:
    """Why the generator, and not the server, shaped this run; empty where it kept its schedule."""
    if summary.lag_p99_ms > max_lag_ms:
        return f"it sent 1 % of its requests more than {summary.lag_p99_ms:.0f} ms late, and {max_lag_ms:.0f} ms is the limit"
    if summary.achieved_per_s < 0.99 * summary.offered_per_s:
        return f"it sent {summary.achieved_per_s:.1f} requests/s instead of {summary.offered_per_s:.1f}"
    return ""


def _counts(latencies_ms: Floats) -> tuple[int, ...]:
    places = np.searchsorted(np.array(LATENCY_EDGES_MS), latencies_ms, side="left")
    return tuple(int(one) for one in np.bincount(places, minlength=len(LATENCY_EDGES_MS) + 1))


def _quantiles(latencies_ms: Floats) -> dict[str, float]:
    if latencies_ms.size == 0:
        return {}
    shares = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
    found = {name: round(float(np.quantile(latencies_ms, share)), 3) for name, share in shares.items()}
    return {**found, "max": round(float(latencies_ms.max()), 3), "mean": round(float(latencies_ms.mean()), 3)}


def judge_load(summary: LoadSummary, policy: Mapping[str, Any]) -> Judgement:
    """The verdict of one run under a policy's load section: errors first, then the objective; `errored` if the generator was late."""
    phi = dispersion(summary.over_per_window)
    evidence: dict[str, Any] = {
        **asdict(summary),
        "error_frac": round(summary.error_frac, 6),
        "max_error_frac": policy["max_error_frac"],
        "slo_ms": policy["slo_ms"],
        "slo_quantile": policy["slo_quantile"],
        "seed": policy["seed"],
        "phi": round(phi, 3),
        "latency_edges_ms": LATENCY_EDGES_MS,
    }
    if summary.error_frac > policy["max_error_frac"]:
        why = f": {summary.error_examples[0]}" if summary.error_examples else ""
        return Judgement(
            Verdict.FAILED,
            f"{summary.errors} of {summary.requests} requests failed ({summary.error_frac:.2%}; "
            f"{policy['max_error_frac']:.2%} are allowed){why}.",
            evidence,
        )
    if policy["slo_ms"] is None:
        says = f"{summary.errors} of {summary.requests} requests failed; the policy states no latency objective."
        found = Judgement(Verdict.PASSED, says, evidence)
    else:
        found = _judge_objective(summary, policy, phi, evidence)
    limited = generator_limit(summary, max_lag_ms=max_lag_ms(policy))
    if limited and not proven_all_the_same(summary, found, policy):
        return Judgement(
            Verdict.ERRORED,
            f"generator_limited: {limited}, so the run says nothing about the server.",
            {**evidence, "max_lag_ms": max_lag_ms(policy)},
        )
    return found


def proven_all_the_same(summary: LoadSummary, found: Judgement, policy: Mapping[str, Any]) -> bool:
    """Whether an objective was met although requests were sent late: lateness adds to what was measured, and takes nothing off.

    Not so where fewer requests were sent than the rate asks for, since a server that is asked less is faster.
    """
    is_whole = summary.achieved_per_s >= 0.99 * summary.offered_per_s
    return is_whole and policy["slo_ms"] is not None and found.verdict is Verdict.PASSED


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


def max_lag_ms(policy: Mapping[str, Any]) -> float:
    """How late the generator may send. By default a fifth of the objective, at least 20 ms.

    Lag adds to the measured latency, so a late generator can fail a good release but never pass a bad one.
    """
    given = policy["max_lag_ms"]
    return float(given) if given is not None else max(20.0, 0.2 * float(policy["slo_ms"] or 0.0))


def _judge_objective(
    summary: LoadSummary, policy: Mapping[str, Any], phi: float, evidence: dict[str, Any]
) -> Judgement:
    quantile, confidence = float(policy["slo_quantile"]), float(policy["confidence"])
    found = judge_slo(summary.over, summary.requests, quantile=quantile, confidence=confidence, phi=phi)
    needed = least_requests(quantile=quantile, confidence=confidence, phi=phi)
    evidence["slo_test"] = {
        "log_e_pass": round(found.log_e_pass, 6),
        "log_e_fail": round(found.log_e_fail, 6),
        "confidence": confidence,
        "least_requests_to_pass": needed,
    }
    counted = f"{summary.over} of {summary.requests} requests were over {policy['slo_ms']:g} ms"
    asked = f"at most {1 - quantile:.2%} may be"
    if found.verdict is Verdict.UNDECIDED:
        more = f"; a pass takes at least {needed} requests" if summary.requests < needed else ""
        return Judgement(found.verdict, f"{counted} and {asked}: not enough evidence either way{more}.", evidence)
    proven = "proven" if found.verdict is Verdict.PASSED else "refuted"
    return Judgement(found.verdict, f"{counted} and {asked}: {proven} at confidence {confidence:g}.", evidence)
