"""What in `envelope.engine` contradicts the backend, the serving configuration or the rest of the envelope."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from registry.core.engine_flavour import declared_flavour
from registry.core.gpu_names import capability_of, version_parts
from registry.core.schema import Problem

_AT: Final = "envelope.engine"
_ENGINE_OF: Final = {"tensorrt": "trt-plan", "sluicegate-onnx": "onnx", "pytorch": "torchscript"}


def lint(envelope: Mapping[str, Any], serving: Mapping[str, Any], backend: str) -> list[Problem]:
    """Every contradiction. Members that could not be read are passed over: they have a problem of their own."""
    engine = envelope.get("engine", {})
    wanted, problems = _ENGINE_OF.get(backend), list[Problem]()
    if wanted and engine.get("type", wanted) != wanted:
        said = f"{engine['type']} is not what runtime.backend {backend} loads."
        problems.append(Problem(f"{_AT}.type", said, f"Write {wanted}."))
    problems += _shapes(engine, serving)
    if backend != "tensorrt":
        return problems
    return [*problems, *_profiles(envelope, serving), *_portable(envelope), *_device(envelope)]


def _shapes(engine: Mapping[str, Any], serving: Mapping[str, Any]) -> Iterator[Problem]:
    """Profiles of inputs that are not served, or whose shapes are in no order."""
    inputs = [tensor.get("name") for tensor in serving.get("inputs", [])]
    for i, profile in enumerate(engine.get("optimization_profiles", [])):
        at = f"{_AT}.optimization_profiles[{i}]"
        if profile.get("input") and "inputs" in serving and None not in inputs and profile["input"] not in inputs:
            said = f"serving.inputs has no {profile['input']!r}."
            yield Problem(f"{at}.input", said, f"The inputs are {', '.join(inputs)}.")
        if (shapes := _shapes_of(profile)) and not _are_ordered(shapes):
            said = "min, opt and max must have as many dimensions and grow."
            yield Problem(at, said, "Write min <= opt <= max in each dimension.")


def _shapes_of(profile: Mapping[str, Any]) -> list[list[int]]:
    """Its least, usual and largest shape; nothing if one of them could not be read."""
    shapes = [profile[name] for name in ("min", "opt", "max") if name in profile]
    return shapes if len(shapes) == 3 else []


def _are_ordered(shapes: list[list[int]]) -> bool:
    return len(set(map(len, shapes))) == 1 and all(a <= b <= c for a, b, c in zip(*shapes, strict=True))


def _profiles(envelope: Mapping[str, Any], serving: Mapping[str, Any]) -> Iterator[Problem]:
    """Requests that serving and the limits let in, and the plan would refuse, by the first profile of each input.

    Source: Triton's model_config.proto, ModelInstanceGroup.profile: the server selects the first profile unless one is named.
    """
    profiles = envelope.get("engine", {}).get("optimization_profiles", [])
    limits, largest = envelope.get("limits", {}).get("max_input_dims", {}), serving.get("max_batch_size")
    if largest is None:
        return
    for tensor in serving.get("inputs", []):
        name, dims = tensor.get("name"), tensor.get("dims")
        at = next((i for i, one in enumerate(profiles) if one.get("input") == name), None)
        shapes = [] if at is None else _shapes_of(profiles[at])
        if name and dims is not None and shapes and _are_ordered(shapes):
            for said, fix in _too_narrow(name, dims, largest, shapes, limits.get(name)):
                yield Problem(f"{_AT}.optimization_profiles[{at}]", said, fix)


def _too_narrow(
    name: str, dims: list[int], largest: int, shapes: list[list[int]], limit: list[int] | None
) -> Iterator[tuple[str, str]]:
    """(what is wrong, what to write) for one input with the least, usual and largest shape of its profile."""
    skip = 1 if largest else 0
    if len(shapes[0]) != skip + len(dims):
        axis = " with the batch axis" if largest else ""
        yield f"{name} has {skip + len(dims)} dimensions{axis}, the profile has {len(shapes[0])}.", "Give as many."
        return
    inner = [shape[skip:] for shape in shapes]
    if any(size not in (-1, shape[axis]) for shape in inner for axis, size in enumerate(dims)):
        said = f"{name} has the dims {dims}, which the profile contradicts."
        yield said, "Write the same in min, opt and max where the size is fixed."
    lowest, highest = shapes[0][0], shapes[2][0]
    if largest and not (lowest <= 1 and highest >= largest):
        said = f"{name} takes batches of {lowest} to {highest}, and serving lets in 1 to {largest}."
        yield said, f"Write a batch of 1 in min and of {largest} in max."
    most = inner[2]
    if (
        limit
        and len(limit) == len(most)
        and any(a > b for a, b, size in zip(limit, most, dims, strict=True) if size < 0)
    ):
        said = f"{name} takes dims up to {most}, and envelope.limits.max_input_dims lets in {limit}."
        yield said, f"Write {limit} in max, or lower the limit."


def _portable(envelope: Mapping[str, Any]) -> Iterator[Problem]:
    """Options of plans for later versions or other GPUs, of which TensorRT for RTX has none."""
    engine, flavour = envelope.get("engine", {}), declared_flavour(envelope)
    for name, nothing in (("version_compatible", False), ("hardware_compatibility", "none")):
        if not flavour.is_portable and engine.get(name, nothing) != nothing:
            said = f"{flavour.product} builds no such plan."
            yield Problem(
                f"{_AT}.{name}", said, "Remove it, and build one plan for each version and compute capability."
            )


def _device(envelope: Mapping[str, Any]) -> Iterator[Problem]:
    """A plan for a compute capability that its flavour lacks, or that none of the GPUs that the envelope asks for has."""
    engine, flavour = envelope.get("engine", {}), declared_flavour(envelope)
    built, field = engine.get("built_on", {}).get("compute_capability"), f"{_AT}.built_on.compute_capability"
    if built and (why := flavour.why_not(built)):
        yield Problem(
            field, f"{why}.", "Write one of them, or build the plan with TensorRT itself (flavour: standard)."
        )
        return
    least = envelope.get("accelerator", {}).get("compute_capability", {}).get("min")
    if (
        built
        and least
        and version_parts(built) < version_parts(least)
        and engine.get("hardware_compatibility") != "ampere_plus"
    ):
        said = f"The plan was built for compute capability {built}, and envelope.accelerator asks for {least} or later."
        yield Problem(field, said, f"Build the plan for the GPU that is to run it, or ask for {built}.")
    for at, allowed, words in _asked(envelope.get("accelerator", {})):
        lacking = [one for one in allowed if flavour.why_not(one)]
        if lacking and len(lacking) == len(allowed):
            yield Problem(at, f"{flavour.why_not(lacking[0])}.", "Ask for another GPU, or write flavour: standard.")
        elif built and not any(_runs_on(engine, built, one) for one in allowed):
            said = f"The plan was built for compute capability {built}, and {at} allows {words} only."
            yield Problem(field, said, f"Build the plan for {allowed[0]}, or ask for a GPU of {built}.")


def _asked(accelerator: Mapping[str, Any]) -> Iterator[tuple[str, list[str], str]]:
    """(field, every compute capability that it lets in, the same in words), as far as the fields list some."""
    at, asked = "envelope.accelerator", accelerator.get("compute_capability", {})
    if asked.get("any_of"):
        yield f"{at}.compute_capability.any_of", asked["any_of"], ", ".join(asked["any_of"])
    products = {one: capability_of(one) for one in accelerator.get("sku_allow", [])}
    known = [one for one in products.values() if one is not None]
    if known and len(known) == len(products):
        words = ", ".join(f"{product} ({capability})" for product, capability in products.items())
        yield f"{at}.sku_allow", known, words


def _runs_on(engine: Mapping[str, Any], built: str, capability: str) -> bool:
    if engine.get("hardware_compatibility") == "ampere_plus":
        return version_parts(capability) >= (8, 0)
    return built == capability
