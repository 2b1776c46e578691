"""The resource envelope, version 1: what a release declares that it needs, may be asked, and delivers.

Units stand in the names: `_mib` (2^20 bytes), `_bytes`, `_s`, `_ms`, `_us`, `_per_s`, `_frac` (0 to 1), `_pct` (0 to 100).
Whatever is not declared stays absent: unknown, never a default. Batching is not declared here at all, because
`serving` already says it (`batching_of`); the few limits that repeat it must agree with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from registry.core.fields import Field, Flag, Json, Kind, Many, Number, Problem, Record, Table, Text, Whole, may, need
from registry.core.serving import LARGEST_BATCH, instances_of

_MIB = Whole(0, 2**31, unit="MiB")
_VERSION = Text(40, pattern=r"\d+(\.\d+){0,3}", like='"12.4"', says="a version number")
_CAPABILITY = Text(8, pattern=r"\d{1,2}\.\d", like='"8.9"', says="a compute capability")
_SKU = Text(80, like="NVIDIA-L4")
_MS = Number(unit="milliseconds", above=True)
_SECONDS = Number(most=86_400, unit="seconds")
_TOKENS = Whole(1, 10**9, unit="tokens")


def _record(**kinds: Kind) -> Record:
    return Record({name: may(kind) for name, kind in kinds.items()})


_ACCELERATOR = Record({
    "vendor": need(Text(one_of=("none", "nvidia"), says="a known vendor")),
    "count": may(Whole(0, 64, unit="devices for one server")),
    "memory_mib_min": may(_MIB),
    "memory_mib_peak_declared": may(_MIB),
    "compute_capability": may(_record(min=_CAPABILITY, any_of=Many(_CAPABILITY, least=1, most=20))),
    "sku_allow": may(Many(_SKU, most=50)),
    "sku_deny": may(Many(_SKU, most=50)),
    "mig": may(_record(
        allowed=Flag(), mode=Text(one_of=("none", "single", "mixed")),
        profiles=Many(Text(20, pattern=r"\d+g\.\d+gb(\+\w+)?", like="1g.10gb", says="a MIG profile"), most=20),
    )),
    "interconnect": may(Text(one_of=("none", "pcie", "nvlink"))),
    "exclusive": may(Flag()),
})
_HOST = _record(
    cpu_cores_min=Number(most=4096, unit="cores"), memory_mib_min=_MIB, shm_mib_min=_MIB, pinned_memory_mib=_MIB,
    disk_mib=_MIB, os=Text(one_of=("linux",)), arch=Text(one_of=("x86_64", "aarch64")), numa_local=Flag(),
)
_DRIVER = _record(driver_min=_VERSION, cuda_min=_VERSION, cuda_max_exclusive=_VERSION, forward_compat=Flag())
_DIMS = Many(Whole(0, 2**31 - 1), least=1, most=9)
_ENGINE = _record(
    type=Text(one_of=("trt-plan", "onnx", "torchscript", "python")), builder_version=_VERSION, version_compatible=Flag(),
    hardware_compatibility=Text(one_of=("none", "ampere_plus", "same_compute_capability")),
    built_on=_record(sku=_SKU, compute_capability=_CAPABILITY, driver=_VERSION),
    precision=Text(one_of=("fp32", "tf32", "fp16", "bf16", "fp8", "int8", "int4", "mixed")),
    optimization_profiles=Many(
        Record({"input": need(Text(200)), "min": need(_DIMS), "opt": need(_DIMS), "max": need(_DIMS)}), most=100
    ),
)
_LIMITS = _record(
    max_request_bytes=Whole(1, 2**40, unit="bytes"), max_batch_size=Whole(0, LARGEST_BATCH, unit="items"),
    instances=Whole(1, 2048, unit="model instances on one server"),
    max_concurrency=Whole(1, 1_000_000, unit="requests at once on one server"),
    max_input_dims=Table(Many(Whole(1, 2**31 - 1), least=1, most=8)), max_input_tokens=_TOKENS, max_output_tokens=_TOKENS,
    max_total_tokens=_TOKENS, streaming=Flag(),
)
_PERFORMANCE = Record({
    "hardware": need(Text(120, like="NVIDIA-L4")),
    "workload": need(Text(120, like="sha256:… of the request set, or its name")),
    "source": need(Text(one_of=("declared", "measured"))),
    "load_shape": may(Record({
        "mode": need(Text(one_of=("closed", "open"))), "concurrency": may(Whole(1, 1_000_000, unit="clients")),
        "rate_per_s": may(Number(above=True, unit="requests per second")), "input_distribution": may(Json()),
    })),
    "batch_size": may(Whole(1, LARGEST_BATCH, unit="items")),
    **{name: may(_record(p50=_MS, p95=_MS, p99=_MS)) for name in ("latency_ms", "ttft_ms", "itl_ms")},
    "throughput": may(Record({"value": need(Number(above=True)), "unit": need(Text(one_of=(
        "requests_per_s", "items_per_s", "tokens_per_s")))})),
    "error_max_frac": may(Number(most=1)),
    "gpu_memory_mib_peak": may(_MIB),
    "gpu_util_pct": may(Number(most=100, unit="percent")),
    "power_w": may(Number(unit="watts")),
    "cold_start_s": may(_record(download=_SECONDS, load=_SECONDS, warmup=_SECONDS)),
    "evidence": may(Text(120)),
    "n": may(Whole(1, unit="requests")),
    "duration_s": may(Number(above=True, unit="seconds")),
})
_LIFECYCLE = _record(
    load_timeout_s=_SECONDS, warmup_requests=Whole(0, 100_000, unit="requests"), drain_s=_SECONDS,
    replicas=_record(min=Whole(0, 10_000), max=Whole(1, 10_000)), scale_unit=Whole(1, 1024, unit="devices"),
)
_MEMBERS: dict[str, Field] = {
    "accelerator": may(_ACCELERATOR), "host": may(_HOST), "driver": may(_DRIVER), "engine": may(_ENGINE),
    "limits": may(_LIMITS), "performance": may(Many(_PERFORMANCE, most=200)), "lifecycle": may(_LIFECYCLE),
}
_FROM_SERVING = "Remove it: batching is derived from serving, and is not typed twice."
ENVELOPE = Record(_MEMBERS, elsewhere={
    "batching": _FROM_SERVING, "max_batch_size": "Write serving.max_batch_size.", "runtime": "Write runtime, at the top.",
    "gpu": "Write accelerator.",
})


def batching_of(serving: Mapping[str, Any]) -> dict[str, Any]:
    """The envelope's batching part, derived from the serving configuration."""
    batching = serving["dynamic_batching"] or {}
    queue = serving["queue_policy"] or {}
    return {
        "max_batch_size": serving["max_batch_size"],
        "preferred_batch_sizes": batching.get("preferred_batch_size", []),
        "max_queue_delay_us": batching.get("max_queue_delay_us", 0),
        "max_queue_size": queue.get("max_queue_size", 0),
        "default_timeout_us": queue.get("default_timeout_us", 0),
        "instances": [dict(group) for group in serving["instance_group"]],
    }


def lint(envelope: Mapping[str, Any], serving: Mapping[str, Any], backend: str) -> list[Problem]:
    """What in the envelope contradicts itself, the serving configuration or the backend.

    Each problem names both fields. Members that could not be read are passed over: they have a problem of their own.
    """
    return [
        *_accelerator(envelope, serving, backend), *_versions(envelope), *_engine(envelope, serving, backend),
        *_limits(envelope.get("limits", {}), serving), *_performance(envelope, serving),
        *_ordered(envelope.get("lifecycle", {}).get("replicas", {}), ("min", "max"), "envelope.lifecycle.replicas"),
    ]


def _accelerator(envelope: Mapping[str, Any], serving: Mapping[str, Any], backend: str) -> list[Problem]:
    at = "envelope.accelerator"
    accelerator = envelope.get("accelerator", {})
    vendor, problems = accelerator.get("vendor", "none"), []
    if vendor == "none" and instances_of(serving, "gpu"):
        problems.append(Problem(f"{at}.vendor", "serving.instance_group asks for gpu instances, and the envelope declares no accelerator.",
                                "Declare envelope.accelerator with vendor nvidia and a count, or write kind: cpu in serving.instance_group."))
    if backend == "tensorrt" and "instance_group" in serving and not instances_of(serving, "gpu"):
        problems.append(Problem("serving.instance_group", "runtime.backend tensorrt runs on a gpu only.", "Write kind: gpu."))
    if vendor == "none":
        problems += [Problem(f"{at}.{name}", f"{at}.vendor is none, so it can need no {name}.", "Remove it, or name the vendor.")
                     for name, value in accelerator.items() if name != "vendor" and value not in (0, False, [], {}, "none")]
    elif accelerator.get("count") == 0:
        problems.append(Problem(f"{at}.count", f"{at}.vendor is {vendor}, and the count is 0.", "Write 1 or more, or vendor: none."))
    capability = accelerator.get("compute_capability", {})
    if {"min", "any_of"} <= set(capability):
        problems.append(Problem(f"{at}.compute_capability", "min and any_of are both given.", "Keep one of them."))
    for sku in sorted(set(accelerator.get("sku_allow", [])) & set(accelerator.get("sku_deny", []))):
        problems.append(Problem(f"{at}.sku_deny", f"{sku} is also in {at}.sku_allow.", "Remove it from one of the two."))
    pair = (accelerator.get("memory_mib_peak_declared"), accelerator.get("memory_mib_min"))
    if None not in pair and pair[0] > pair[1]:
        problems.append(Problem(f"{at}.memory_mib_min", f"{pair[1]} is less than {at}.memory_mib_peak_declared, which is {pair[0]}.",
                                f"Ask for at least {pair[0]}."))
    return problems


def _versions(envelope: Mapping[str, Any]) -> list[Problem]:
    driver = envelope.get("driver", {})
    low, high = driver.get("cuda_min"), driver.get("cuda_max_exclusive")
    if low and high and _parts(low) >= _parts(high):
        return [Problem("envelope.driver.cuda_max_exclusive", f"{high} is not above envelope.driver.cuda_min, which is {low}: no version fits.",
                        f"Write a version above {low}.")]
    return []


def _parts(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in version.split(".")]
    return tuple(numbers + [0] * (4 - len(numbers)))


_ENGINE_OF = {"tensorrt": "trt-plan", "onnxruntime": "onnx", "pytorch": "torchscript"}


def _engine(envelope: Mapping[str, Any], serving: Mapping[str, Any], backend: str) -> list[Problem]:
    engine, problems = envelope.get("engine", {}), []
    wanted = _ENGINE_OF.get(backend)
    if wanted and engine.get("type", wanted) != wanted:
        problems.append(Problem("envelope.engine.type", f"{engine['type']} is not what runtime.backend {backend} loads.", f"Write {wanted}."))
    inputs = [tensor.get("name") for tensor in serving.get("inputs", [])]
    for i, profile in enumerate(engine.get("optimization_profiles", [])):
        at = f"envelope.engine.optimization_profiles[{i}]"
        if profile.get("input") and "inputs" in serving and None not in inputs and profile["input"] not in inputs:
            problems.append(Problem(f"{at}.input", f"serving.inputs has no {profile['input']!r}.", f"The inputs are {', '.join(inputs)}."))
        shapes = [profile[name] for name in ("min", "opt", "max") if name in profile]
        if len(shapes) == 3 and (len(set(map(len, shapes))) > 1 or any(not a <= b <= c for a, b, c in zip(*shapes, strict=True))):
            problems.append(Problem(at, "min, opt and max must have as many dimensions and grow.", "Write min <= opt <= max in each dimension."))
    return problems


def _limits(limits: Mapping[str, Any], serving: Mapping[str, Any]) -> list[Problem]:
    at, problems = "envelope.limits", []
    batch, instances = serving.get("max_batch_size"), instances_of(serving)
    if batch is not None and limits.get("max_batch_size", batch) != batch:
        problems.append(Problem(f"{at}.max_batch_size", f"{limits['max_batch_size']} contradicts serving.max_batch_size, which is {batch}.",
                                f"Write {batch} in both, or remove the limit: it is derived from serving."))
    if "instance_group" in serving and limits.get("instances", instances) != instances:
        problems.append(Problem(f"{at}.instances", f"{limits['instances']} contradicts serving.instance_group, which counts {instances}.",
                                f"Write {instances}, or change the counts in serving.instance_group."))
    return [*problems, *_concurrency(limits, serving, instances), *_input_dims(limits.get("max_input_dims", {}), serving)]


def _concurrency(limits: Mapping[str, Any], serving: Mapping[str, Any], instances: int) -> list[Problem]:
    at, concurrency = "envelope.limits.max_concurrency", limits.get("max_concurrency")
    if concurrency is None or "instance_group" not in serving or "max_batch_size" not in serving:
        return []
    if concurrency < instances:
        return [Problem(at, f"{concurrency} is less than the {instances} instances of serving.instance_group: some could never work.",
                        f"Write {instances} or more, or fewer instances.")]
    queue = (serving.get("queue_policy") or {}).get("max_queue_size", 0)
    room = queue + instances * max(serving["max_batch_size"], 1)
    if queue and concurrency > room:
        return [Problem(at, f"{concurrency} requests at once do not fit: serving.queue_policy.max_queue_size {queue} and {instances} "
                        f"instances of batch {max(serving['max_batch_size'], 1)} hold {room}.", f"Write at most {room}, or a longer queue.")]
    return []


def _input_dims(most: Mapping[str, Any], serving: Mapping[str, Any]) -> list[Problem]:
    tensors = {tensor.get("name"): tensor.get("dims") for tensor in serving.get("inputs", [])}
    if "inputs" not in serving or None in tensors:
        return []
    problems = []
    for name, dims in most.items():
        at, own = f"envelope.limits.max_input_dims.{name}", tensors.get(name)
        if name not in tensors:
            problems.append(Problem(at, f"serving.inputs has no {name!r}.", f"The inputs are {', '.join(map(str, tensors))}."))
        elif own and (len(own) != len(dims) or any(o not in (-1, d) for o, d in zip(own, dims, strict=True))):
            problems.append(Problem(at, f"{dims} contradicts the dims {own} in serving.inputs.",
                                    "Give as many dimensions, equal to serving's where those are fixed."))
    return problems


def _performance(envelope: Mapping[str, Any], serving: Mapping[str, Any]) -> list[Problem]:
    problems = []
    batch, memory = serving.get("max_batch_size"), envelope.get("accelerator", {}).get("memory_mib_min")
    for i, entry in enumerate(envelope.get("performance", [])):
        at = f"envelope.performance[{i}]"
        for name in ("latency_ms", "ttft_ms", "itl_ms"):
            problems += _ordered(entry.get(name, {}), ("p50", "p95", "p99"), f"{at}.{name}")
        if batch is not None and entry.get("batch_size", 1) > max(batch, 1):
            problems.append(Problem(f"{at}.batch_size", f"{entry['batch_size']} is more than serving.max_batch_size, which is {batch}.",
                                    f"Write at most {max(batch, 1)}."))
        if memory is not None and entry.get("gpu_memory_mib_peak", 0) > memory:
            problems.append(Problem(f"{at}.gpu_memory_mib_peak", f"{entry['gpu_memory_mib_peak']} is more than envelope.accelerator.memory_mib_min, which is {memory}.",
                                    "Ask for at least the peak in envelope.accelerator.memory_mib_min."))
        shape = entry.get("load_shape", {})
        wanted = {"closed": "concurrency", "open": "rate_per_s"}.get(shape.get("mode", ""))
        if wanted and wanted not in shape:
            problems.append(Problem(f"{at}.load_shape.{wanted}", f"a load of mode {shape['mode']} is stated by its {wanted}.", f"Add {wanted}."))
    return problems


def _ordered(values: Mapping[str, Any], names: tuple[str, ...], at: str) -> list[Problem]:
    given = [name for name in names if name in values]
    return [
        Problem(f"{at}.{high}", f"{values[high]} is less than {at}.{low}, which is {values[low]}.", "Write them in growing order.")
        for low, high in zip(given, given[1:], strict=False)
        if values[high] < values[low]
    ]
