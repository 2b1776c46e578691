"""The values of an envelope that gates measure, and the field that declares each.

A new value is one entry of `VALUES` and a reader in the `reads` of its gate. A performance entry holds for its own hardware
and load shape; the other fields hold for every load.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from registry.core.schema import Number, Record, Text, may
from validators.core.verdict import Verdict

MIB: Final = 2**20
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
Evidence = Mapping[str, Any]


class Rule(StrEnum):
    """How a measured value is held to its declaration."""

    LIMIT = "limit"  # at most this, without tolerance: nodes are filled by it, so that a value that was not read is undecided
    MOST = "most"  # at most this, within the policy's tolerance
    LEAST = "least"  # at least this; a gate that counted against it refutes it


@dataclass(frozen=True)
class Observed:
    """One measurement.

    Attributes:
        value: in the unit of the declaration; None if only `bound` was measured.
        bound: refutes a declaration that is beyond it. A lower confidence bound of `value`, or for a throughput the least rate that
            was refuted. None: the measurement refutes nothing.
        proves: whether `value` can stand for the declaration.
        counted, needed: requests; with fewer than are needed, a quantile or a share proves nothing.
        rate_per_s, in_flight: the load; both None if the value depends on no load.
        is_overload: whether the gate chose the load to find a limit, so that it speaks for no declaration without a load.
    """

    value: float | None
    bound: float | None = None
    proves: bool = True
    counted: int | None = None
    needed: int | None = None
    rate_per_s: float | None = None
    in_flight: float | None = None
    is_overload: bool = False


#: (gate's evidence, its verdict, the declaration) → measurements; none if the gate did not read the value.
Reader = Callable[[Evidence, Verdict, Any], Iterator[Observed]]


@dataclass(frozen=True)
class Value:
    """`field`: within the envelope, or within a performance entry if `of_entry`."""

    field: str
    words: str
    unit: str
    rule: Rule
    of_entry: bool = False
    of_gpu: bool = False

    @property
    def of_streams(self) -> bool:
        return self.field.startswith(("ttft_ms", "itl_ms"))

    @property
    def of_start(self) -> bool:
        """Whether it belongs to the start of a server, which no load changes."""
        return self.field.startswith("cold_start_s")


def times(name: str, share: str) -> Reader:
    """A quantile of times under load, in ms: `<name>` and its lower bound `<name>` with `_low_ms`, of a load run or a searched rate."""

    def read(evidence: Evidence, verdict: Verdict, declared: Any) -> Iterator[Observed]:
        times = evidence.get(name) or {}
        if share not in times:
            return
        low = (evidence.get(name.replace("_ms", "_low_ms")) or {}).get(share)
        is_excused = "beside_stable" in evidence and verdict is not Verdict.FAILED  # the machine may be to blame
        requests, errors = int(evidence.get("requests") or 0), int(evidence.get("errors") or 0)
        counted = int(evidence.get("streams") or 0) if name == "itl_ms" else requests - errors
        beyond = 1 - QUANTILES[share]  # the share of requests that may be slower; one that failed had no answer in time
        yield Observed(
            float(times[share]),
            None if is_excused else low,
            proves=errors <= requests * beyond,
            counted=counted,
            needed=math.ceil(round(1 / beyond, 6)),
            **load_of(evidence),
        )

    return read


def load_of(evidence: Evidence) -> dict[str, Any]:
    """The load of a run: requests per second as asked, and requests in flight on average."""
    return {name: None if (load := evidence.get(name)) is None else float(load) for name in ("rate_per_s", "in_flight")}


def _under_load(name: str, words: str) -> Iterator[Value]:
    for share in QUANTILES:
        yield Value(f"{name}.{share}", f"{share} {words}", "ms", Rule.MOST, of_entry=True)


VALUES: Final[tuple[Value, ...]] = (
    Value("host.memory_mib_min", "memory", "MiB", Rule.LIMIT),
    Value("host.shm_mib_min", "shared memory", "MiB", Rule.LIMIT),
    Value("host.cpu_cores_min", "cores used on average", "cores", Rule.MOST),
    Value("accelerator.memory_mib_peak_declared", "GPU memory", "MiB", Rule.LIMIT, of_gpu=True),
    Value("lifecycle.load_timeout_s", "time to load", "s", Rule.LIMIT),
    *_under_load("latency_ms", "latency"),
    *_under_load("ttft_ms", "time to first token"),
    *_under_load("itl_ms", "time between tokens"),
    Value("throughput", "throughput", "", Rule.LEAST, of_entry=True),
    Value("error_max_frac", "share of errors", "frac", Rule.MOST, of_entry=True),
    Value("cold_start_s.download", "time to fetch files", "s", Rule.MOST, of_entry=True),
    Value("cold_start_s.load", "time to load", "s", Rule.MOST, of_entry=True),
    Value("cold_start_s.warmup", "time to warm up", "s", Rule.MOST, of_entry=True),
    Value("gpu_memory_mib_peak", "GPU memory", "MiB", Rule.MOST, of_entry=True, of_gpu=True),
    Value("power_w", "power", "W", Rule.MOST, of_entry=True, of_gpu=True),
    Value("gpu_util_pct", "GPU use", "pct", Rule.MOST, of_entry=True, of_gpu=True),
)
#: The policy's section. A tenth: limits on memory have no tolerance, and a time is refuted by its lower bound alone.
POLICY: Final = Record(
    {
        "on_breach": may(Text(one_of=("fail", "warn"), says="an answer to a breach"), "fail"),
        "tolerance_frac": may(Number(0, 10), 0.1),
    }
)
