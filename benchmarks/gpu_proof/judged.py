"""From the product's judgements to outcomes: a good release must pass its gate, and its bad twin must not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.gpu_proof.outcome import Outcome, Verdict, unknown
from validators.core.verdict import Judgement
from validators.core.verdict import Verdict as Gate


def judged(good: Judgement, bad: Judgement, *, twin: str, numbers: Mapping[str, Any] | None = None) -> Outcome:
    """Proved if the gate passed the good release and failed its `twin` (words for the fault); refuted if it did the opposite."""
    found = {"good": evidence_of(good), "bad": evidence_of(bad), **(numbers or {})}
    if good.verdict is Gate.FAILED:
        return Outcome(Verdict.REFUTED, f"The gate failed the good release: {good.reason}", found)
    if bad.verdict is Gate.PASSED:
        return Outcome(Verdict.REFUTED, f"The gate passed a release with {twin}: {bad.reason}", found)
    if good.verdict is not Gate.PASSED:
        return unknown(f"The gate did not decide on the good release: {good.reason}", **found)
    if bad.verdict is not Gate.FAILED:
        return unknown(f"The gate did not decide on {twin}: {bad.reason}", **found)
    return Outcome(Verdict.PROVED, f"Passed: {good.reason} Failed with {twin}: {bad.reason}", found)


def evidence_of(found: Judgement) -> dict[str, Any]:
    return {"verdict": str(found.verdict), "reason": found.reason, "evidence": found.evidence}
