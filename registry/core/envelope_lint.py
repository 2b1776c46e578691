"""What in an envelope contradicts itself, the serving configuration or the backend."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from registry.core import engine_lint
from registry.core.gpu_names import version_parts
from registry.core.schema import Problem
from registry.core.serving import instances_of

_LARGEST_FP16 = 65_504


def lint(envelope: Mapping[str, Any], serving: Mapping[str, Any], backend: str) -> list[Problem]:
    """What in the envelope contradicts itself, the serving configuration or the backend.

    Each problem names both fields. Members that could not be read are passed over: they have a problem of their own.
    """
    return [
        *_accelerator(envelope, serving, backend),
        *_versions(envelope),
        *engine_lint.lint(envelope, serving, backend),
        *_limits(envelope.get("limits", {}), serving),
        *_performance(envelope, serving),
        *_ordered(envelope.get("lifecycle", {}).get("replicas", {}), ("min", "max"), "envelope.lifecycle.replicas"),
    ]


def _accelerator(envelope: Mapping[str, Any], serving: Mapping[str, Any], backend: str) -> list[Problem]:
    at = "envelope.accelerator"
    accelerator = envelope.get("accelerator", {})
    vendor, problems = accelerator.get("vendor", "none"), []
    if vendor == "none" and instances_of(serving, "gpu"):
        problems.append(
            Problem(
                f"{at}.vendor",
                "serving.instance_group asks for gpu instances, and the envelope declares no accelerator.",
                "Declare envelope.accelerator (vendor: nvidia), or write kind: cpu in serving.instance_group.",
            )
        )
    if backend == "tensorrt" and "instance_group" in serving and not instances_of(serving, "gpu"):
        problems.append(
            Problem("serving.instance_group", "runtime.backend tensorrt runs on a gpu only.", "Write kind: gpu.")
        )
    if vendor == "none":
        problems += [
            Problem(f"{at}.{name}", f"{at}.vendor is none, so it can need no {name}.", "Remove it, or name the vendor.")
            for name, value in accelerator.items()
            if name != "vendor" and value not in (0, False, [], {}, "none")
        ]
    elif accelerator.get("count") == 0:
        problems.append(
            Problem(f"{at}.count", f"{at}.vendor is {vendor}, and the count is 0.", "Write 1 or more, or vendor: none.")
        )
    return [*problems, *_device(accelerator, at)]


def _device(accelerator: Mapping[str, Any], at: str) -> list[Problem]:
    """Contradictions between the devices that are asked for."""
    problems = []
    capability = accelerator.get("compute_capability", {})
    if {"min", "any_of"} <= set(capability):
        problems.append(Problem(f"{at}.compute_capability", "min and any_of are both given.", "Keep one of them."))
    for sku in sorted(set(accelerator.get("sku_allow", [])) & set(accelerator.get("sku_deny", []))):
        problems.append(
            Problem(f"{at}.sku_deny", f"{sku} is also in {at}.sku_allow.", "Remove it from one of the two.")
        )
    peak, least = accelerator.get("memory_mib_peak_declared"), accelerator.get("memory_mib_min")
    if peak is not None and least is not None and peak > least:
        problems.append(
            Problem(
                f"{at}.memory_mib_min",
                f"{least} is less than {at}.memory_mib_peak_declared, which is {peak}.",
                f"Ask for at least {peak}.",
            )
        )
    return problems


def _versions(envelope: Mapping[str, Any]) -> list[Problem]:
    driver = envelope.get("driver", {})
    low, high = driver.get("cuda_min"), driver.get("cuda_max_exclusive")
    if low and high and version_parts(low) >= version_parts(high):
        return [
            Problem(
                "envelope.driver.cuda_max_exclusive",
                f"{high} is not above envelope.driver.cuda_min, which is {low}: no version fits.",
                f"Write a version above {low}.",
            )
        ]
    return []


def _limits(limits: Mapping[str, Any], serving: Mapping[str, Any]) -> list[Problem]:
    at, problems = "envelope.limits", []
    batch, instances = serving.get("max_batch_size"), instances_of(serving)
    if batch is not None and limits.get("max_batch_size", batch) != batch:
        problems.append(
            Problem(
                f"{at}.max_batch_size",
                f"{limits['max_batch_size']} contradicts serving.max_batch_size, which is {batch}.",
                f"Write {batch} in both, or remove the limit: it is derived from serving.",
            )
        )
    if "instance_group" in serving and limits.get("instances", instances) != instances:
        problems.append(
            Problem(
                f"{at}.instances",
                f"{limits['instances']} contradicts serving.instance_group, which counts {instances}.",
                f"Write {instances}, or change the counts in serving.instance_group.",
            )
        )
    return [
        *problems,
        *_concurrency(limits, serving, instances),
        *_input_dims(limits.get("max_input_dims", {}), serving),
        *_input_values(limits.get("input_values", {}), serving),
    ]


def _concurrency(limits: Mapping[str, Any], serving: Mapping[str, Any], instances: int) -> list[Problem]:
    at, concurrency = "envelope.limits.max_concurrency", limits.get("max_concurrency")
    if concurrency is None or "instance_group" not in serving or "max_batch_size" not in serving:
        return []
    if concurrency < instances:
        return [
            Problem(
                at,
                f"{concurrency} is less than the {instances} instances of serving.instance_group: some never work.",
                f"Write {instances} or more, or fewer instances.",
            )
        ]
    queue = (serving.get("queue_policy") or {}).get("max_queue_size", 0)
    room = queue + instances * max(serving["max_batch_size"], 1)
    if queue and concurrency > room:
        return [
            Problem(
                at,
                f"{concurrency} requests at once do not fit: serving.queue_policy.max_queue_size {queue} "
                f"and {instances} instances of batch {max(serving['max_batch_size'], 1)} hold {room}.",
                f"Write at most {room}, or a longer queue.",
            )
        ]
    return []


def _input_dims(most: Mapping[str, Any], serving: Mapping[str, Any]) -> list[Problem]:
    tensors = {tensor.get("name"): tensor.get("dims") for tensor in serving.get("inputs", [])}
    if "inputs" not in serving or None in tensors:
        return []
    problems = []
    for name, dims in most.items():
        at, own = f"envelope.limits.max_input_dims.{name}", tensors.get(name)
        if name not in tensors:
            problems.append(
                Problem(at, f"serving.inputs has no {name!r}.", f"The inputs are {', '.join(map(str, tensors))}.")
            )
        elif own is not None and (
            len(own) != len(dims) or any(o not in (-1, d) for o, d in zip(own, dims, strict=True))
        ):
            problems.append(
                Problem(
                    at,
                    f"{dims} contradicts the dims {own} in serving.inputs.",
                    "Give as many dimensions, equal to serving's where those are fixed.",
                )
            )
    return problems


def _input_values(values: Mapping[str, Any], serving: Mapping[str, Any]) -> list[Problem]:
    kinds = {tensor.get("name"): tensor.get("data_type") for tensor in serving.get("inputs", [])}
    if "inputs" not in serving or None in kinds:
        return []
    problems = []
    for name, (low, high) in values.items():
        at, kind = f"envelope.limits.input_values.{name}", kinds.get(name)
        if name not in kinds:
            fix = f"The inputs are {', '.join(map(str, kinds))}."
            problems.append(Problem(at, f"serving.inputs has no {name!r}.", fix))
        elif low > high:
            problems.append(Problem(at, f"{low:g} is more than {high:g}.", "Write the least value first."))
        elif kind in ("BYTES", "BOOL"):
            problems.append(Problem(at, f"{kind} has no numbers between two values.", "Leave it out."))
        elif kind and not _is_within(kind, low, high):
            problems.append(
                Problem(at, f"{kind} has no such values.", "Write whole numbers for integers, that its bits can hold.")
            )
    return problems


def _is_within(kind: str, low: float, high: float) -> bool:
    if not kind.startswith(("INT", "UINT")):
        return kind != "FP16" or max(-low, high) <= _LARGEST_FP16
    bits = int(kind.removeprefix("U").removeprefix("INT"))
    least, most = (0, 2**bits - 1) if kind.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return all(value == int(value) and least <= int(value) <= most for value in (low, high))


def _performance(envelope: Mapping[str, Any], serving: Mapping[str, Any]) -> list[Problem]:
    problems = []
    batch, memory = serving.get("max_batch_size"), envelope.get("accelerator", {}).get("memory_mib_min")
    for i, entry in enumerate(envelope.get("performance", [])):
        at = f"envelope.performance[{i}]"
        for name in ("latency_ms", "ttft_ms", "itl_ms"):
            problems += _ordered(entry.get(name, {}), ("p50", "p95", "p99"), f"{at}.{name}")
        if batch is not None and entry.get("batch_size", 1) > max(batch, 1):
            problems.append(
                Problem(
                    f"{at}.batch_size",
                    f"{entry['batch_size']} is more than serving.max_batch_size, which is {batch}.",
                    f"Write at most {max(batch, 1)}.",
                )
            )
        if memory is not None and entry.get("gpu_memory_mib_peak", 0) > memory:
            problems.append(
                Problem(
                    f"{at}.gpu_memory_mib_peak",
                    f"{entry['gpu_memory_mib_peak']} is more than envelope.accelerator.memory_mib_min ({memory}).",
                    "Ask for at least the peak in envelope.accelerator.memory_mib_min.",
                )
            )
        shape = entry.get("load_shape", {})
        wanted = {"closed": "concurrency", "open": "rate_per_s"}.get(shape.get("mode", ""))
        if wanted and wanted not in shape:
            problems.append(
                Problem(
                    f"{at}.load_shape.{wanted}",
                    f"a load of mode {shape['mode']} is stated by its {wanted}.",
                    f"Add {wanted}.",
                )
            )
    return problems


def _ordered(values: Mapping[str, Any], names: tuple[str, ...], at: str) -> list[Problem]:
    given = [name for name in names if name in values]
    return [
        Problem(
            f"{at}.{high}",
            f"{values[high]} is less than {at}.{low}, which is {values[low]}.",
            "Write them in growing order.",
        )
        for low, high in pairwise(given)
        if values[high] < values[low]
    ]
