"""The values of an envelope that a gate measures: the field that declares each, and where its gate's evidence holds it.

A new value is one entry of `VALUES`. A performance entry holds for its own hardware and load shape; the other fields hold
for every load.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from registry.core.schema import Number, Record, Text, may
from validators.core.compare import share_of
from validators.core.verdict import Verdict

_MIB: Final = 2**20
_QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
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
    """`field`: within the envelope, or within a performance entry if `of_entry`. `readers`: by gate."""

    field: str
    words: str
    unit: str
    rule: Rule
    readers: Mapping[str, Reader]
    of_entry: bool = False
    of_gpu: bool = False

    @property
    def of_streams(self) -> bool:
        return self.field.startswith(("ttft_ms", "itl_ms"))


def _times(name: str, share: str) -> Reader:
    """A quantile of times under load, in ms: `<name>` and its lower bound `<name>` with `_low_ms`, of a load run or a searched rate."""

    def read(evidence: Evidence, verdict: Verdict, declared: Any) -> Iterator[Observed]:
        times = evidence.get(name) or {}
        if share not in times:
            return
        low = (evidence.get(name.replace("_ms", "_low_ms")) or {}).get(share)
        is_excused = "beside_stable" in evidence and verdict is not Verdict.FAILED  # the machine may be to blame
        requests, errors = int(evidence.get("requests") or 0), int(evidence.get("errors") or 0)
        counted = int(evidence.get("streams") or 0) if name == "itl_ms" else requests - errors
        beyond = (
            1 - _QUANTILES[share]
        )  # the share of requests that may be slower; one that failed had no answer in time
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


def _of_points(read: Reader) -> Reader:
    """The same of every rate that the capacity gate measured."""

    def read_points(evidence: Evidence, verdict: Verdict, declared: Any) -> Iterator[Observed]:
        for point in evidence.get("points") or ():
            yield from (replace(one, is_overload=True) for one in read(point, verdict, declared))

    return read_points


def _under_load(name: str, words: str) -> Iterator[Value]:
    for share in _QUANTILES:
        read = _times(name, share)
        readers = {"load": read, **({"capacity": _of_points(read)} if name == "latency_ms" else {})}
        yield Value(f"{name}.{share}", f"{share} {words}", "ms", Rule.MOST, readers, of_entry=True)


def _searched_rate(evidence: Evidence, verdict: Verdict, declared: Any) -> Iterator[Observed]:
    """Requests per second: the rate that is proven, and each rate that is refuted. A request of the gates has one item."""
    if declared["unit"] == "tokens_per_s":
        return
    refuted = [float(one["rate_per_s"]) for one in evidence.get("points") or () if one.get("found") == "refuted"]
    proven = evidence.get("capacity_per_s")
    if proven is not None or refuted:
        yield Observed(proven, bound=min(refuted, default=None))


def _asked_rate(evidence: Evidence, verdict: Verdict, declared: Any) -> Iterator[Observed]:
    """Requests, or responses of streams, per second that were answered within the objective at the load gate's rate."""
    rate = load_of(evidence)["rate_per_s"]
    if rate is None or "slo_test" not in evidence:
        return
    if declared["unit"] == "tokens_per_s":
        if evidence.get("responses") and verdict is Verdict.PASSED:
            yield Observed(evidence["responses"] * evidence["offered_per_s"] / evidence["requests"])
        return
    test = evidence["slo_test"]
    if verdict is Verdict.PASSED:
        yield Observed(rate)
    elif verdict is Verdict.FAILED and test["log_e_fail"] > -math.log(1 - test["confidence"]):
        yield Observed(None, bound=rate)


def _errors(evidence: Evidence, verdict: Verdict, declared: Any) -> Iterator[Observed]:
    n, phi = int(evidence.get("requests") or 0), max(1.0, float(evidence.get("phi") or 1.0))
    if n:
        share = share_of(round(evidence["errors"] / phi), max(1, round(n / phi)))
        yield Observed(
            evidence["errors"] / n,
            bound=share.low,
            proves=declared > 0,  # no count proves that there are none
            counted=n,
            needed=math.ceil(1 / declared) if declared else None,
            **load_of(evidence),
        )


def _timing(part: str) -> Reader:
    def read(evidence: Evidence, verdict: Verdict, declared: Any) -> Iterator[Observed]:
        if part == "load_s" and (waited_s := evidence.get("still_loading_s")) is not None:
            yield Observed(waited_s, bound=math.nextafter(waited_s, math.inf), proves=False)
            return
        seconds = (evidence.get("timings") or {}).get(part)
        if seconds is not None:
            yield Observed(float(seconds), bound=float(seconds))

    return read


def _peak_of(*path: str) -> Reader:
    """MiB that the resources gate saw the server's own processes hold at most; of GPU memory on each device, on average."""

    def read(evidence: Evidence, verdict: Verdict, declared: Any) -> Iterator[Observed]:
        found: Any = evidence
        for name in path:
            found = (found or {}).get(name)
        if found is not None:
            held = found / _MIB / (evidence["devices"] if path[-1] == "gpu_memory_bytes" else 1)
            yield Observed(held, bound=held, **load_of(evidence))

    return read


def _cores(evidence: Evidence, verdict: Verdict, declared: Any) -> Iterator[Observed]:
    cores = evidence.get("cores_used")
    if cores is not None:
        yield Observed(float(cores), bound=float(cores))


def _of_gpus(name: str, factor: float = 1.0) -> Reader:
    """The greatest over its GPUs. A window in which the capacity gate searched holds more load than is declared: it refutes nothing."""

    def read(evidence: Evidence, verdict: Verdict, declared: Any) -> Iterator[Observed]:
        told = [one[name] for one in evidence.get("gpus") or () if one.get(name) is not None]
        windows = {window["gate"] for window in evidence.get("windows") or ()}
        if told and windows:
            value = max(told) * factor
            yield Observed(value, bound=value if windows == {"load"} else None, **load_of(evidence))

    return read


_GPU_MEMORY: Final[dict[str, Reader]] = {"resources": _peak_of("gpu_memory_bytes")}
VALUES: Final[tuple[Value, ...]] = (
    Value("host.memory_mib_min", "memory", "MiB", Rule.LIMIT, {"resources": _peak_of("peaks", "memory_bytes")}),
    Value("host.shm_mib_min", "shared memory", "MiB", Rule.LIMIT, {"resources": _peak_of("peaks", "shared_bytes")}),
    Value("host.cpu_cores_min", "cores used on average", "cores", Rule.MOST, {"resources": _cores}),
    Value("accelerator.memory_mib_peak_declared", "GPU memory", "MiB", Rule.LIMIT, _GPU_MEMORY, of_gpu=True),
    Value("lifecycle.load_timeout_s", "time to load", "s", Rule.LIMIT, {"cold_start": _timing("load_s")}),
    *_under_load("latency_ms", "latency"),
    *_under_load("ttft_ms", "time to first token"),
    *_under_load("itl_ms", "time between tokens"),
    Value(
        "throughput",
        "throughput",
        "",
        Rule.LEAST,
        {"capacity": _searched_rate, "load": _asked_rate},
        of_entry=True,
    ),
    Value("error_max_frac", "share of errors", "frac", Rule.MOST, {"load": _errors}, of_entry=True),
    *(
        Value(f"cold_start_s.{part}", words, "s", Rule.MOST, {"cold_start": _timing(timed)}, of_entry=True)
        for part, words, timed in (
            ("download", "time to fetch files", "fetch_s"),
            ("load", "time to load", "load_s"),
            ("warmup", "time to warm up", "warmup_s"),
        )
    ),
    Value("gpu_memory_mib_peak", "GPU memory", "MiB", Rule.MOST, _GPU_MEMORY, of_entry=True, of_gpu=True),
    Value("power_w", "power", "W", Rule.MOST, {"gpu": _of_gpus("highest_power_w")}, of_entry=True, of_gpu=True),
    Value(
        "gpu_util_pct",
        "GPU use",
        "pct",
        Rule.MOST,
        {"gpu": _of_gpus("median_busy_frac", 100.0)},
        of_entry=True,
        of_gpu=True,
    ),
)
#: The policy's section. A tenth: limits on memory have no tolerance, and a time is refuted by its lower bound alone.
POLICY: Final = Record(
    {
        "on_breach": may(Text(one_of=("fail", "warn"), says="an answer to a breach"), "fail"),
        "tolerance_frac": may(Number(0, 10), 0.1),
    }
)
#: Gates that measure a value of the envelope.
GATES: Final = tuple(dict.fromkeys(gate for value in VALUES for gate in value.readers))
