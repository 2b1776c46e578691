"""Building an engine plan: one contract, on the fake and on real ones.

TensorRT for RTX builds here in every run. TensorRT itself needs an NVIDIA GPU.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from registry.core.engine_flavour import RTX, STANDARD, Flavour
from registry.core.engine_profile import InputProfile
from registry.core.formats import tensorrt as header
from registry.core.formats.window import Window
from serving.targets.adapters import cuda, tensorrt
from serving.targets.adapters.cuda import Cuda, CudaError
from tests.support.fakes.cuda import FakeCudaLibrary
from tests.support.rigs.tensorrt_rig import fake_tensorrt, use_rtx
from tests.support.worlds.golden_models import INPUTS, embedding_graph

pytestmark = pytest.mark.real("onnx")
PROFILE = (InputProfile("x", (1, INPUTS), (4, INPUTS), (8, INPUTS)),)
PLAIN = tensorrt.BuildOptions()


@dataclass(frozen=True)
class Here:
    """What builds, and for which compute capability; None: for this machine's GPU."""

    flavour: Flavour
    capability: str | None = None

    def build(
        self, onnx: Path, profile: Sequence[InputProfile] = PROFILE, options: tensorrt.BuildOptions = PLAIN
    ) -> bytes:
        aimed = replace(options, compute_capability=self.capability)
        return tensorrt.Graph(onnx, profile, self.flavour).build(aimed).plan


REAL = [
    pytest.param("standard", marks=[pytest.mark.real("tensorrt"), pytest.mark.shows("builder:tensorrt")]),
    pytest.param("rtx", marks=[pytest.mark.real("tensorrt-rtx"), pytest.mark.shows("builder:tensorrt-rtx")]),
]


@pytest.fixture(params=["fake", *REAL])
def builder(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    """Builds plans; it need not run them."""
    if request.param == "fake":
        with fake_tensorrt(monkeypatch, Path(__file__)):
            yield Here(STANDARD)
    elif request.param == "rtx":
        use_rtx(monkeypatch)
        yield Here(RTX, "8.9")
    else:
        yield Here(STANDARD)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCudaLibrary]:
    with fake_tensorrt(monkeypatch, Path(__file__)) as found:
        yield found


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(embedding_graph())
    return path


def with_foreign_operator(path: Path) -> Path:
    import onnx

    model = onnx.load(path)
    model.opset_import.append(onnx.helper.make_opsetid("acme", 1))
    node = model.graph.node[-1]
    node.domain, node.op_type, node.name = "acme", "Sparkle", "last"
    onnx.save(model, path)
    return path


def build(onnx: Path, profile: Sequence[InputProfile], options: tensorrt.BuildOptions) -> bytes:
    return Here(STANDARD).build(onnx, profile, options)


def refusal(work: Callable[[], Any], kind: type[tensorrt.TensorRTError]) -> tensorrt.TensorRTError:
    with pytest.raises(kind) as caught:
        work()
    return caught.value


def facts_of(plan: bytes) -> dict[str, Any]:
    return header.read(Window(io.BytesIO(plan), len(plan)))


@pytest.mark.parametrize("is_half", [False, True], ids=["FP32", "FP16"])
def test_a_plan_is_what_the_registry_takes(builder: Here, graph: Path, is_half: bool) -> None:
    graph.write_bytes(embedding_graph(is_half=is_half))
    facts = facts_of(builder.build(graph))
    assert facts["flavour"] == builder.flavour.name
    assert facts["tensorrt"].startswith(tensorrt.load(builder.flavour).__version__)
    assert facts["compute_capabilities"] == ([builder.capability] if builder.capability else None)


def test_the_memory_of_a_layer_is_bounded_when_the_envelope_bounds_it(builder: Here, graph: Path) -> None:
    def limit(options: tensorrt.BuildOptions) -> int | None:
        aimed = replace(options, compute_capability=builder.capability)
        return tensorrt.Graph(graph, PROFILE, builder.flavour).build(aimed).workspace_mib

    assert limit(PLAIN) is None, "the builder's own limit is the whole device, and no statement about the plan"
    assert limit(replace(PLAIN, workspace_mib=64)) == 64


def test_a_graph_that_is_none_is_told_in_the_parsers_words(builder: Here, graph: Path) -> None:
    graph.write_bytes(b"no graph at all")
    error = refusal(lambda: builder.build(graph), tensorrt.BadGraph)
    assert "cannot read model.onnx" in str(error) and error.details and all(error.details)


def test_an_operator_that_is_not_known_is_named(builder: Here, graph: Path) -> None:
    error = refusal(lambda: builder.build(with_foreign_operator(graph)), tensorrt.BadGraph)
    assert any("Sparkle" in detail for detail in error.details)


def test_a_graph_with_other_inputs_than_declared_is_refused(builder: Here, graph: Path) -> None:
    other = (InputProfile("pixels", (1, 8), (4, 8), (8, 8)),)
    error = refusal(lambda: builder.build(graph, other), tensorrt.BadGraph)
    assert str(error) == "the graph has the inputs x, and serving declares pixels"


def test_shapes_that_the_graph_cannot_have_build_no_plan(builder: Here, graph: Path) -> None:
    wider = (InputProfile("x", (1, 9), (4, 9), (8, 9)),)
    error = refusal(lambda: builder.build(graph, wider), tensorrt.BadGraph)
    assert str(error) == "x is [-1, 8] in the graph (-1 is any size), and the plan is to take [1, 9] to [8, 9]"


# what only a fake can be made to do


def test_options_and_number_formats_reach_the_builder(library: FakeCudaLibrary, graph: Path) -> None:
    from tests.support.fakes import tensorrt as fake

    build(graph, PROFILE, PLAIN)
    assert fake.built == {"flags": {fake.BuilderFlag.TF32}, "level": 0, "network": 0b10}
    build(graph, PROFILE, tensorrt.BuildOptions(tf32=False, hardware_compatibility="ampere_plus"))
    assert (fake.built["flags"], fake.built["level"].name) == (set(), "AMPERE_PLUS")


@pytest.mark.parametrize(
    ("fails", "says"),
    [
        ("builder", "cannot be started here"),
        ("build", "built no plan from model.onnx"),
    ],
)
def test_what_this_machine_cannot_do_is_told_with_the_logs_words(
    library: FakeCudaLibrary, graph: Path, monkeypatch: pytest.MonkeyPatch, fails: str, says: str
) -> None:
    from tests.support.fakes import tensorrt as fake

    monkeypatch.setattr(fake, "refuses_to", {fails})
    error = refusal(lambda: build(graph, PROFILE, PLAIN), tensorrt.TensorRTError)
    assert says in str(error) and not isinstance(error, tensorrt.BadGraph)
    assert "\n" not in "".join(error.details) and error.details


# where it is not


def test_availability_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tensorrt, "find_spec", lambda name: None)
    assert tensorrt.availability().startswith("not available here: the tensorrt package is not installed")
    monkeypatch.setattr(tensorrt, "find_spec", lambda name: object())
    monkeypatch.setattr(tensorrt, "_DEVICE", tmp_path / "nvidiactl")
    assert "has no NVIDIA device" in tensorrt.availability()
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(tensorrt, "version", {"tensorrt-cu12": "10.9.0.34"}.__getitem__)
    monkeypatch.setattr(tensorrt, "PackageNotFoundError", KeyError)
    assert tensorrt.availability() == "TensorRT 10.9.0.34", "a wheel of one CUDA version is enough"


@pytest.mark.real("tensorrt-rtx")
def test_building_for_a_named_gpu_needs_no_device_on_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tensorrt, "_DEVICE", tmp_path / "nvidiactl")
    module = use_rtx(monkeypatch)
    assert tensorrt.availability(RTX) == f"TensorRT for RTX {module.__version__}"
    assert RTX in tensorrt.installed() and tensorrt.load(RTX) is module
    for capability in RTX.capabilities:
        assert f"SM{capability.replace('.', '')}" in module.ComputeCapability.__members__
    named = {name for name in module.ComputeCapability.__members__ if name.startswith("SM")}
    assert len(named) == len(RTX.capabilities), "the builder has more targets than the registry knows"
    monkeypatch.setattr(tensorrt, "find_spec", lambda name: None)
    assert tensorrt.availability(RTX).endswith("package is not installed; install sluicegate[rtx]")
    assert tensorrt.installed() == []


def test_a_module_that_cannot_be_used_is_not_available(
    library: FakeCudaLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from tests.support.fakes import tensorrt as fake

    monkeypatch.setattr(fake, "__version__", "8.6.1")
    assert "TensorRT 8.6.1 is older than 10" in str(refusal(tensorrt.load, tensorrt.TensorRTError))
    monkeypatch.setattr(tensorrt, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    assert "cannot be imported" in str(refusal(tensorrt.load, tensorrt.TensorRTError))


@pytest.mark.real("gpu")
@pytest.mark.shows("gpu:cuda")
def test_the_driver_names_this_machines_gpu() -> None:
    device = Cuda()
    assert device.name and re.fullmatch(r"\d+\.\d+", device.compute_capability)


def test_without_a_driver_there_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", absent)
    with pytest.raises(CudaError, match=r"driver's library cannot be loaded: libcuda\.so\.1"):
        cuda.load_library()
