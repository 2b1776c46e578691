"""The resources gate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from registry.core.schema import Integer, Number, Record, may
from validators.core.envelope_values import MIB, Observed, Reader, load_of
from validators.core.gates.fields import CONFIDENCE, FRACTION, MILLISECONDS, UNDECIDED, OrNone
from validators.core.gates.gate import Demand, Evidence, FormField, Gate, Metric, Plan, Section, sentence, wrongly
from validators.core.verdict import Verdict


def _explain(own: Section, plan: Plan) -> Iterator[Demand]:
    demands = f"A request leaves at most {own['max_growth_bytes']:g} bytes of memory behind, over {own['min_requests']} requests or more."
    leaks = f"no steady leak beyond that, {wrongly(own['confidence'])}; not one in pieces that are seldomer than a ninth of the run"
    yield Demand("resources", "resources.max_growth_bytes", demands, sentence(leaks), 0.0, float(own["max_soak_s"]))
    if own["max_cpu_ms"] is not None:
        demands = f"A request takes at most {own['max_cpu_ms']:g} ms of CPU time."
        yield Demand("resources", "resources.max_cpu_ms", demands, "The average of this run, without an interval.")


def _metrics(evidence: Evidence) -> Iterator[Metric]:
    if isinstance(held := (evidence.get("peaks") or {}).get("memory_bytes"), int):
        yield Metric("resources", "most memory", "MiB", False, held / MIB)
    if isinstance(value := evidence.get("cpu_ms_per_request"), int | float):
        yield Metric("resources", "cpu time per request", "ms", False, value, n=evidence.get("requests"))


def _peak_of(*path: str) -> Reader:
    """MiB that the server's own processes held at most; of GPU memory on each device, on average."""

    def read(evidence: Evidence, verdict: Verdict, declared: Any) -> Iterator[Observed]:
        found: Any = evidence
        for name in path:
            found = (found or {}).get(name)
        if found is not None:
            held = found / MIB / (evidence["devices"] if path[-1] == "gpu_memory_bytes" else 1)
            yield Observed(held, bound=held, **load_of(evidence))

    return read


def _cores(evidence: Evidence, verdict: Verdict, declared: Any) -> Iterator[Observed]:
    cores = evidence.get("cores_used")
    if cores is not None:
        yield Observed(float(cores), bound=float(cores))


_GPU_MEMORY: Final = _peak_of("gpu_memory_bytes")
RESOURCES: Final = Gate(
    name="resources",
    section=Record(
        {
            "max_growth_bytes": may(Number(0, 2**40), 4096),
            "max_growth_files": may(FRACTION, 0.02),
            "max_cpu_ms": may(OrNone(MILLISECONDS), None),
            "min_requests": may(Integer(0, 10_000_000, unit="requests"), 2000),
            "max_soak_s": may(Number(0, 3600, unit="seconds"), 90),
            "confidence": may(CONFIDENCE, 0.95),
            "undecided": may(UNDECIDED, "block"),
        }
    ),
    explain=_explain,
    on_demand=True,
    runs_alone=True,
    metric_names=("most memory", "cpu time per request"),
    metrics=_metrics,
    thresholds=lambda own: {"cpu time per request": own.get("max_cpu_ms")},
    reads={
        "host.memory_mib_min": _peak_of("peaks", "memory_bytes"),
        "host.shm_mib_min": _peak_of("peaks", "shared_bytes"),
        "host.cpu_cores_min": _cores,
        "accelerator.memory_mib_peak_declared": _GPU_MEMORY,
        "gpu_memory_mib_peak": _GPU_MEMORY,
    },
    figures=("memory",),
    form=(
        FormField("max_growth_bytes", "A request may leave behind", "bytes of memory"),
        FormField("max_cpu_ms", "A request may compute", "milliseconds of CPU time, or none"),
        FormField("min_requests", "Memory is watched for", "requests at least"),
        FormField("max_soak_s", "With a soak of at most", "seconds"),
    ),
)
