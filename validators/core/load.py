"""Open-loop load: when requests are due, and what their answers add up to.

Requests are sent when they are due, whether or not earlier ones were answered, and latency counts from the moment a
request was due. A generator that waits for answers hides exactly the stalls that users feel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from validators.core.proof import WINDOW_S, first_proof, sizing
from validators.core.request_classes import ClassSummary
from validators.core.slo import DISPERSION_SAFETY, dispersion, quantile_bound
from validators.core.token_policy import FIELDS as OF_TOKENS
from validators.core.verdict import Judgement, Verdict

Floats = npt.NDArray[np.float64]
#: Of each of the three bounds of a run, so that no more than one run in twenty has a wrong one.
_BOUNDS_CONFIDENCE = 1 - 0.05 / 3
#: Of the histogram in the evidence: about six to a decade, so that a run of any length takes the same room.
LATENCY_EDGES_MS = (
    0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000, 1500, 2000, 3000, 5000, 10000, 30000
)  # fmt: skip


@dataclass(frozen=True)
class Attempt:
    """One request. Instants are seconds since the run began. `error` is empty for an answer.

    `is_refused`: the error is that the server was full. `at`: its place in the schedule. Not `is_sent`: too many were unanswered.
    `came_s`: when each response of a stream came; none of a request that is answered in one.
    """

    due_s: float
    sent_s: float
    done_s: float
    error: str = ""
    is_refused: bool = False
    at: int = 0
    is_sent: bool = True
    came_s: tuple[float, ...] = ()


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
    sent_per_window: tuple[int, ...]
    error_examples: tuple[str, ...]
    goodput_per_s: float = 0.0  # answers within the objective; all answers where none is stated
    latency_counts: tuple[
        int, ...
    ] = ()  # of answered requests: up to the first of LATENCY_EDGES_MS, …, beyond the last
    classes: tuple[ClassSummary, ...] = ()  # where requests are of several
    unsent: int = 0  # of the errors: too many were unanswered
    answered_per_s: float = 0.0  # until the last answer, which may come long after the last request
    latency_low_ms: Mapping[str, float] = field(
        default_factory=dict
    )  # lower bounds of p50, p95, p99 from when requests were sent

    @property
    def in_flight(self) -> float:
        """Requests in flight on average. Source: Little's law, the rate times the mean latency."""
        return self.achieved_per_s * self.latency_ms.get("mean", 0.0) / 1000

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
    whole = float(instants[-1]) or 1.0
    return np.minimum(instants[:-1] / whole * duration_s, np.nextafter(duration_s, 0.0))


def arrivals_of(load: Mapping[str, Any], rate_per_s: float, duration_s: float, *, seed: int) -> Floats:
    """Arrivals at a rate, as even as a load section states."""
    return arrivals(rate_per_s, duration_s, seed=seed, cv=load["arrivals_cv"])


def summarise(
    attempts: Sequence[Attempt],
    *,
    duration_s: float,
    slo_ms: float,
    window_s: float = WINDOW_S,
    kinds: Sequence[str] = (),
    least_phi: float = DISPERSION_SAFETY,
) -> LoadSummary:
    """The numbers of a run. Quantiles are over answered requests only; failed ones count as errors and as over.

    `least_phi`: slow requests that come together, at least, for the lower bounds of the quantiles.
    `kinds`: the classes of the requests in turn, by their place in the schedule; one class, or none, is not told apart.
    """
    answered = _latencies_ms(attempts)
    lags = np.array([(a.sent_s - a.due_s) * 1000 for a in attempts]) if attempts else np.zeros(1)
    over, sent = _windows(attempts, duration_s=duration_s, slo_ms=slo_ms, window_s=window_s)
    last_sent = max((a.sent_s for a in attempts), default=0.0)
    names = sorted(set(kinds))
    of_class = {name: [a for a in attempts if kinds[a.at % len(kinds)] == name] for name in names if len(names) > 1}
    return LoadSummary(
        requests=len(attempts),
        errors=sum(bool(a.error) for a in attempts),
        over=sum(over),
        offered_per_s=round(len(attempts) / duration_s, 3),
        achieved_per_s=round(len(attempts) / max(duration_s, last_sent), 3),
        latency_ms=_quantiles(answered),
        lag_p99_ms=round(float(np.quantile(lags, 0.99)), 3),
        lag_max_ms=round(float(lags.max()), 3),
        over_per_window=over,
        sent_per_window=sent,
        error_examples=tuple(dict.fromkeys(a.error for a in attempts if a.error))[:3],
        goodput_per_s=round((len(attempts) - sum(over)) / duration_s, 3),
        latency_counts=_counts(answered),
        unsent=sum(not a.is_sent for a in attempts),
        answered_per_s=round(len(answered) / max(duration_s, *(a.done_s for a in attempts if not a.error), 0.0), 3),
        latency_low_ms=bounds_of(
            [(a.due_s, (a.done_s - a.sent_s) * 1000) for a in attempts if not a.error],
            windows=len(over),
            window_s=window_s,
            least_phi=least_phi,
        ),
        classes=tuple(
            _class_summary(name, own, duration_s=duration_s, slo_ms=slo_ms, window_s=window_s)
            for name, own in of_class.items()
        ),
    )


def bounds_of(
    times_ms: Sequence[tuple[float, float]],
    *,
    windows: int,
    window_s: float = WINDOW_S,
    streams: int | None = None,
    least_phi: float = DISPERSION_SAFETY,
) -> dict[str, float]:
    """Lower confidence bounds of p50, p95 and p99 in ms, of (second at which it was due, ms) each.

    Slow requests come in clumps, as one stall holds up all that are in flight: the values beyond a quantile are counted by window, and
    so many count as one as their variance exceeds their mean. `streams`: how many of the times are independent, if several belong to
    one request. The chance of error is shared by the three.
    """
    independent, bounds = len(times_ms) if streams is None else streams, {}
    times = np.array([ms for _, ms in times_ms])
    places = np.minimum(np.array([due_s for due_s, _ in times_ms]) // window_s, windows - 1).astype(int)
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        if not times.size:
            continue
        beyond = np.bincount(places[times >= np.quantile(times, share)], minlength=windows)
        phi = max(least_phi, dispersion(beyond.tolist()))
        bound = quantile_bound(times, share, independent=independent / phi, confidence=_BOUNDS_CONFIDENCE)
        if bound is not None:
            bounds[name] = round(bound, 3)
    return bounds


def _class_summary(
    name: str, attempts: Sequence[Attempt], *, duration_s: float, slo_ms: float, window_s: float
) -> ClassSummary:
    over, sent = _windows(attempts, duration_s=duration_s, slo_ms=slo_ms, window_s=window_s)
    quantiles = _quantiles(_latencies_ms(attempts))
    return ClassSummary(
        name=name,
        requests=len(attempts),
        errors=sum(bool(a.error) for a in attempts),
        over=sum(over),
        goodput_per_s=round((len(attempts) - sum(over)) / duration_s, 3),
        latency_ms={share: quantiles[share] for share in ("p50", "p95", "p99") if share in quantiles},
        over_per_window=over,
        sent_per_window=sent,
    )


def _windows(
    attempts: Sequence[Attempt], *, duration_s: float, slo_ms: float, window_s: float
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(requests over the objective, requests) by the window in which they were due."""
    count = max(1, int(np.ceil(duration_s / window_s)))
    over, sent = [0] * count, [0] * count
    for attempt in attempts:
        at = min(count - 1, int(attempt.due_s / window_s))
        sent[at] += 1
        over[at] += bool(attempt.error) or (attempt.done_s - attempt.due_s) * 1000 > slo_ms
    return tuple(over), tuple(sent)


def _latencies_ms(attempts: Sequence[Attempt]) -> Floats:
    return np.array([(a.done_s - a.due_s) * 1000 for a in attempts if not a.error])


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
    """The verdict of one run under a policy's load section: errors, then the objective, then that of each class by itself.

    `errored` if the generator was late.
    """
    evidence: dict[str, Any] = {
        **asdict(summary),
        "classes": [one.as_evidence(confidence=policy["confidence"]) for one in summary.classes],
        "error_frac": round(summary.error_frac, 6),
        "max_error_frac": policy["max_error_frac"],
        "rate_per_s": policy["rate_per_s"],
        "in_flight": round(summary.in_flight, 3),
        "slo_ms": policy["slo_ms"],
        "slo_quantile": policy["slo_quantile"],
        "seed": policy["seed"],
        "phi": round(max(float(policy["least_dispersion"]), dispersion(summary.over_per_window)), 3),
        "latency_edges_ms": LATENCY_EDGES_MS,
    }
    limited = generator_limit(summary, max_lag_ms=max_lag_ms(policy))
    # what a late generator left unsent, it may have left by itself
    blamed = summary.errors - (summary.unsent if limited else 0)
    if blamed / max(1, summary.requests) > policy["max_error_frac"]:
        why = f": {summary.error_examples[0]}" if summary.error_examples else ""
        return Judgement(
            Verdict.FAILED,
            f"{summary.errors} of {summary.requests} requests failed ({summary.error_frac:.2%}; "
            f"{policy['max_error_frac']:.2%} are allowed){why}. {_asked(summary, policy)}",
            evidence,
        )
    if policy["slo_ms"] is None:
        says = f"{summary.errors} of {summary.requests} requests failed; the policy states no latency objective."
        found = Judgement(Verdict.PASSED, says, evidence)
    else:
        found = _judge_objective(summary, policy, evidence)
    if limited and not proven_all_the_same(summary, found, policy):
        return Judgement(
            Verdict.ERRORED,
            f"generator_limited: {limited}, so the run says nothing about the server.",
            {**evidence, "max_lag_ms": max_lag_ms(policy)},
        )
    return found


def _asked(summary: LoadSummary, policy: Mapping[str, Any]) -> str:
    """The rate that was asked, and the server's own."""
    stated = policy.get("rate_said") or f"the rate is {policy['rate_per_s']:g}/s, the policy's load.rate_per_s"
    return f"{stated[:1].upper()}{stated[1:]}; the server answered {summary.answered_per_s:.3g}/s."


def proven_all_the_same(summary: LoadSummary, found: Judgement, policy: Mapping[str, Any]) -> bool:
    """Whether an objective was met although requests were sent late: lateness adds to what was measured, and takes nothing off.

    Not so where fewer requests were sent than the rate asks for, since a server that is asked less is faster.
    """
    is_whole = summary.achieved_per_s >= 0.99 * summary.offered_per_s and not summary.unsent
    return is_whole and policy["slo_ms"] is not None and found.verdict is Verdict.PASSED


def max_lag_ms(policy: Mapping[str, Any]) -> float:
    """How late the generator may send. By default a fifth of the tightest objective that is stated, at least 20 ms.

    Lag adds to a latency that is measured from when the request was due, so a late generator can fail a good release but never pass
    a bad one. It takes from the time between tokens.
    """
    given = policy["max_lag_ms"]
    stated = [policy[name] for name in ("slo_ms", *OF_TOKENS) if policy.get(name) is not None]
    return float(given) if given is not None else max(20.0, 0.2 * float(min(stated, default=0.0)))


def count_tests(policy: Mapping[str, Any], classes: int) -> int:
    """How many tests of one run can fail it: all requests, each of several classes, and what is asked of the times of tokens."""
    return 1 + classes + sum(policy.get(name) is not None for name in OF_TOKENS)


def _judge_objective(summary: LoadSummary, policy: Mapping[str, Any], evidence: dict[str, Any]) -> Judgement:
    quantile, confidence = float(policy["slo_quantile"]), float(policy["confidence"])
    tests = count_tests(policy, len(summary.classes))
    proof = first_proof(summary.over_per_window, summary.sent_per_window, policy, tests=tests)
    found, size = proof.found, sizing(policy)
    evidence["slo_test"] = {
        "over": found.over,
        "requests": found.n,
        "seconds": proof.windows * WINDOW_S,
        "phi": round(found.phi, 3),
        "log_e_pass": round(found.log_e_pass, 6),
        "log_e_fail": round(found.log_e_fail, 6),
        "confidence": confidence,
        "least_requests_to_pass": size.requests,
        "least_seconds_to_pass": round(size.seconds, 3),
        "deadline_s": size.deadline_s,
    }
    asked = f"at most {1 - quantile:.2%} may be"
    counted = f"{found.over} of {found.n} requests were over {policy['slo_ms']:g} ms"
    if found.n != summary.requests:
        whole = f"{sum(summary.over_per_window)} of {summary.requests}"
        counted += f" in the first {proof.windows * WINDOW_S:g} s ({whole} in the whole run)"
    for one in summary.classes:
        own = first_proof(one.over_per_window, one.sent_per_window, policy, tests=tests, of=(Verdict.FAILED,)).found
        if own.verdict is Verdict.FAILED and found.verdict is not Verdict.FAILED:
            slow = f"Of the class {one.name} {own.over} of {own.n} requests were over {policy['slo_ms']:g} ms"
            said = f"{slow} and {asked} of each class: refuted at confidence {confidence:g}. Of all, {counted}."
            return Judgement(Verdict.FAILED, said, evidence)
    if found.verdict is Verdict.UNDECIDED:
        more = f"; a pass takes at least {size.requests} requests" if summary.requests < size.requests else ""
        return Judgement(found.verdict, f"{counted} and {asked}: not enough evidence either way{more}.", evidence)
    proven = "proven" if found.verdict is Verdict.PASSED else "refuted"
    return Judgement(found.verdict, f"{counted} and {asked}: {proven} at confidence {confidence:g}.", evidence)
