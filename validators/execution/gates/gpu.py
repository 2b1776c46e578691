"""The gpu gate: what the GPUs said while load and capacity measured on them, and whom a failure of those two is to be blamed on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from validators.core.gpu_checks import Finding, Watch, window_of
from validators.core.gpu_health import judge_gpu
from validators.core.verdict import Judgement, Verdict
from validators.execution.gates.context import GateContext

#: A reading before the first measurement and one after the last are waited for so often, so long each time: the agent reads every
#: second, but every five until it has seen that a server came up.
_LOOKS, _LOOK_EVERY_S = 20, 0.5
#: What a failure becomes that is not the release's.
_EXCUSES: Final = {Finding.NODE: Verdict.ERRORED, Finding.PERF_INVALID: Verdict.UNDECIDED}


def gpu_gate(context: GateContext) -> Judgement:
    """Was the GPU well and undisturbed, and did the release keep to it?"""
    return _judged(context, context.gpus)


def await_reading(context: GateContext) -> None:
    """Before a measurement: the first reading since the server came up, as a measurement that began unseen proves nothing."""
    if not context.uses_gpu:
        return
    for _ in range(_LOOKS):
        watch = context.gpus()
        if watch.readings or not watch.is_read:
            return
        context.say("waiting for the first reading of its GPU")
        time.sleep(_LOOK_EVERY_S)


def excused(failed: Judgement, gate: str, context: GateContext) -> Judgement:
    """What `gate` found, unless its GPU was at fault or held back: then the release did not fail."""
    window = window_of(gate, failed.evidence, time.time())
    found = _judged(context, lambda: replace(context.gpus(), windows=(window,) if window else (), unwatched=()))
    verdict = _EXCUSES.get(Finding(found.evidence.get("finding", Finding.WELL)))
    if verdict is None:
        return failed
    evidence = {
        name: value for name, value in failed.evidence.items() if name != "envelope"
    }  # it measured the GPU's fault
    return Judgement(verdict, f"{found.reason} Measured was: {failed.reason}", {**evidence, "gpu": found.evidence})


def _judged(context: GateContext, read: Callable[[], Watch]) -> Judgement:
    watch = read()
    for look in range(_LOOKS):
        if not watch.windows or not watch.readings or watch.readings[-1].at_s >= watch.windows[-1].ended_s:
            break
        context.progress(look, _LOOKS)
        time.sleep(_LOOK_EVERY_S)
        watch = read()
    accelerator = context.envelope.get("accelerator") or {}
    declared_mib = accelerator.get("memory_mib_peak_declared") or accelerator.get("memory_mib_min")
    return judge_gpu(watch, context.policy.of("gpu"), declares=context.uses_gpu, declared_mib=declared_mib)
