"""The time to a stream's first response, which users of a language model wait for, and the gaps between its responses.

TTFT (time to first token) counts from when a request was due, ITL (inter-token latency) from one response to the next.
A request that is answered in one response has its first token with it, and no gaps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from validators.core.load import (
    Attempt,
    LoadSummary,
    count_tests,
    generator_limit,
    max_lag_ms,
    summarise,
)
from validators.core.proof import first_proof
from validators.core.verdict import Judgement, Verdict


def until_first(attempt: Attempt) -> Attempt:
    """The same request, as if it had ended with its first response."""
    return replace(attempt, done_s=attempt.came_s[0]) if attempt.came_s else attempt


def summarise_first(attempts: Sequence[Attempt], *, duration_s: float, ttft_slo_ms: float | None) -> LoadSummary:
    """The numbers of a run up to each first response; `over` is beyond `ttft_slo_ms`, where one is stated."""
    slo_ms = float("inf") if ttft_slo_ms is None else ttft_slo_ms
    return summarise([until_first(one) for one in attempts], duration_s=duration_s, slo_ms=slo_ms)


def token_times(attempts: Sequence[Attempt], first: LoadSummary) -> dict[str, Any]:
    """`ttft_ms` and `itl_ms` (p50, p95, p99) of answered requests, and how many `responses` those had; {} where none streamed."""
    streamed = [one.came_s for one in attempts if one.came_s and not one.error]
    if not streamed:
        return {}
    gaps_ms = np.concatenate([np.diff(came_s) for came_s in streamed]) * 1000
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    itl_ms = (
        {name: round(float(np.quantile(gaps_ms, share)), 3) for name, share in shares.items()} if gaps_ms.size else {}
    )
    ttft_ms = {name: first.latency_ms[name] for name in shares}
    return {"ttft_ms": ttft_ms, "itl_ms": itl_ms, "responses": sum(map(len, streamed))}


def judge_first(found: Judgement, whole: LoadSummary, first: LoadSummary, policy: Mapping[str, Any]) -> Judgement:
    """What the run of `whole` answers was found, unless too many waited too long for the first response, where that is asked.

    It passes where both objectives are proven. `errored` if a late generator may have made the wait.
    """
    slo_ms = policy.get("ttft_slo_ms")
    if slo_ms is None or found.verdict not in (Verdict.PASSED, Verdict.UNDECIDED):
        return found
    tests = count_tests(policy, len(whole.classes))
    proof = first_proof(first.over_per_window, first.sent_per_window, policy, tests=tests).found
    told = {"over": proof.over, "requests": proof.n, "phi": round(proof.phi, 3), "verdict": proof.verdict.value}
    evidence = {**found.evidence, "ttft_slo_ms": slo_ms, "ttft_test": told}
    waited = f"{proof.over} of {proof.n} waited more than {slo_ms:g} ms for the first token"
    limited = generator_limit(whole, max_lag_ms=max_lag_ms(policy))
    if limited and proof.verdict is not Verdict.PASSED:
        said = f"generator_limited: {limited}, so the run says nothing about the time to the first token."
        return Judgement(Verdict.ERRORED, said, {**evidence, "max_lag_ms": max_lag_ms(policy)})
    if proof.verdict is Verdict.FAILED:
        asked = f"at most {1 - float(policy['slo_quantile']):.2%} may: refuted at confidence {policy['confidence']:g}"
        return Judgement(Verdict.FAILED, f"Time to first token: {waited} and {asked}. {found.reason}", evidence)
    if proof.verdict is Verdict.UNDECIDED:
        said = f"{found.reason} Time to first token: {waited}: not enough evidence either way."
        return Judgement(Verdict.UNDECIDED, said, evidence)
    return Judgement(found.verdict, f"{found.reason} Time to first token: {waited}: proven.", evidence)


def is_blamed(found: Judgement) -> bool:
    """Whether it is the time to the first response that failed, and the whole answers did not."""
    return bool(found.evidence.get("ttft_test", {}).get("verdict") == Verdict.FAILED.value)
