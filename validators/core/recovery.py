"""Whether a server gets over a burst: more than the rate for some seconds, then the rate again.

A server that stays slow after the cause is gone (a metastable failure) meets its objective at leisure, and a full queue may
empty; only the traffic that goes on while it recovers shows it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from validators.core.load import Attempt, Floats, arrivals_of, max_lag_ms
from validators.core.verdict import Judgement, Verdict

#: A server is still in trouble while this share of requests more than the objective allows, of those that remain, is over.
_TROUBLED_FRAC = 0.2
#: While it is in trouble, one stretch in this many requests looks recovered.
_BAR = math.log(1000)
#: What the evidence of one request in time is, and how many of them in a row are enough.
_IN_TIME = -math.log(1 - _TROUBLED_FRAC)
LEAST_REQUESTS = math.ceil(_BAR / _IN_TIME)
#: The traffic lasts this many times the least beyond `recovery_s`, for those that are over although all is well.
_ROOM = 3


def is_asked(policy: Mapping[str, Any]) -> bool:
    """Whether there is an objective to come back to, a burst, and a rate at which `max_duration_s` shows that it came back."""
    has_burst = policy["slo_ms"] is not None and policy["burst_s"] > 0
    return has_burst and policy["rate_per_s"] * policy["max_duration_s"] >= LEAST_REQUESTS


def surge(policy: Mapping[str, Any], *, seed: int) -> Floats:
    """Instants of requests: `burst_factor` times the rate for `burst_s`, then the rate for `recovery_s` and for the proof.

    Both in the arrivals of the load section, so that what is burstier than chance stays so, and is denser in the burst.
    """
    rate_per_s, burst_s = float(policy["rate_per_s"]), float(policy["burst_s"])
    after_s = float(policy["recovery_s"]) + _ROOM * LEAST_REQUESTS / rate_per_s
    burst = arrivals_of(policy, policy["burst_factor"] * rate_per_s, burst_s, seed=seed)
    return np.concatenate([burst, burst_s + arrivals_of(policy, rate_per_s, after_s, seed=seed + 1)])


def recovered_after_s(attempts: Sequence[Attempt], policy: Mapping[str, Any]) -> float | None:
    """Seconds from the end of the burst to where the objective holds again; None where it does not. In the order of being due.

    What was not sent is not looked at: a gateway would have shed it, and it says nothing of the server.

    Source: Page's cumulative sum (1954) of log likelihood ratios, of the allowed share over the objective against the
    share in trouble; it is back where the stretch began that reached the bar.
    """
    allowed = 1 - float(policy["slo_quantile"])
    over = math.log(allowed / (allowed + _TROUBLED_FRAC * (1 - allowed)))
    total, began_s = 0.0, 0.0
    for attempt in attempts:
        after_s = attempt.due_s - float(policy["burst_s"])
        if after_s < 0 or not attempt.is_sent:
            continue
        if total == 0:
            began_s = after_s
        is_over = bool(attempt.error) or (attempt.done_s - attempt.due_s) * 1000 > policy["slo_ms"]
        total = max(0.0, total + (over if is_over else _IN_TIME))
        if total >= _BAR:
            return began_s
    return None


def judge_recovery(found: Judgement, attempts: Sequence[Attempt], policy: Mapping[str, Any]) -> Judgement:
    """`found`, or failed where the objective does not hold again `recovery_s` after the burst; errored if the client was late."""
    back_s, allowed_s = recovered_after_s(attempts, policy), float(policy["recovery_s"])
    after = [attempt for attempt in attempts if attempt.due_s >= policy["burst_s"]]
    lags_ms = [(attempt.sent_s - attempt.due_s) * 1000 for attempt in after] or [0.0]
    lag_ms = float(np.quantile(lags_ms, 0.99))
    told = {
        "burst_per_s": round(policy["burst_factor"] * policy["rate_per_s"], 3),
        "burst_s": policy["burst_s"],
        "burst_requests": len(attempts) - len(after),
        "requests_after": len(after),
        "allowed_s": allowed_s,
        "recovered_after_s": None if back_s is None else round(back_s, 3),
        "lag_p99_ms": round(lag_ms, 3),
    }
    evidence = {**found.evidence, "recovery": told}
    if back_s is not None and back_s <= allowed_s:
        return Judgement(found.verdict, found.reason, evidence)
    burst = f"After {policy['burst_s']:g} s at {told['burst_per_s']:g} requests/s"
    if lag_ms > max_lag_ms(policy):
        late = f"generator_limited: {burst} it sent 1 % of its requests more than {lag_ms:.0f} ms late, so"
        return Judgement(Verdict.ERRORED, f"{late} they say nothing about the server.", evidence)
    when = f"only after {back_s:.1f} s" if back_s is not None else "not"
    reason = (
        f"{burst} it was {when} back within {policy['slo_ms']:g} ms at {policy['rate_per_s']:g}/s, and {allowed_s:g} s "
        f"are allowed. Before: {found.reason}"
    )
    return Judgement(Verdict.FAILED, reason, evidence)
