"""What the GPUs under a measurement say of it: a fault of the hardware, a fault of the release, or a measurement that does not count.

Facts of the hardware come before facts of the release: on a GPU that is broken, what a release did proves nothing against it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from validators.core.gates import GATES
from validators.core.gpu_checks import CHECKS, Finding, GpuCheck, Watch, checks_of, own_gpus, series_of
from validators.core.gpu_summary import summary_of
from validators.core.verdict import Judgement, Verdict

#: GPUs that a report tells of.
MOST_GPUS: Final = 16


def judge_gpu(watch: Watch, policy: Mapping[str, Any], *, declares: bool, declared_mib: int | None) -> Judgement:
    """The first of NODE, RELEASE, PERF_INVALID and UNKNOWN that any check of any of its GPUs gives, with every check in the evidence.

    Args:
        policy: the gate's section.
        declares: whether the release may compute on a GPU; one that may not has nothing to prove, but must keep off them.
        declared_mib: of memory on each device; None where the envelope does not say.
    """
    own = own_gpus(watch)
    if not declares:
        return _not_declared(own)
    if watch.unwatched:
        return _undecided(f"Nobody watched the GPUs for {' and '.join(watch.unwatched)}, which measured another server")
    if not watch.windows:
        return _undecided("It was under no load: load or capacity has to measure the same server before")
    every = {gpu.uuid for one in watch.readings for gpu in one.gpus if gpu.parent_uuid is None}
    if not every:
        return _undecided(f"The GPUs of its node were not read: {watch.why_not or 'its agent told nothing'}")
    chosen = sorted(own or every)[:MOST_GPUS]
    checks = [check for uuid in chosen for check in checks_of(watch, uuid, policy, declared_mib)]
    return _judgement(watch, checks, policy, chosen)


def counts(report: Mapping[str, Any]) -> bool:
    """Whether what a report's body measured counts: where its gpu gate watched, only if that passed."""
    return all(one["verdict"] == Verdict.PASSED for one in report.get("gates") or () if GATES[one["gate"]].watches)


def _not_declared(own: set[str]) -> Judgement:
    evidence = {"declares_gpu": False, "checks": [], "unknown": []}
    if own:
        sentence = f"It computes on {', '.join(sorted(own))}, and declares no GPU."
        return Judgement(Verdict.FAILED, sentence, {**evidence, "finding": Finding.RELEASE.value})
    return Judgement(Verdict.PASSED, "It declares no GPU: nothing to prove.", evidence)


def _undecided(why: str) -> Judgement:
    evidence = {"declares_gpu": True, "finding": Finding.UNKNOWN.value, "checks": [], "unknown": sorted(CHECKS)}
    return Judgement(Verdict.UNDECIDED, f"{why}.", evidence)


def _judgement(watch: Watch, checks: Sequence[GpuCheck], policy: Mapping[str, Any], uuids: Sequence[str]) -> Judgement:
    unknown = sorted({check.name for check in checks if check.finding is Finding.UNKNOWN})
    asked = [name for name in unknown if name in policy["must_know"]]
    found = next(
        (
            kind
            for kind in (Finding.NODE, Finding.RELEASE, Finding.PERF_INVALID)
            if any(c.finding is kind for c in checks)
        ),
        Finding.UNKNOWN if asked else Finding.WELL,
    )
    said = [
        check for check in checks if check.finding is found and (found is not Finding.UNKNOWN or check.name in asked)
    ]
    what = "; ".join(dict.fromkeys(f"{check.gpu}: {check.sentence}" if check.gpu else check.sentence for check in said))
    let_go = [name for name in unknown if name not in asked]
    also = f" Unknown, which the policy allows: {', '.join(let_go)}." if let_go else ""
    verdict, sentence = {
        Finding.NODE: (Verdict.ERRORED, f"The machine is at fault, not the release: {what}. Cordon it, and run the gates again."),
        Finding.RELEASE: (Verdict.FAILED, f"The release is at fault: {what}."),
        Finding.PERF_INVALID: (Verdict.UNDECIDED, f"What was measured does not count, measure again: {what}."),
        Finding.UNKNOWN: (Verdict.UNDECIDED, f"It cannot be told whether the GPU was well: {what}."),
        Finding.WELL: (Verdict.PASSED, f"The GPU was well and undisturbed, and the release kept to it.{also}"),
    }[found]  # fmt: skip
    evidence = {
        "declares_gpu": True,
        "finding": found.value,
        "checks": [
            {"check": one.name, "gpu": one.gpu, "finding": one.finding.value, "sentence": one.sentence}
            for one in checks
        ],
        "unknown": unknown,
        "windows": [{"gate": one.gate, "began_s": one.began_s, "ended_s": one.ended_s} for one in watch.windows],
        "readings": len(watch.readings),
        "gpus": [summary_of(series_of(watch.readings, uuid)) for uuid in uuids],
    }
    return Judgement(verdict, sentence, evidence)
