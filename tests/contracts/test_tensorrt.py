"""Building and running an engine plan: one contract, on the fake and on real ones.

TensorRT for RTX builds here in every run. TensorRT itself, and running a plan of either, need an NVIDIA GPU.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from registry.core.engine_flavour import RTX, STANDARD, Flavour
from registry.core.engine_profile import InputProfile
from registry.core.formats import tensorrt as header
from registry.core.formats.window import Window
from serving.adapters import cuda, tensorrt
from serving.adapters.cuda import Cuda, CudaError
from serving.adapters.onnx_reference import GraphError, OnnxReference
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

    def loaded(self, plan: bytes, device: Cuda, *, host_code: bool = False) -> tensorrt.Plan:
        return tensorrt.Plan(plan, device, self.flavour, host_code=host_code)


REAL = [
    pytest.param("standard", marks=[pytest.mark.real("tensorrt"), pytest.mark.shows("builder:tensorrt")]),
    pytest.param("rtx", marks=[pytest.mark.real("tensorrt-rtx"), pytest.mark.shows("builder:tensorrt-rtx")]),
]


ON_GPU = [pytest.mark.real("gpu"), pytest.mark.shows("builder:execution", "gpu:cuda")]


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


@pytest.fixture(params=["fake", *(pytest.param(*one.values, marks=[*one.marks, *ON_GPU]) for one in REAL)])
def here(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    """Builds plans for this machine's GPU, and runs them."""
    if request.param == "fake":
        with fake_tensorrt(monkeypatch, Path(__file__)):
            yield Here(STANDARD)
    elif request.param == "rtx":
        use_rtx(monkeypatch)
        with Cuda() as device:
            capability = device.compute_capability
        if why := RTX.why_not(capability):
            pytest.skip(why)
        yield Here(RTX, capability)
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


def test_a_plan_answers_as_its_graph_does(here: Here, graph: Path) -> None:
    reference = OnnxReference(graph)
    with Cuda() as device:
        plan = here.build(graph)
        with here.loaded(plan, device) as loaded:
            assert (loaded.inputs, loaded.outputs) == (["x"], ["y"])
            for batch in (1, 4, 8, 1):
                x = np.random.default_rng(batch).normal(0, 1, (batch, INPUTS)).astype(np.float32)
                found, expected = loaded.run({"x": x})["y"], reference.run({"x": x}, ["y"])["y"]
                assert found.dtype == np.float32 and found.shape == expected.shape
                assert np.abs(found - expected).max() < 5e-3
                assert np.abs(expected).max() > 0.1, "the graph answers something"


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


def test_a_request_beyond_the_profile_is_the_plans_fault(here: Here, graph: Path) -> None:
    with Cuda() as device, here.loaded(here.build(graph), device) as loaded:
        too_many = np.zeros((9, INPUTS), np.float32)
        told = [refusal(lambda: loaded.run({"x": too_many}), tensorrt.BadPlan) for _ in range(2)]
        assert "does not take x of the shape [9, 8]" in str(told[0])
        assert len(told[0].details) == len(told[1].details), "what the log said to an earlier request is not told again"
        half = np.zeros((1, INPUTS), np.float16)
        assert "takes x as float32, declared is float16" in str(
            refusal(lambda: loaded.run({"x": half}), tensorrt.BadPlan)
        )
        assert "has the inputs x" in str(refusal(lambda: loaded.run({"z": half}), tensorrt.BadPlan))
        assert loaded.run({"x": too_many[:2]})["y"].shape[0] == 2, "and it goes on"


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


def test_a_plan_of_other_bytes_does_not_load(here: Here, graph: Path) -> None:
    with Cuda() as device:
        error = refusal(lambda: here.loaded(b"no plan" * 20, device), tensorrt.TensorRTError)
    assert "does not load the plan" in str(error) and error.details


def test_a_plan_for_later_versions_needs_leave_to_run_its_own_code(here: Here, graph: Path) -> None:
    if not here.flavour.is_portable:
        pytest.skip(f"{here.flavour.product} builds no plans for later versions")
    with Cuda() as device:
        plan = here.build(graph, PROFILE, tensorrt.BuildOptions(version_compatible=True))
        with here.loaded(plan, device, host_code=True) as loaded:
            assert loaded.run({"x": np.zeros((1, INPUTS), np.float32)})["y"].shape == (1, 16)
        refusal(lambda: here.loaded(plan, device), tensorrt.TensorRTError)


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
        ("runtime", "cannot be started here"),
        ("build", "built no plan from model.onnx"),
        ("load", "does not load the plan"),
        ("context", "there is no execution context"),
        ("execute", "did not run the request"),
    ],
)
def test_what_this_machine_cannot_do_is_told_with_the_logs_words(
    library: FakeCudaLibrary, graph: Path, monkeypatch: pytest.MonkeyPatch, fails: str, says: str
) -> None:
    from tests.support.fakes import tensorrt as fake

    def whole() -> None:
        with Cuda() as device, tensorrt.Plan(build(graph, PROFILE, PLAIN), device) as loaded:
            loaded.run({"x": np.zeros((1, INPUTS), np.float32)})

    monkeypatch.setattr(fake, "refuses_to", {fails})
    error = refusal(whole, tensorrt.TensorRTError)
    assert says in str(error) and not isinstance(error, tensorrt.BadGraph | tensorrt.BadPlan)
    assert "\n" not in "".join(error.details) and (error.details or fails == "context")


@pytest.mark.parametrize("call", ["cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuStreamSynchronize", "cuMemAlloc_v2"])
def test_a_driver_that_fails_in_the_middle_leaves_nothing_held(
    library: FakeCudaLibrary, graph: Path, call: str
) -> None:
    with Cuda() as device, tensorrt.Plan(build(graph, PROFILE, PLAIN), device) as loaded:
        library.broken[call] = 700
        with pytest.raises(CudaError, match=rf"{call} failed: a failure that a test asked for \[700\]"):
            loaded.run({"x": np.zeros((1, INPUTS), np.float32)})
        assert library.allocated == {}


def test_a_device_that_is_full_says_so(library: FakeCudaLibrary) -> None:
    library.room = 100
    with Cuda() as device, device.memory(90), pytest.raises(CudaError, match="out of memory"), device.memory(11):
        pass


def test_memory_keeps_what_was_copied_of_any_layout(library: FakeCudaLibrary) -> None:
    array = np.arange(12, dtype=np.int64).reshape(3, 4).T
    with Cuda() as device, device.memory(array.nbytes) as at:
        device.upload(at, array)
        assert (device.download(at, (4, 3), np.int64) == array).all()
    with Cuda() as device, device.memory(0) as at:  # an empty tensor has an address too
        device.upload(at, np.empty((0, 3), np.float32))
        assert device.download(at, (0, 3), np.float32).shape == (0, 3)


def test_an_output_whose_size_the_data_decide_is_not_compared(library: FakeCudaLibrary, tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    node = helper.make_node("NonZero", ["x"], ["y"])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, INPUTS])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [2, None])
    graph = helper.make_graph([node], "g", [x], [y])
    path = tmp_path / "model.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    )
    with Cuda() as device, tensorrt.Plan(build(path, PROFILE, PLAIN), device) as loaded:
        error = refusal(lambda: loaded.run({"x": np.ones((1, INPUTS), np.float32)}), tensorrt.TensorRTError)
    assert "depends on the data" in str(error)


def test_a_tensor_that_numpy_has_no_type_for_is_not_compared(library: FakeCudaLibrary, tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, INPUTS])
    y = helper.make_tensor_value_info("y", TensorProto.BFLOAT16, [None, INPUTS])
    graph = helper.make_graph([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.BFLOAT16)], "g", [x], [y])
    path = tmp_path / "model.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    )
    with Cuda() as device:
        plan = build(path, PROFILE, PLAIN)
        assert "numpy has no type" in str(refusal(lambda: tensorrt.Plan(plan, device), tensorrt.TensorRTError))


def test_a_tensor_that_holds_a_shape_is_not_compared(
    library: FakeCudaLibrary, graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.fakes import tensorrt as fake

    monkeypatch.setattr(fake, "shape_tensors", {"y"})
    with Cuda() as device:
        plan = build(graph, PROFILE, PLAIN)
        assert "holds a shape" in str(refusal(lambda: tensorrt.Plan(plan, device), tensorrt.TensorRTError))


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


def test_without_a_driver_there_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", absent)
    with pytest.raises(CudaError, match=r"driver's library cannot be loaded: libcuda\.so\.1"):
        cuda.load_library()


def test_a_graph_that_onnx_runtime_does_not_load_is_told(graph: Path) -> None:
    with pytest.raises(GraphError, match="cannot run it"):
        OnnxReference(graph).run({"x": np.zeros((1, 3), np.float32)}, ["y"])
    graph.write_bytes(b"no graph")
    with pytest.raises(GraphError, match=r"cannot load model\.onnx"):
        OnnxReference(graph)
