"""`sluicegate engine build`: a plan from a graph, and its way into the release folder."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ledger.adapters.files import write_whole
from registry.adapters.yaml_edit import with_section
from registry.core.engine_flavour import Flavour
from registry.core.engine_profile import InputProfile
from registry.core.kinds import BACKEND_FILES
from registry.core.spec import Spec
from serving.targets.adapters import tensorrt
from serving.targets.adapters.cuda import Cuda, CudaError
from sluicegate.cli.errors import refuse
from sluicegate.cli.output import Output
from sluicegate.client.documents import put_text, text_of
from sluicegate.client.folder import DOCUMENT

PLAN: Final = BACKEND_FILES["tensorrt"]
#: A plan that is not taken lies beside release.yaml, from where nothing is sent.
LOOSE_PLAN: Final = "model.plan"
#: Fields of `envelope.engine` that a build writes, so that their old values bind no new plan.
_WRITTEN: Final = {"flavour", "builder_version", "built_on", "compared"}


@dataclass(frozen=True)
class Asked:
    """The plan to build. `capability`: its compute capability; None: that of this machine's GPU."""

    folder: Path
    onnx: Path
    spec: Spec
    profile: tuple[InputProfile, ...]
    flavour: Flavour
    capability: str | None

    @property
    def declared(self) -> dict[str, Any]:
        engine: dict[str, Any] = self.spec.envelope.get("engine", {})
        return engine


def section_in(document: Mapping[str, Any]) -> dict[str, Any]:
    """`envelope.engine` as it is written; empty if there is none, or it is no mapping."""
    envelope = document.get("envelope")
    engine = envelope.get("engine") if isinstance(envelope, dict) else None
    return engine if isinstance(engine, dict) else {}


def to_build(document: Mapping[str, Any], flavour: Flavour, capability: str | None) -> dict[str, Any]:
    """The document with the flavour and target of the new plan, and without the fields that describe an earlier plan."""
    envelope = document.get("envelope") or {}
    if not isinstance(envelope, dict) or not isinstance(envelope.get("engine") or {}, dict):
        return dict(document)  # which is a mistake of its own
    kept = {name: value for name, value in section_in(document).items() if name not in _WRITTEN}
    aim = {"built_on": {"compute_capability": capability}} if capability else {}
    return {**document, "envelope": {**envelope, "engine": {**kept, "flavour": flavour.name, **aim}}}


def check_capability(flavour: Flavour, capability: str) -> None:
    """Raises CommandError if the flavour has no plans for this compute capability."""
    if why := flavour.why_not(capability):
        fix = "Name one of these by --compute-capability, or build with --flavour standard on a machine with that GPU."
        raise refuse(f"{why}.", fix)


def outcome(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The verdict, with its reason and details. Only the graph can fail; any other error leaves the verdict unknown."""
    try:
        return work()
    except tensorrt.BadGraph as error:
        return {"verdict": "failed", "reason": str(error), "details": list(error.details)}
    except tensorrt.TensorRTError as error:
        return {"verdict": "unknown", "reason": str(error), "details": list(error.details)}
    except CudaError as error:
        return {"verdict": "unknown", "reason": str(error), "details": []}


def plan_from(asked: Asked, output: Output) -> dict[str, Any]:
    """Builds the plan and puts it into the folder. Raises the errors that `outcome` expects."""
    trt, package = tensorrt.load(asked.flavour), tensorrt.PACKAGES[asked.flavour.name]
    own = f"{asked.flavour.product} {trt.__version__}"
    cuda, no_device = _device(asked)
    capability = _target(asked, cuda, no_device)
    graph = tensorrt.Graph(asked.onnx, asked.profile, asked.flavour)
    where = cuda.name if cuda and package.needs_device else f"compute capability {capability}"
    output.say(f"Building with {own} for {where}{'; this takes minutes' if package.needs_device else ''}.")
    built = graph.build(_options(asked, None if package.needs_device else capability))
    built_on: dict[str, str | None] = {"compute_capability": capability}
    if cuda and package.needs_device:
        built_on = {"sku": cuda.name.replace(" ", "-"), **built_on, "driver": cuda.driver}
    loose = asked.folder / LOOSE_PLAN
    _write(loose, built.plan)
    engine = _section(asked, trt.__version__, built_on, built.workspace_mib)
    return {
        "verdict": "built",
        "reason": f"Built by {own} for {where}. The gates are the first to run it.",
        "details": [],
        "plan": str(_put_in_place(asked, loose, engine)),
        "engine": engine,
    }


def _device(asked: Asked) -> tuple[Cuda | None, str]:
    """(this machine's GPU, "") or (None, why it cannot be used). Raises CudaError if the plan cannot be built without it."""
    try:
        return Cuda(), ""
    except CudaError as error:
        if tensorrt.PACKAGES[asked.flavour.name].needs_device:
            raise
        return None, str(error)


def _target(asked: Asked, cuda: Cuda | None, no_device: str) -> str:
    """The compute capability that the plan is for. Raises CommandError if it is not known, or the flavour has no plans for it."""
    capability = asked.capability or (cuda.compute_capability if cuda else None)
    if capability is None:
        said = (
            f"{asked.flavour.product} builds for a named compute capability, and this machine has no GPU ({no_device})."
        )
        fix = f"Name that of the GPU that is to run the plan, by --compute-capability: {', '.join(asked.flavour.capabilities)}."
        raise refuse(said, fix)
    check_capability(asked.flavour, capability)
    return capability


def _options(asked: Asked, capability: str | None) -> tensorrt.BuildOptions:
    declared = asked.declared
    return tensorrt.BuildOptions(
        version_compatible=declared.get("version_compatible", False),
        hardware_compatibility=declared.get("hardware_compatibility", "none"),
        tf32=declared.get("precision") != "fp32",
        workspace_mib=declared.get("workspace_mib"),
        compute_capability=capability,
    )


def _section(
    asked: Asked, version: str, built_on: Mapping[str, str | None], workspace_mib: int | None
) -> dict[str, Any]:
    """`envelope.engine` of a plan that was built here. Fields that only a person knows keep their declared values."""
    told, driver = re.match(r"\d+(\.\d+){0,3}", version), built_on.get("driver")
    known = {name: value for name, value in built_on.items() if value}
    if driver and not re.fullmatch(r"\d+(\.\d+){0,3}", driver):
        del known["driver"]
    written = {
        "type": "trt-plan",
        "flavour": asked.flavour.name,
        **({"builder_version": told[0]} if told else {}),
        "built_on": known,
        "optimization_profiles": [one.as_json() for one in asked.profile],
        **({} if workspace_mib is None else {"workspace_mib": workspace_mib}),
    }
    return written | {name: value for name, value in asked.declared.items() if name not in written}


def _put_in_place(asked: Asked, loose: Path, engine: dict[str, Any]) -> Path:
    """Raises CommandError if release.yaml cannot take the section; the plan then keeps its place."""
    document, place = asked.folder / DOCUMENT, asked.folder / PLAN
    before = bytes_of(document)
    try:
        text = with_section(text_of(document), "engine", engine)
    except ValueError as error:
        said = f"The plan is built, and {document} cannot be written: {error}."
        raise refuse(said, f"Write envelope.engine: {json.dumps(engine)}, and move {loose} to {PLAN}.") from error
    put_text(document, text)
    try:
        place.parent.mkdir(exist_ok=True)
        loose.replace(place)
    except BaseException as error:  # also Ctrl-C: the section always describes the plan that is sent
        _write(document, before)
        if not isinstance(error, OSError):
            raise
        said = f"The plan is built, and cannot be moved to {place}: {error.strerror}."
        raise refuse(said, "Make it writable, and repeat the command.") from error
    return place


def bytes_of(path: Path, most: int = -1) -> bytes:
    """The first `most` bytes, or all. Raises CommandError."""
    try:
        with path.open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise refuse(f"{path} cannot be read: {error.strerror}.", "Make it readable.") from error


def _write(path: Path, data: bytes) -> None:
    """Writes all or nothing, with the mode of the previous file. Raises CommandError."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
        write_whole(path, data)
        if mode is not None:
            path.chmod(mode)
    except OSError as error:
        raise refuse(f"{path} cannot be written: {error.strerror}.", "Make room, or make it writable.") from error
