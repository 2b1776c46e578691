"""The time to a stream's first response, which users of a language model wait for, and the gaps between its responses.

TTFT (time to first token) counts from when a request was due, ITL (inter-token latency) from one response to the next.
A request that is answered in one response has its first token with it, and no gaps: of these it says nothing, good or bad.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from validators.core.load import Attempt, LoadSummary, bounds_of, count_tests, generator_limit, max_lag_ms, summarise
from validators.core.proof import first_proof
from validators.core.slo import DISPERSION_SAFETY
from validators.core.verdict import Judgement, Verdict


def until_first(attempt: Attempt) -> Attempt:
    """The same request, as if it had ended with its first response."""
    return replace(attempt, done_s=attempt.came_s[0]) if attempt.came_s else attempt


def mean_gap(attempt: Attempt) -> Attempt | None:
    """The same request, as if it had taken the mean gap between its responses; None of an answer without gaps.

    One for each request: the gaps of one stream hang together, and counting each would take one slow stream for many.
    """
    came_s = attempt.came_s
    if len(came_s) < 2:
        return attempt if attempt.error else None
    return replace(attempt, done_s=attempt.due_s + (came_s[-1] - came_s[0]) / (len(came_s) - 1))


@dataclass(frozen=True)
class TokenObjective:
    """What a load section may ask of responses, in its field `<name>_slo_ms`.

    `seen`: a request as this objective sees it, if it does. `outlasts_lag`: a generator that is late cannot make it look better.
    """

    name: str
    title: str
    counted: str
    seen: Callable[[Attempt], Attempt | None]
    outlasts_lag: bool

    def slo_ms(self, policy: Mapping[str, Any]) -> float | None:
        """None where the policy does not ask for it."""
        return policy.get(f"{self.name}_slo_ms")


FIRST_TOKEN = TokenObjective(
    "ttft", "Time to first token", "waited more than {:g} ms for the first token", until_first, outlasts_lag=True
)
#: Not proven by a generator that is late: who reads the first response late sees shorter gaps.
BETWEEN_TOKENS = TokenObjective(
    "itl", "Time between tokens", "took more than {:g} ms from response to response", mean_gap, outlasts_lag=False
)
OBJECTIVES = (FIRST_TOKEN, BETWEEN_TOKENS)


def asked_of(policy: Mapping[str, Any]) -> list[tuple[TokenObjective, float]]:
    """The objectives that a load section states, each with its milliseconds."""
    return [(one, slo_ms) for one in OBJECTIVES if (slo_ms := one.slo_ms(policy)) is not None]


def summarise_seen(
    attempts: Sequence[Attempt], objective: TokenObjective, *, duration_s: float, policy: Mapping[str, Any]
) -> LoadSummary:
    """The numbers of a run as an objective sees it; nothing is `over` of an answer where the policy does not state it."""
    seen = [sight for one in attempts if (sight := objective.seen(one)) is not None]
    slo_ms = objective.slo_ms(policy)
    least_phi = float(policy.get("least_dispersion", DISPERSION_SAFETY))
    return summarise(
        seen, duration_s=duration_s, slo_ms=float("inf") if slo_ms is None else slo_ms, least_phi=least_phi
    )


def token_times(attempts: Sequence[Attempt], first: LoadSummary) -> dict[str, Any]:
    """`ttft_ms` and `itl_ms` (p50, p95, p99) of answered requests with their lower bounds, and the number of their `responses`.

    {} if none streamed. The gaps of one stream hang together, so that each stream counts as one independent gap.
    """
    answered = [one for one in attempts if one.came_s and not one.error]
    streamed = [one.came_s for one in answered]
    if not streamed:
        return {}
    gaps_ms = np.concatenate([np.diff(came_s) for came_s in streamed]) * 1000
    due_s = np.repeat([one.due_s for one in answered], [len(came_s) - 1 for came_s in streamed])
    streams = sum(len(came_s) > 1 for came_s in streamed)
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    itl_ms = (
        {name: round(float(np.quantile(gaps_ms, share)), 3) for name, share in shares.items()} if gaps_ms.size else {}
    )
    ttft_ms = {name: first.latency_ms[name] for name in shares}
    return {
        "ttft_ms": ttft_ms,
        "ttft_low_ms": dict(first.latency_low_ms),
        "itl_ms": itl_ms,
        "itl_low_ms": bounds_of(
            list(zip(due_s.tolist(), gaps_ms.tolist(), strict=True)),
            windows=len(first.over_per_window),
            streams=streams,
        ),
        "streams": streams,
        "responses": sum(map(len, streamed)),
    }


def judge_tokens(
    found: Judgement, whole: LoadSummary, seen: Mapping[TokenObjective, LoadSummary], policy: Mapping[str, Any]
) -> Judgement:
    """What the run of `whole` answers was found, unless too many missed an objective on their responses, where one is asked.

    It passes where all objectives are proven. `errored` if a late generator may have made what was `seen`.
    """
    for objective, slo_ms in asked_of(policy):
        if found.verdict in (Verdict.PASSED, Verdict.UNDECIDED):
            found = _judge(objective, slo_ms, found, whole, seen[objective], policy)
    return found


def _judge(
    objective: TokenObjective,
    slo_ms: float,
    found: Judgement,
    whole: LoadSummary,
    seen: LoadSummary,
    policy: Mapping[str, Any],
) -> Judgement:
    tests = count_tests(policy, len(whole.classes))
    proof = first_proof(seen.over_per_window, seen.sent_per_window, policy, tests=tests).found
    told: dict[str, Any] = {
        "over": proof.over,
        "requests": proof.n,
        "phi": round(proof.phi, 3),
        "verdict": proof.verdict.value,
    }
    evidence = {**found.evidence, f"{objective.name}_slo_ms": slo_ms, f"{objective.name}_test": told}
    counted = f"{objective.title}: {proof.over} of {proof.n} {objective.counted.format(slo_ms)}"
    if unseen := whole.requests - seen.requests:
        told["unseen"] = unseen
        counted += f" (on average; {unseen} had no second one)"
    limited = generator_limit(whole, max_lag_ms=max_lag_ms(policy))
    if limited and not (objective.outlasts_lag and proof.verdict is Verdict.PASSED):
        said = f"generator_limited: {limited}, so the run says nothing about the {objective.title.lower()}."
        return Judgement(Verdict.ERRORED, said, {**evidence, "max_lag_ms": max_lag_ms(policy)})
    if proof.verdict is Verdict.FAILED:
        asked = f"at most {1 - float(policy['slo_quantile']):.2%} may: refuted at confidence {policy['confidence']:g}"
        return Judgement(Verdict.FAILED, f"{counted} and {asked}. {found.reason}", evidence)
    if proof.verdict is Verdict.UNDECIDED:
        return Judgement(Verdict.UNDECIDED, f"{found.reason} {counted}: not enough evidence either way.", evidence)
    return Judgement(found.verdict, f"{found.reason} {counted}: proven.", evidence)


def blamed(found: Judgement) -> TokenObjective | None:
    """The objective on responses that failed where the whole answers did not."""
    for one in OBJECTIVES:
        if found.evidence.get(f"{one.name}_test", {}).get("verdict") == Verdict.FAILED.value:
            return one
    return None
