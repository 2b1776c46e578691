"""Runs a gate: it measures through its runner, and its core judges the measurement."""

from __future__ import annotations

from collections.abc import Callable

from serving.ports import InferenceError
from validators.core.envelope import judged
from validators.core.gates import GATES
from validators.core.verdict import Judgement, Verdict
from validators.execution.gates.capacity import capacity_gate
from validators.execution.gates.cold_start import cold_start_gate
from validators.execution.gates.context import Baseline, GateContext
from validators.execution.gates.contract import contract_gate
from validators.execution.gates.golden import golden_gate
from validators.execution.gates.gpu import await_reading, excused, gpu_gate
from validators.execution.gates.load import load_gate
from validators.execution.gates.resources import resources_gate

__all__ = ["MEASURES", "Baseline", "GateContext", "run_gate"]

#: The part of each gate that measures on a server, by the gate's name in `validators.core.gates.GATES`.
MEASURES: dict[str, Callable[[GateContext], Judgement]] = {
    "contract": contract_gate,
    "cold_start": cold_start_gate,
    "golden": golden_gate,
    "load": load_gate,
    "resources": resources_gate,
    "capacity": capacity_gate,
    "gpu": gpu_gate,
}
#: Gates that watch, and what they make of the failure of a watched gate: (judgement, its gate, context) → judgement.
EXCUSES: dict[str, Callable[[Judgement, str, GateContext], Judgement]] = {"gpu": excused}


def run_gate(name: str, context: GateContext) -> Judgement:
    """The gate's judgement; a server that is gone, or a set that does not fit, is `errored`, as the check did not happen."""
    try:
        watching = [other for other in context.policy.gates if GATES[name].is_watched and GATES[other].watches]
        if watching:
            await_reading(context)
        found = judged(
            MEASURES[name](context),
            name,
            context.envelope,
            context.policy.of("envelope"),
            hardware=context.hardware,
            uses_gpu=context.uses_gpu,
            queue_delay_ms=context.queue_delay_ms,
            load_per_s=float(context.policy.of("load")["rate_per_s"]),
        )
        for other in watching:
            if other in EXCUSES and found.verdict is Verdict.FAILED:
                found = EXCUSES[other](found, name, context)
        return found
    except InferenceError as error:
        return Judgement(
            Verdict.ERRORED, f"The server of {context.release} could not be asked: {error.message} [{error.reason}]"
        )
    except ValueError as error:
        return Judgement(Verdict.ERRORED, f"The gate could not be run: {error}.")
