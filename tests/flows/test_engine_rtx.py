"""`sluicegate engine build` with the real TensorRT for RTX, as on a CI machine without a GPU."""

from __future__ import annotations

import io
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from onnx import TensorProto, helper, load, save

from registry.core.file_lint import lint
from registry.core.formats import inspect
from registry.core.spec import parse_spec
from serving.targets.adapters import cuda, tensorrt
from serving.targets.adapters.cuda import CudaError
from sluicegate.cli.main import main
from tests.flows.test_engine_commands import CHANGES, files, told
from tests.support.rigs.parts import absent
from tests.support.rigs.tensorrt_rig import use_rtx
from tests.support.worlds.golden_models import INPUTS, embedding_graph
from tests.support.worlds.registry_samples import release_yaml

pytestmark = pytest.mark.real("tensorrt-rtx", "onnx")
#: The sentence of a machine without a driver, whatever this machine has.
NO_DRIVER = "the NVIDIA driver's library cannot be loaded: libcuda.so.1"
FOR_ADA = ("--flavour", "rtx", "--compute-capability", "8.9")


@pytest.fixture(autouse=True)
def rtx(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    def no_library() -> Any:
        raise CudaError(NO_DRIVER)

    monkeypatch.setattr(cuda, "load_library", no_library)
    monkeypatch.setattr(tensorrt, "_DEVICE", tmp_path / "nvidiactl")
    return use_rtx(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "release"
    path.mkdir()
    write(path)
    (path / "model.onnx").write_bytes(embedding_graph())
    return path


def write(folder: Path, **engine: Any) -> None:
    envelope = {"accelerator": {"vendor": "nvidia"}, **({"engine": engine} if engine else {})}
    text = yaml.safe_dump(release_yaml({**deepcopy(CHANGES), "envelope": envelope}), sort_keys=False)
    (folder / "release.yaml").write_text(f"# by hand\n{text}")


def engine_of(folder: Path) -> dict[str, Any]:
    engine: dict[str, Any] = yaml.safe_load((folder / "release.yaml").read_text())["envelope"]["engine"]
    return engine


def test_without_a_gpu_a_plan_is_built_and_put_in_place(
    folder: Path, capsys: pytest.CaptureFixture[str], rtx: Any
) -> None:
    write(folder, workspace_mib=64, precision="fp32")
    code, found = told(capsys, "build", folder, *FOR_ADA)
    plan = folder / "artifact" / "model.plan"
    assert (code, found["verdict"], found["plan"]) == (0, "built", str(plan))
    assert engine_of(folder) == found["engine"] == {
        "type": "trt-plan",
        "flavour": "rtx",
        "builder_version": rtx.__version__,
        "built_on": {"compute_capability": "8.9"},
        "optimization_profiles": [{"input": "x", "min": [1, INPUTS], "opt": [4, INPUTS], "max": [8, INPUTS]}],
        "precision": "fp32",
        "workspace_mib": 64,
    }  # fmt: skip
    spec = parse_spec(yaml.safe_load((folder / "release.yaml").read_text()))
    data = plan.read_bytes()
    facts = inspect("artifact/model.plan", io.BytesIO(data), len(data)).facts
    assert lint(spec.serving, spec.envelope, spec.backend, {"artifact/model.plan": (len(data), facts)}) == []


def test_people_read_where_the_plan_lies_and_what_to_do(
    folder: Path, capsys: pytest.CaptureFixture[str], rtx: Any
) -> None:
    assert main(["engine", "build", str(folder), *FOR_ADA]) == 0
    first, *_, place, last = capsys.readouterr().out.splitlines()
    assert first == f"Building with TensorRT for RTX {rtx.__version__} for compute capability 8.9."
    assert place == f"The plan is {folder / 'artifact' / 'model.plan'}." and last.startswith("built: Built by")


def test_release_yaml_and_the_installed_package_decide_what_the_command_does_not(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, flavour="rtx", built_on={"compute_capability": "8.6"}, builder_version="1.0", compared=True)
    code, found = told(capsys, "build", folder)
    assert (code, found["engine"]["built_on"]) == (0, {"compute_capability": "8.6"})
    write(folder)
    code, found = told(capsys, "build", folder, "--compute-capability", "12.0")
    assert (code, found["engine"]["flavour"]) == (0, "rtx"), "the one flavour that is installed"
    assert found["engine"]["built_on"] == {"compute_capability": "12.0"}


@pytest.mark.parametrize(
    ("engine", "words", "says"),
    [
        ({}, (), "builds for a named compute capability, and this machine has no GPU"),
        ({}, (), "by --compute-capability: 7.5, 8.0, 8.6, 8.9, 12.0, 12.1."),
        ({}, ("--compute-capability", "9.0"), "builds no plan for compute capability 9.0 (H100, H200), only for 7.5,"),
        ({}, ("--compute-capability", "10.0"), "builds no plan for compute capability 10.0, only for 7.5,"),
        ({"built_on": {"compute_capability": "9.0"}}, (), "builds no plan for compute capability 9.0"),
        ({}, ("--flavour", "standard", "--compute-capability", "8.9"), "TensorRT builds for the GPU of this machine only"),
        ({"flavour": "turbo"}, ("--compute-capability", "8.9"), "envelope.engine.flavour 'turbo', which does not exist"),
        ({"version_compatible": True}, ("--compute-capability", "8.9"), "TensorRT for RTX builds no such plan"),
        ({"workspace_mib": -1}, ("--compute-capability", "8.9"), "workspace_mib"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_for_is_refused_with_the_next_step(
    folder: Path, capsys: pytest.CaptureFixture[str], engine: dict[str, Any], words: tuple[str, ...], says: str
) -> None:
    write(folder, **engine)
    before = files(folder)
    assert main(["engine", "build", str(folder), *words]) == 3
    said = capsys.readouterr().err
    assert says in said and "Next:" in said
    assert files(folder) == before


def test_the_gpu_that_the_envelope_asks_for_must_be_the_one_to_build_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = yaml.safe_load((folder / "release.yaml").read_text())
    document["envelope"]["accelerator"]["sku_allow"] = ["NVIDIA-A10"]
    (folder / "release.yaml").write_text(yaml.safe_dump(document))
    assert main(["engine", "build", str(folder), *FOR_ADA]) == 3
    assert "sku_allow allows NVIDIA-A10 (8.6) only" in capsys.readouterr().err


def with_custom_operator(path: Path) -> None:
    model = load(path)
    node = model.graph.node[-1]
    node.domain, node.op_type, node.name = "acme", "Sparkle", "last"
    model.opset_import.append(helper.make_opsetid("acme", 1))
    save(model, path)


def with_built_in_plugin(path: Path) -> None:
    """RoiAlign, which TensorRT for RTX computes by its only built-in plugin; that one asks for the driver when it is created."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 4, 4])
    boxes = helper.make_tensor("boxes", TensorProto.FLOAT, [1, 4], [0.0, 0.0, 8.0, 8.0])
    rows = helper.make_tensor("rows", TensorProto.INT64, [1], [0])
    node = helper.make_node("RoiAlign", ["x", "boxes", "rows"], ["y"], name="roi", output_height=4, output_width=4)
    graph = helper.make_graph([node], "g", [x], [y], [boxes, rows])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


@pytest.mark.parametrize(
    ("spoil", "code", "verdict", "reason", "detail"),
    [
        (with_custom_operator, 1, "failed", "cannot read model.onnx", "'last' (Sparkle)"),
        (with_built_in_plugin, 2, "unknown", "cannot read model.onnx without a GPU", "'roi' (RoiAlign)"),
    ],
)
def test_a_plugin_that_cannot_be_had_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], None], code: int, verdict: str, reason: str, detail: str
) -> None:  # fmt: skip
    """An operator that no plugin computes is the graph's fault. A plugin that needs a driver is this machine's."""
    if spoil is with_built_in_plugin and not absent("gpu"):
        pytest.skip("with this machine's driver the plugin can be created")
    spoil(folder / "model.onnx")
    before = files(folder)
    got, found = told(capsys, "build", folder, *FOR_ADA)
    assert (got, found["verdict"]) == (code, verdict), found
    assert reason in found["reason"] and any(detail in one for one in found["details"]), found
    assert files(folder) == before
