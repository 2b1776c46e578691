"""Whether a release fits a node, as far as its envelope declares and the node is known: yes, no or unknown, with reasons.

No is said only for what contradicts, unknown for what either side does not tell. Memory is the whole of a device; what
others hold there is for whoever places the release.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from registry.core.engine_flavour import FLAVOURS, Flavour, declared_flavour
from registry.core.gpu_memory import MemoryEstimate
from registry.core.gpu_names import sku
from registry.core.node_facts import NodeFacts


class Verdict(StrEnum):
    YES = "yes"
    UNKNOWN = "unknown"
    NO = "no"


#: Worst last.
SEVERITY: Final = (Verdict.YES, Verdict.UNKNOWN, Verdict.NO)
#: Fields that declare the memory of a device; the first declared field is held against the node.
DECLARED_MEMORY: Final = ("memory_mib_min", "memory_mib_peak_declared")
#: The field of a reason that rests on no declared value.
ESTIMATED: Final = "accelerator.memory_mib_min (estimate)"
#: Major versions of TensorRT, of building and of loading, between which plans that were built for it load.
_ACROSS_MAJORS: Final = {(8, 9), (8, 10), (9, 10), (10, 11)}


@dataclass(frozen=True)
class Reason:
    """One thing that the envelope asks, and what the node says to it."""

    field: str  # in the envelope: accelerator.memory_mib_min
    verdict: Verdict
    message: str


@dataclass(frozen=True)
class Fit:
    """`reasons` holds every check that was made, the worst first; `estimate` is that of the release's GPU memory."""

    verdict: Verdict
    reasons: tuple[Reason, ...] = ()
    estimate: MemoryEstimate | None = None

    @property
    def cannot_load(self) -> Reason | None:
        """Why the server there would refuse the release's engine plan; None where that is not known."""
        plan = (one for one in self.reasons if one.verdict is Verdict.NO and one.field.startswith("engine."))
        return next(plan, None)

    def as_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict.value,
            "reasons": [{"field": r.field, "verdict": r.verdict.value, "message": r.message} for r in self.reasons],
            "gpu_memory_estimate": None if self.estimate is None else self.estimate.as_json(),
        }


def fit(
    envelope: Mapping[str, Any],
    node: NodeFacts,
    *,
    backend: str = "",
    plan: Mapping[str, Any] | None = None,
    estimate: MemoryEstimate | None = None,
) -> Fit:
    """The verdict on one release and one node. An envelope that asks nothing fits everywhere that the backend does.

    `plan`: the facts in the header of the release's engine plan, which count before the declared ones. `estimate`: of the release's
    GPU memory, which counts if the envelope declares none.
    """
    found = [*_accelerator(envelope.get("accelerator", {}), node, estimate), *_driver(envelope.get("driver", {}), node)]
    found += _engine(envelope, node, backend, plan or {})
    found += _host(envelope.get("host", {}), node)
    if backend == "tensorrt" and "accelerator" not in envelope:
        found += _device(1, node)
    reasons = sorted(found, key=lambda reason: -SEVERITY.index(reason.verdict))
    return Fit(max((one.verdict for one in reasons), key=SEVERITY.index, default=Verdict.YES), tuple(reasons), estimate)


def _reason(field: str, ok: bool | None, has: str, asks: str) -> Reason:
    """`ok` None: the node does not report it."""
    if ok is None:
        return Reason(field, Verdict.UNKNOWN, f"The node does not tell; {asks}.")
    return Reason(field, Verdict.YES if ok else Verdict.NO, f"The node has {has}; {asks}.")


def _accelerator(asked: Mapping[str, Any], node: NodeFacts, estimate: MemoryEstimate | None) -> Iterator[Reason]:
    if asked.get("vendor", "none") == "none":
        return
    devices = _mig_devices(asked, node)
    count = asked.get("count", 1)
    if devices is None:
        yield from _device(count, node)
    else:
        yield devices
    yield from _memory(asked, node, estimate, has_slices=devices is not None)
    yield from _capability(asked.get("compute_capability", {}), node)
    yield from _product(asked, node)
    yield from _mig(asked.get("mig", {}), node)
    if asked.get("exclusive"):
        ok = None if node.sharers is None else node.sharers <= 1
        yield _reason("accelerator.exclusive", ok, f"{node.sharers} sharers of a device", "it wants its device alone")
    if asked.get("interconnect") == "nvlink" and count > 1:
        yield _reason("accelerator.interconnect", None, "", f"{count} devices are to be linked by NVLink")


def _device(count: int, node: NodeFacts) -> Iterator[Reason]:
    ok = None if node.gpus is None else len(node.gpus) >= count
    yield _reason("accelerator.count", ok, f"{len(node.gpus or ())} NVIDIA devices", f"it asks for {count}")


def _mig_devices(asked: Mapping[str, Any], node: NodeFacts) -> Reason | None:
    """Slices of the asked profiles, where profiles are asked and the node has slices; else whole devices count."""
    profiles, count = asked.get("mig", {}).get("profiles"), asked.get("count", 1)
    if not profiles or not node.mig:
        return None
    have = {name: node.mig[name][0] for name in profiles if name in node.mig}
    words = ", ".join(f"{n} × {name}" for name, n in have.items()) or f"only {', '.join(sorted(node.mig))}"
    ok = any(n >= count for n in have.values())
    return _reason("accelerator.mig.profiles", ok, words, f"it asks for {count} of {' or '.join(profiles)}")


def _memory(
    asked: Mapping[str, Any], node: NodeFacts, estimate: MemoryEstimate | None, *, has_slices: bool
) -> Iterator[Reason]:
    declared = next((name for name in DECLARED_MEMORY if name in asked), None)
    if declared is not None and estimate is not None:
        yield from _declares_too_little(declared, asked[declared], estimate)
    if node.gpus == () and not has_slices:
        return  # the count of devices already gave the reason
    has = node.gpu_memory_mib
    if has_slices:
        told = [node.mig[name][1] for name in asked["mig"]["profiles"] if name in node.mig]
        known = [memory for memory in told if memory is not None]
        has = max(known) if known and len(known) == len(told) else None
    if declared is not None:
        ok = None if has is None else has >= asked[declared]
        yield _reason(f"accelerator.{declared}", ok, f"{has} MiB on each device", f"it asks for {asked[declared]} MiB")
    elif estimate is not None:
        yield _estimated(has, estimate)


def _estimated(has: int | None, estimate: MemoryEstimate) -> Reason:
    """No only if the weights alone are too large; an estimate proves no yes."""
    node = (
        "The node does not report the memory of its devices"
        if has is None
        else f"The node has {has} MiB on each device"
    )
    if has is not None and estimate.certain_mib > has:
        said = f"{node}; by estimate the weights alone take {estimate.certain_mib} MiB."
        return Reason(ESTIMATED, Verdict.NO, said)
    said = f"{node}; the envelope declares none, and the estimate is {estimate.amount}."
    return Reason(ESTIMATED, Verdict.UNKNOWN, said)


def _declares_too_little(name: str, declared: int, estimate: MemoryEstimate) -> Iterator[Reason]:
    if declared < estimate.certain_mib:
        said = (
            f"It declares {declared} MiB; by estimate the weights alone take {estimate.certain_mib} MiB on each device."
        )
        yield Reason(f"accelerator.{name}", Verdict.UNKNOWN, said)


def _capability(asked: Mapping[str, Any], node: NodeFacts) -> Iterator[Reason]:
    has = node.compute_capability
    if "min" in asked:
        ok = _at_least(has, asked["min"])
        yield _reason("accelerator.compute_capability.min", ok, str(has), f"it asks for {asked['min']} or later")
    if "any_of" in asked:
        ok = None if has is None else has in asked["any_of"]
        listed = ", ".join(asked["any_of"])
        yield _reason("accelerator.compute_capability.any_of", ok, str(has), f"it asks for one of {listed}")


def _product(asked: Mapping[str, Any], node: NodeFacts) -> Iterator[Reason]:
    products = sorted({sku(name) for name in node.gpus}) if node.gpus else None
    has = ", ".join(sorted(set(node.gpus or ())))
    for name, is_allowed in (("sku_allow", True), ("sku_deny", False)):
        if not asked.get(name) or node.gpus == ():
            continue
        listed = {sku(one) for one in asked[name]}
        ok = None if products is None else all((one in listed) == is_allowed for one in products)
        which = "only" if is_allowed else "never"
        yield _reason(f"accelerator.{name}", ok, has, f"it runs {which} on {', '.join(asked[name])}")


def _mig(asked: Mapping[str, Any], node: NodeFacts) -> Iterator[Reason]:
    is_sliced = bool(node.mig) or node.mig_strategy in ("single", "mixed")
    if is_sliced and not asked:
        yield Reason(
            "accelerator.mig",
            Verdict.UNKNOWN,
            "The node has MIG slices; the envelope does not say whether one will do.",
        )
    elif is_sliced and asked.get("allowed") is False:
        yield Reason("accelerator.mig.allowed", Verdict.NO, "The node has MIG slices; it wants whole devices.")
    wanted = asked.get("mode")
    if wanted:
        mode = node.mig_strategy or (None if node.gpus is None else "mixed" if node.mig else "none")
        yield _reason(
            "accelerator.mig.mode", None if mode is None else mode == wanted, f"mode {mode}", f"it asks for {wanted}"
        )


def _driver(asked: Mapping[str, Any], node: NodeFacts) -> Iterator[Reason]:
    if "driver_min" in asked:
        ok = _at_least(node.driver, asked["driver_min"])
        yield _reason("driver.driver_min", ok, f"driver {node.driver}", f"it asks for {asked['driver_min']} or later")
    if "cuda_min" in asked:
        ok = _at_least(node.cuda, asked["cuda_min"])
        asks = f"it asks for {asked['cuda_min']} or later"
        if ok is False and asked.get("forward_compat"):  # a compatibility package may bring it, on some devices
            said = f"The node's driver supports CUDA {node.cuda}; {asks}, which forward compatibility may bring."
            yield Reason("driver.cuda_min", Verdict.UNKNOWN, said)
        else:
            yield _reason("driver.cuda_min", ok, f"CUDA {node.cuda}", asks)
    if "cuda_max_exclusive" in asked:
        high = _at_least(node.cuda, asked["cuda_max_exclusive"])
        asks = f"it asks for less than {asked['cuda_max_exclusive']}"
        yield _reason("driver.cuda_max_exclusive", None if high is None else not high, f"CUDA {node.cuda}", asks)


def _engine(envelope: Mapping[str, Any], node: NodeFacts, backend: str, plan: Mapping[str, Any]) -> Iterator[Reason]:
    """A TensorRT plan runs where it was built, unless it says otherwise.

    Source: TensorRT documentation, engine compatibility: by default only the version that built a plan loads it, and only
    on its own compute capability; `version_compatible` lets later versions; `ampere_plus` lets 8.0 and later.
    """
    asked = envelope.get("engine", {})
    if asked.get("type", "trt-plan" if backend == "tensorrt" else "") != "trt-plan":
        return
    flavour = FLAVOURS.get(plan.get("flavour", ""), declared_flavour(envelope))
    yield _version(asked, node, flavour, plan)
    yield from _portable(asked, node, plan)


def _version(asked: Mapping[str, Any], node: NodeFacts, flavour: Flavour, plan: Mapping[str, Any]) -> Reason:
    """Whether a version of the plan's own flavour that loads it is there; versions of the other flavour are no answer."""
    built, has = plan.get("tensorrt") or asked.get("builder_version"), node.tensorrt.get(flavour.name)
    if has is None and node.tensorrt:
        others = " and ".join(f"{FLAVOURS[name].product} {version}" for name, version in node.tensorrt.items())
        asks = f"the plan loads in {flavour.product} only"
        return Reason("engine.flavour", Verdict.NO, f"The node has {others}; {asks}.")
    if built is None or has is None:
        who = f"Neither the plan's header nor the envelope says which {flavour.product} built it"
        said = who if built is None else f"The node tells no {flavour.product}, and the plan was built by {built}"
        return Reason(
            "engine.builder_version", Verdict.UNKNOWN, f"{said}; a plan loads by default in that version only."
        )
    if asked.get("version_compatible"):
        return _later(has, built)
    asks = f"the plan loads in {built} only"
    return _reason("engine.builder_version", _same(has, built), f"{flavour.product} {has}", asks)


def _later(has: str, built: str) -> Reason:
    """Whether a plan that was built to load in later versions loads in `has`: of other major versions, in those that NVIDIA names.

    Source: TensorRT 10.16, version compatibility: 8 in 9 and 10, 9 in 10; 11.4, support matrix: 10 in 11, and no others.
    """
    ok, majors = _at_least(has, built), (int(built.split(".")[0]), (_numbers(has) or [0])[0])
    asks = f"the plan loads in {built} or later"
    if ok and majors[0] != majors[1] and majors not in _ACROSS_MAJORS:
        said = f"The node has TensorRT {has}; {asks}, but of these major versions that is not promised."
        return Reason("engine.builder_version", Verdict.UNKNOWN, said)
    return _reason("engine.builder_version", ok, f"TensorRT {has}", asks)


def _portable(asked: Mapping[str, Any], node: NodeFacts, plan: Mapping[str, Any]) -> Iterator[Reason]:
    level, on, has = asked.get("hardware_compatibility", "none"), asked.get("built_on", {}), node.compute_capability
    at = "engine.hardware_compatibility"
    if level == "ampere_plus":
        yield _reason(at, _at_least(has, "8.0"), f"compute capability {has}", "the plan runs on 8.0 or later")
        return
    built = plan.get("compute_capabilities") or [one for one in [on.get("compute_capability")] if one]
    if not built:
        said = "Neither the plan's header nor the envelope says for which compute capability the plan was built."
        yield Reason(at, Verdict.UNKNOWN, said)
        return
    ok, asks = None if has is None else has in built, f"the plan was built for {', '.join(built)} and runs on that only"
    yield _reason(at, ok, f"compute capability {has}", asks)
    if ok and level == "none" and on.get("sku") and node.gpus and {sku(on["sku"])} != {sku(one) for one in node.gpus}:
        said = f"The plan was built on {on['sku']}, the node has {', '.join(sorted(set(node.gpus)))}: it may fail or be slow."
        yield Reason("engine.built_on.sku", Verdict.UNKNOWN, said)


def _host(asked: Mapping[str, Any], node: NodeFacts) -> Iterator[Reason]:
    amounts = (
        ("cpu_cores_min", node.cpu_cores, "cores"),
        ("memory_mib_min", node.memory_mib, "MiB of memory"),
        ("shm_mib_min", node.shm_mib, "MiB of shared memory"),
        ("disk_mib", node.disk_mib, "MiB of disk"),
        ("pinned_memory_mib", node.memory_mib, "MiB of memory"),
    )
    for name, has, unit in amounts:
        if name in asked:
            ok = None if has is None else has >= asked[name]
            yield _reason(f"host.{name}", ok, f"{_number(has)} {unit}", f"it asks for {_number(asked[name])}")
    for name, value in (("os", node.os), ("arch", node.arch)):
        if name in asked:
            yield _reason(
                f"host.{name}",
                None if value is None else value == asked[name],
                str(value),
                f"it asks for {asked[name]}",
            )
    if asked.get("numa_local"):
        yield _reason("host.numa_local", None, "", "its device and processors are to be on one NUMA node")


def _at_least(has: str | None, least: str) -> bool | None:
    mine, theirs = _numbers(has), _numbers(least)
    return None if mine is None or theirs is None else _padded(mine) >= _padded(theirs)


def _same(has: str, wanted: str) -> bool | None:
    """Equal up to the shorter version: 10.3 equals 10.3.0.26."""
    mine, theirs = _numbers(has), _numbers(wanted)
    return None if mine is None or theirs is None else all(a == b for a, b in zip(mine, theirs, strict=False))


def _numbers(version: str | None) -> list[int] | None:
    """[535, 104, 5] of `535.104.05`; None for what does not begin with a number."""
    found = []
    for part in (version or "").split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))][:9]
        if not digits:
            break
        found.append(int(digits))
    return found or None


def _padded(numbers: list[int]) -> list[int]:
    return (numbers + [0] * 6)[:6]


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
