"""The gpu gate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from registry.core.schema import Flag, ListOf, Record, Text, may
from validators.core.envelope_values import Observed, Reader, load_of
from validators.core.gates.fields import FRACTION, OrNone
from validators.core.gates.gate import Demand, Evidence, Gate, Plan, Section, sentence
from validators.core.gpu_checks import CHECKS
from validators.core.verdict import Verdict


def _explain(own: Section, plan: Plan) -> Iterator[Demand]:
    checks = "; ".join(CHECKS[name] for name in CHECKS if name in own["must_know"])
    certifies = sentence(
        "nothing that the driver told of this run speaks against it; not that the GPU is well afterwards"
    )
    yield Demand("gpu", "gpu.must_know", f"Known of each GPU under load and capacity: {checks}.", certifies, 0.0, 10.0)
    if own["max_power_capped_frac"] is not None:
        demands = f"Its power limit holds it back for at most {own['max_power_capped_frac'] * 100:g} % of the time."
        yield Demand("gpu", "gpu.max_power_capped_frac", demands, "The share of this run, as the driver counts it.")


def _of_gpus(name: str, factor: float = 1.0) -> Reader:
    """The greatest over its GPUs. The capacity gate searches under more load than is declared, so its window refutes nothing."""

    def read(evidence: Evidence, verdict: Verdict, declared: Any) -> Iterator[Observed]:
        told = [one[name] for one in evidence.get("gpus") or () if one.get(name) is not None]
        windows = {window["gate"] for window in evidence.get("windows") or ()}
        if told and windows:
            value = max(told) * factor
            yield Observed(value, bound=value if windows == {"load"} else None, **load_of(evidence))

    return read


GPU: Final = Gate(
    name="gpu",
    section=Record(
        {
            "must_know": may(
                ListOf(Text(one_of=tuple(CHECKS), says="a check of a GPU"), least=1, most=len(CHECKS)), list(CHECKS)
            ),
            "alone": may(Flag(), True),
            "max_power_capped_frac": may(OrNone(FRACTION), None),
        }
    ),
    explain=_explain,
    on_demand=True,
    watches=True,
    reads={"power_w": _of_gpus("highest_power_w"), "gpu_util_pct": _of_gpus("median_busy_frac", 100.0)},
)
