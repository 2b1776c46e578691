"""The resource envelope, version 1: what a release declares that it needs, may be asked, and delivers.

Units stand in the names: `_mib` (2^20 bytes), `_bytes`, `_s`, `_ms`, `_us`, `_per_s`, `_frac` (0 to 1), `_pct`
(0 to 100).
Whatever is not declared stays absent: unknown, never a default. Batching is not declared here at all, because
`serving` already says it; the few limits that repeat it must agree with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from registry.core.engine_flavour import FLAVOURS
from registry.core.schema import (
    Field,
    Flag,
    Integer,
    Json,
    ListOf,
    Number,
    Object,
    Record,
    SchemaType,
    TensorName,
    Text,
    may,
    need,
)
from registry.core.serving import LARGEST_BATCH, LARGEST_RANK

#: What a gateway holds of one request, so that it can be read before a server is asked and sent again when that server fails.
LARGEST_REQUEST_BYTES = 64 * 2**20
_MIB = Integer(0, 2**31, unit="MiB")
_VERSION = Text(
    40,
    pattern=r"[0-9]+(\.[0-9]+){0,3}",
    like='"12.4"',
    says="a version number",
    rule="1 to 4 numbers with dots between them",
)
_CAPABILITY = Text(
    8,
    pattern=r"[0-9]{1,2}\.[0-9]",
    like='"8.9"',
    says="a compute capability",
    rule="1 or 2 digits, a dot and a digit",
)
_SKU = Text(80, like="NVIDIA-L4")
_MS = Number(unit="milliseconds", above=True)
_SECONDS = Number(most=86_400, unit="seconds")
_TOKENS = Integer(1, 10**9, unit="tokens")


def _record(**kinds: SchemaType) -> Record:
    return Record({name: may(kind) for name, kind in kinds.items()})


_ACCELERATOR = Record(
    {
        "vendor": need(Text(one_of=("none", "nvidia"), says="a known vendor")),
        "count": may(Integer(0, 64, unit="devices for one server")),
        "memory_mib_min": may(_MIB),
        "memory_mib_peak_declared": may(_MIB),
        "compute_capability": may(_record(min=_CAPABILITY, any_of=ListOf(_CAPABILITY, least=1, most=20))),
        "sku_allow": may(ListOf(_SKU, most=50)),
        "sku_deny": may(ListOf(_SKU, most=50)),
        "mig": may(
            _record(
                allowed=Flag(),
                mode=Text(one_of=("none", "single", "mixed")),
                profiles=ListOf(
                    Text(
                        20,
                        pattern=r"[0-9]+g\.[0-9]+gb(\+[a-z0-9.]+)?",
                        like="1g.10gb",
                        says="a MIG profile",
                        rule="slices and memory as `nvidia-smi mig -lgip` lists them",
                    ),
                    most=20,
                ),
            )
        ),
        "interconnect": may(Text(one_of=("none", "pcie", "nvlink"))),
        "exclusive": may(Flag()),
    }
)
_HOST = _record(
    cpu_cores_min=Number(most=4096, unit="cores"),
    memory_mib_min=_MIB,
    shm_mib_min=_MIB,
    pinned_memory_mib=_MIB,
    disk_mib=_MIB,
    os=Text(one_of=("linux",)),
    arch=Text(one_of=("x86_64", "aarch64")),
    numa_local=Flag(),
)
_DRIVER = _record(driver_min=_VERSION, cuda_min=_VERSION, cuda_max_exclusive=_VERSION, forward_compat=Flag())
_DIMS = ListOf(Integer(0, 2**31 - 1), most=LARGEST_RANK + 1)
_ENGINE = _record(
    type=Text(one_of=("trt-plan", "onnx", "torchscript", "python")),
    flavour=Text(one_of=tuple(FLAVOURS), says="a known flavour"),
    builder_version=_VERSION,
    version_compatible=Flag(),
    hardware_compatibility=Text(one_of=("none", "ampere_plus", "same_compute_capability")),
    built_on=_record(sku=_SKU, compute_capability=_CAPABILITY, driver=_VERSION),
    precision=Text(one_of=("fp32", "tf32", "fp16", "bf16", "fp8", "int8", "int4", "mixed")),
    workspace_mib=_MIB,
    compared=Flag(),
    optimization_profiles=ListOf(
        Record({"input": need(TensorName()), "min": need(_DIMS), "opt": need(_DIMS), "max": need(_DIMS)}), most=100
    ),
)
_LIMITS = _record(
    max_request_bytes=Integer(1, LARGEST_REQUEST_BYTES, unit="bytes"),
    max_batch_size=Integer(0, LARGEST_BATCH, unit="items"),
    instances=Integer(1, 2048, unit="model instances on one server"),
    max_concurrency=Integer(1, 1_000_000, unit="requests at once on one server"),
    max_input_dims=Object(ListOf(Integer(1, 2**31 - 1), most=LARGEST_RANK)),
    input_values=Object(ListOf(Number(-1e38, 1e38), least=2, most=2)),
    max_input_tokens=_TOKENS,
    max_output_tokens=_TOKENS,
    max_total_tokens=_TOKENS,
    streaming=Flag(),
)
_PERFORMANCE = Record(
    {
        "hardware": need(Text(120, like="NVIDIA-L4")),
        "workload": need(Text(120, like="sha256:… of the request set, or its name")),
        "source": need(Text(one_of=("declared", "measured"))),
        "load_shape": may(
            Record(
                {
                    "mode": need(Text(one_of=("closed", "open"))),
                    "concurrency": may(Integer(1, 1_000_000, unit="clients")),
                    "rate_per_s": may(Number(above=True, unit="requests per second")),
                    "input_distribution": may(Json()),
                }
            )
        ),
        "batch_size": may(Integer(1, LARGEST_BATCH, unit="items")),
        **{name: may(_record(p50=_MS, p95=_MS, p99=_MS)) for name in ("latency_ms", "ttft_ms", "itl_ms")},
        "throughput": may(
            Record(
                {
                    "value": need(Number(above=True)),
                    "unit": need(Text(one_of=("requests_per_s", "items_per_s", "tokens_per_s"))),
                }
            )
        ),
        "error_max_frac": may(Number(most=1)),
        "gpu_memory_mib_peak": may(_MIB),
        "gpu_util_pct": may(Number(most=100, unit="percent")),
        "power_w": may(Number(unit="watts")),
        "cold_start_s": may(_record(download=_SECONDS, load=_SECONDS, warmup=_SECONDS)),
        "evidence": may(Text(120)),
        "n": may(Integer(1, unit="requests")),
        "duration_s": may(Number(above=True, unit="seconds")),
    }
)
_LIFECYCLE = _record(
    load_timeout_s=_SECONDS,
    warmup_requests=Integer(0, 100_000, unit="requests"),
    drain_s=_SECONDS,
    replicas=_record(min=Integer(0, 10_000), max=Integer(1, 10_000)),
    scale_unit=Integer(1, 1024, unit="devices"),
)
_MEMBERS: dict[str, Field] = {
    "accelerator": may(_ACCELERATOR),
    "host": may(_HOST),
    "driver": may(_DRIVER),
    "engine": may(_ENGINE),
    "limits": may(_LIMITS),
    "performance": may(ListOf(_PERFORMANCE, most=200)),
    "lifecycle": may(_LIFECYCLE),
}
_FROM_SERVING = "Remove it: batching is derived from serving, and is not typed twice."
ENVELOPE = Record(
    _MEMBERS,
    elsewhere={
        "batching": _FROM_SERVING,
        "max_batch_size": "Write serving.max_batch_size.",
        "runtime": "Write runtime, at the top.",
        "gpu": "Write accelerator.",
    },
)


def declared_per_s(envelope: Mapping[str, Any]) -> float | None:
    """The largest throughput that an envelope declares in requests a second; None if it declares none."""
    stated = [one.get("throughput") or {} for one in envelope.get("performance") or ()]
    return max((float(one["value"]) for one in stated if one.get("unit") == "requests_per_s"), default=None)
