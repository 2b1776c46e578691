"""TensorRT and TensorRT for RTX, if installed: whether they can build here, and an engine plan from an ONNX graph.

The two have one Python interface; `Package` holds the differences. Of TensorRT, only what versions 10 and 11 have in common is used.
Source: NVIDIA/TensorRT 11.1, python/src (the bindings and their docstrings) and include/NvInferRuntime.h; TensorRT 11.4, "Removed
Python APIs and Replacements". That TensorRT for RTX builds without a GPU was measured with 1.7.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from registry.core.engine_flavour import RTX, STANDARD, Flavour

if TYPE_CHECKING:  # the agent asks for `availability` alone
    from registry.core.engine_profile import InputProfile

_DEVICE: Final = Path("/dev/nvidiactl")
_MOST_ERRORS: Final = 20
_MIB: Final = 20


@dataclass(frozen=True)
class Package:
    """A flavour's Python module. `distributions`: the names under which it may be installed; `oldest`: the first major version that is
    used. `needs_device`: it builds only on the GPU that the plan is for; else for any compute capability of the flavour, anywhere.
    """

    module: str
    distributions: tuple[str, ...]
    oldest: int
    needs_device: bool
    how: str


PACKAGES: Final = {
    STANDARD.name: Package(
        "tensorrt",
        ("tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
        10,
        needs_device=True,
        how="install sluicegate[gpu] on a machine with an NVIDIA GPU, or build with TensorRT for RTX: sluicegate[rtx], --flavour rtx",
    ),
    RTX.name: Package(
        "tensorrt_rtx_bindings",
        ("tensorrt-rtx-cu13-bindings", "tensorrt-rtx-cu12-bindings"),
        1,
        needs_device=False,
        how="install sluicegate[rtx]",
    ),
}


class TensorRTError(Exception):
    """TensorRT could not do what was asked, for a reason that may lie in this machine. `details` are its own words."""

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.details = tuple(details[:_MOST_ERRORS])


class BadGraph(TensorRTError):
    """TensorRT cannot read the ONNX graph, or the graph is not what was declared: no other machine would do better."""


@dataclass(frozen=True)
class BuildOptions:
    """What the envelope's `engine` asks of a plan. `tf32`: whether products of 32-bit floats may be rounded to TF32.

    `workspace_mib`: the most device memory that a layer may take beside its tensors; None: the builder's own limit, which is the whole
    device. `compute_capability`: that of the GPU to build for; None: this machine's GPU.
    """

    version_compatible: bool = False
    hardware_compatibility: str = "none"
    tf32: bool = True
    workspace_mib: int | None = None
    compute_capability: str | None = None


def availability(flavour: Flavour = STANDARD) -> str:
    """Product and version, if plans of this flavour can be built here, else `not available here: <why>`. Nothing is loaded."""
    package = PACKAGES[flavour.name]
    if find_spec(package.module) is None:
        return f"not available here: the {package.module} package is not installed; {package.how}"
    if package.needs_device and not _DEVICE.exists():
        return f"not available here: the {package.module} package is installed, but this machine has no NVIDIA device"
    return f"{flavour.product} {_version(package)}"


def installed() -> list[Flavour]:
    """The flavours whose package is installed, TensorRT itself first."""
    return [one for one in (STANDARD, RTX) if find_spec(PACKAGES[one.name].module) is not None]


def _version(package: Package) -> str:
    for name in package.distributions:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "of a version that its package does not tell"


def load(flavour: Flavour = STANDARD) -> Any:
    """The flavour's module. Raises TensorRTError if it is absent, broken or too old."""
    package, why = PACKAGES[flavour.name], availability(flavour)
    if not why.startswith(f"{flavour.product} "):
        raise TensorRTError(why)
    try:
        module = import_module(package.module)
    except (ImportError, OSError) as error:
        raise TensorRTError(f"not available here: the {package.module} package cannot be imported: {error}") from error
    if int(module.__version__.split(".")[0]) < package.oldest:
        said = f"{flavour.product} {module.__version__} is older than {package.oldest}"
        raise TensorRTError(f"not available here: {said}")
    return module


@dataclass(frozen=True)
class Built:
    """A plan, whole, and the limit under which the builder chose its kernels, in MiB; None if the builder's own applied."""

    plan: bytes
    workspace_mib: int | None


class Graph:
    """An ONNX graph that TensorRT has read, to be built into a plan. The number formats are the graph's own (strongly typed)."""

    def __init__(self, onnx: Path, profile: Sequence[InputProfile], flavour: Flavour = STANDARD) -> None:
        """Raises BadGraph with the parser's errors, or TensorRTError if the graph has a plugin that starts on a GPU only."""
        trt = self._trt = load(flavour)
        self._own = f"{flavour.product} {trt.__version__}"
        self._name, self._profile, self._log = onnx.name, profile, _log(trt)
        self._builder = _started(trt.Builder, self._log)
        self._network = self._builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = trt.OnnxParser(self._network, self._log)
        if not parser.parse_from_file(str(onnx)):
            errors = [_words(parser.get_error(at)) for at in range(parser.num_errors)]
            if not _DEVICE.exists() and any("cuda error" in one.lower() for one in self._log.errors):
                said = f"{self._own} cannot read {onnx.name} without a GPU"
                raise TensorRTError(said, [*errors, *self._log.errors])
            raise BadGraph(f"{self._own} cannot read {onnx.name}", errors or self._log.errors)
        self._parser = parser  # what the network holds of the weights is the parser's
        tensors = [self._network.get_input(at) for at in range(self._network.num_inputs)]
        shapes = {one.name: tuple(one.shape) for one in tensors}
        if shapes.keys() != {one.input for one in profile}:
            declared = ", ".join(one.input for one in profile)
            raise BadGraph(f"the graph has the inputs {', '.join(sorted(shapes))}, and serving declares {declared}")
        for one in profile:
            if not one.fits(shapes[one.input]):
                said = f"{one.input} is {list(shapes[one.input])} in the graph (-1 is any size)"
                raise BadGraph(f"{said}, and the plan is to take {list(one.min)} to {list(one.max)}")

    def build(self, options: BuildOptions) -> Built:
        """The plan; it takes minutes. Raises BadGraph for shapes that the graph cannot have, and TensorRTError with the log's
        words if the build failed: TensorRT does not tell a graph that it cannot build from a device that is too small.
        """
        trt = self._trt
        config = self._builder.create_builder_config()
        shapes = self._builder.create_optimization_profile()
        for one in self._profile:
            try:
                shapes.set_shape(one.input, one.min, one.opt, one.max)
            except ValueError as error:
                raise BadGraph(f"the input {one.input} cannot have these shapes: {error}", self._log.errors) from error
        if config.add_optimization_profile(shapes) < 0:
            raise BadGraph("the graph's inputs cannot have the declared shapes", self._log.errors)
        if options.version_compatible:
            config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
        if options.hardware_compatibility != "none":
            level = getattr(trt.HardwareCompatibilityLevel, options.hardware_compatibility.upper())
            config.hardware_compatibility_level = level
        if not options.tf32:
            config.clear_flag(trt.BuilderFlag.TF32)
        if options.workspace_mib is not None:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_mib << _MIB)
        if options.compute_capability is not None:
            self._aim(config, options.compute_capability)
        plan = self._builder.build_serialized_network(self._network, config)
        if plan is None:
            raise TensorRTError(f"{self._own} built no plan from {self._name}", self._log.errors)
        is_stated = options.workspace_mib is not None
        limit = config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE) >> _MIB if is_stated else None
        return Built(bytes(plan), limit)

    def _aim(self, config: Any, capability: str) -> None:
        """Sets the one compute capability that the plan is for. Raises TensorRTError if this version does not know it."""
        target = getattr(self._trt.ComputeCapability, f"SM{capability.replace('.', '')}", None)
        config.num_compute_capabilities = 1
        if target is None or not config.set_compute_capability(target, 0):
            raise TensorRTError(f"{self._own} builds no plan for compute capability {capability}", self._log.errors)


def _started(kind: Any, log: Any) -> Any:
    """A builder. Raises TensorRTError: a factory that gave nothing is a TypeError of the bindings."""
    try:
        return kind(log)
    except TypeError as error:
        raise TensorRTError("TensorRT cannot be started here", log.errors or [str(error)]) from error


def _log(trt: Any) -> Any:
    """A logger that keeps errors, and lets everything else go. Its class needs the module that it is for."""

    class Log(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, msg: str) -> None:
            if severity <= trt.ILogger.Severity.ERROR:
                self.errors.append(" ".join(msg.split()))

    return Log()


def _words(error: Any) -> str:
    """A parser's error as a sentence: which node, and what is wrong with it."""
    name, operator = error.node_name(), error.node_operator()
    said = " ".join(str(error.desc()).split())
    return f"node {error.node()} {name!r} ({operator}): {said}" if operator else said
