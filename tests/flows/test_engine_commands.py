"""`sluicegate engine build` from the command to the files, on a fake TensorRT."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from registry.core.spec import read_spec
from serving.targets.adapters import tensorrt
from sluicegate.cli.main import main
from sluicegate.client.folder import read_folder
from tests.support.fakes.cuda import FakeCudaLibrary
from tests.support.rigs.tensorrt_rig import fake_tensorrt
from tests.support.worlds.golden_models import INPUTS, OUTPUTS, embedding_graph
from tests.support.worlds.model_files import plan_file
from tests.support.worlds.registry_samples import release_yaml

pytestmark = pytest.mark.real("onnx")
CHANGES: dict[str, Any] = {
    "runtime.backend": "tensorrt",
    "serving": {
        "max_batch_size": 8,
        "inputs": [{"name": "x", "data_type": "FP32", "dims": [INPUTS]}],
        "outputs": [{"name": "y", "data_type": "FP32", "dims": [OUTPUTS]}],
        "dynamic_batching": {"preferred_batch_size": [4]},
        "instance_group": [{"kind": "gpu", "count": 1}],
    },
    "envelope": {"accelerator": {"vendor": "nvidia"}, "engine": {"precision": "fp32"}},
}
OLD = b"the plan that was there"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "release"
    path.mkdir()
    write(path)
    (path / "model.onnx").write_bytes(embedding_graph())
    return path


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCudaLibrary]:
    with fake_tensorrt(monkeypatch, Path(__file__)) as library:
        yield library


def write(folder: Path, changes: dict[str, Any] | None = None) -> None:
    text = yaml.safe_dump(release_yaml({**deepcopy(CHANGES), **(changes or {})}), sort_keys=False)
    (folder / "release.yaml").write_text(f"# by hand\n{text}")


def told(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, dict[str, Any]]:
    code = main(["--json", "engine", *map(str, words)])
    return code, json.loads(capsys.readouterr().out)


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_plan_is_put_into_the_folder_with_what_it_was_built_for(
    here: FakeCudaLibrary, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(folder)
    code, found = told(capsys, "build", folder)
    assert (code, found["verdict"], found["plan"]) == (0, "built", str(folder / "artifact" / "model.plan"))
    after = files(folder)
    assert after.keys() - before.keys() == {"artifact/model.plan"} and after["artifact/model.plan"].startswith(b"ftrt")
    text = after["release.yaml"].decode()
    spec, problems = read_spec(yaml.safe_load(text))
    assert spec is not None and problems == [] and text.startswith("# by hand\n")
    engine = spec.envelope["engine"]
    assert engine.pop("built_on").items() >= {"sku": "NVIDIA-L4", "compute_capability": "8.9"}.items()
    assert engine == {
        "precision": "fp32",
        "type": "trt-plan",
        "flavour": "standard",
        "builder_version": "10.3.0",
        "optimization_profiles": [{"input": "x", "min": [1, INPUTS], "opt": [4, INPUTS], "max": [8, INPUTS]}],
    }
    assert [path for path, _ in read_folder(folder).files] == ["artifact/model.plan"], "the graph beside it is not sent"


@pytest.mark.parametrize(
    ("engine", "flags", "level"),
    [
        ({"precision": "fp32"}, set(), "NONE"),
        ({}, {"TF32"}, "NONE"),
        (
            {"version_compatible": True, "hardware_compatibility": "ampere_plus"},
            {"TF32", "VERSION_COMPATIBLE"},
            "AMPERE_PLUS",
        ),
    ],
)
def test_what_the_envelope_asks_of_the_plan_is_what_is_built(
    here: FakeCudaLibrary, folder: Path, engine: dict[str, Any], flags: set[str], level: str
) -> None:
    from tests.support.fakes import tensorrt as fake

    write(folder, {"envelope": {"accelerator": {"vendor": "nvidia"}, "engine": engine}})
    assert main(["engine", "build", str(folder)]) == 0
    assert ({flag.name for flag in fake.built["flags"]}, fake.built["level"].name) == (flags, level)
    written = yaml.safe_load((folder / "release.yaml").read_text())["envelope"]["engine"]
    assert engine.items() <= written.items()


def test_the_parsers_words_are_told_and_no_plan_is_left(
    here: FakeCudaLibrary, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import onnx

    model = onnx.load(folder / "model.onnx")
    node = model.graph.node[-1]
    node.domain, node.op_type, node.name = "acme", "Sparkle", "last"
    model.opset_import.append(onnx.helper.make_opsetid("acme", 1))
    onnx.save(model, folder / "model.onnx")
    before = files(folder)
    assert main(["engine", "build", str(folder)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"  node {len(model.graph.node) - 1} 'last' (Sparkle): Plugin not found, are the libraries loaded?",
        "failed: TensorRT 10.3.0 cannot read model.onnx",
    ]
    assert files(folder) == before


@pytest.mark.parametrize(
    ("fails", "says"),
    [("build", "built no plan"), ("builder", "cannot be started here")],
)
def test_what_breaks_is_unknown_with_the_logs_words(
    here: FakeCudaLibrary,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    fails: str,
    says: str,
) -> None:
    from tests.support.fakes import tensorrt as fake

    monkeypatch.setattr(fake, "refuses_to", {fails})
    code, found = told(capsys, "build", folder)
    assert (code, found["verdict"]) == (2, "unknown") and says in found["reason"]
    assert "artifact/model.plan" not in files(folder)


def test_a_device_that_fails_is_unknown(
    here: FakeCudaLibrary, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here.broken = {"cuInit": 100}
    code, found = told(capsys, "build", folder)
    assert (code, found["verdict"]) == (2, "unknown") and "cuInit failed" in found["reason"]


def test_without_tensorrt_it_is_unknown_and_nothing_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "artifact").mkdir()
    (folder / "artifact" / "model.plan").write_bytes(plan_file())
    monkeypatch.setattr(tensorrt, "find_spec", lambda name: None)
    before = files(folder)
    assert main(["engine", "build", str(folder)]) == 2
    said = capsys.readouterr().out.strip()
    assert said == f"unknown: {tensorrt.availability()}" and "not available here" in said
    assert files(folder) == before


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"runtime.backend": "sluicegate-onnx", "envelope.engine": {}}, "names the backend sluicegate-onnx"),
        ({"serving.max_batch_size": -1}, "serving.max_batch_size"),
        ({"serving.inputs": [{"name": "x", "data_type": "FP32", "dims": [-1]}]}, "a plan needs to know the largest"),
    ],
)
def test_a_release_that_no_plan_can_be_built_for_is_refused_before_anything_else(
    folder: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], says: str
) -> None:
    write(folder, changes)
    assert main(["engine", "build", str(folder)]) == 3
    assert says in capsys.readouterr().err


def test_what_is_not_there_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "model.onnx").unlink()
    assert main(["engine", "build", str(folder)]) == 3
    assert "There is no ONNX graph" in capsys.readouterr().err


def test_a_release_yaml_that_cannot_be_edited_keeps_the_plan_beside_it(
    here: FakeCudaLibrary, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.dumps(yaml.safe_load((folder / "release.yaml").read_text())).replace(
        '"envelope":', '"envelope": &e'
    )
    text = document.replace('"provenance": {', '"provenance": {"extra": *e, ', 1)
    (folder / "release.yaml").write_text(text)
    code = main(["engine", "build", str(folder)])
    said = capsys.readouterr().err
    assert code == 3 and ("cannot be written" in said or "cannot be used" in said)
    assert (folder / "release.yaml").read_text() == text and not (folder / "artifact").exists()


def test_a_release_yaml_keeps_its_line_ends_and_who_may_read_it(here: FakeCudaLibrary, folder: Path) -> None:
    document = folder / "release.yaml"
    document.write_bytes(document.read_bytes().replace(b"\n", b"\r\n"))
    document.chmod(0o640)
    assert main(["engine", "build", str(folder)]) == 0
    after = document.read_bytes()
    assert b"trt-plan" in after and after.count(b"\n") == after.count(b"\r\n")
    assert document.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("breaks", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_stops_the_last_step_leaves_no_half_of_it(
    here: FakeCudaLibrary, folder: Path, monkeypatch: pytest.MonkeyPatch, breaks: BaseException
) -> None:
    """Neither a plan whose section is of another, nor a section whose plan is not there, nor a part of a file."""
    (folder / "artifact").mkdir()
    (folder / "artifact" / "model.plan").write_bytes(OLD)
    before, replace = files(folder), Path.replace

    for name in ("release.yaml", "artifact/model.plan"):

        def stopped(self: Path, target: Path, to: Path = folder / name, rest: list[BaseException] = [breaks]) -> Path:  # noqa: B006
            if target == to and rest:
                raise rest.pop()
            return replace(self, target)

        monkeypatch.setattr(Path, "replace", stopped)
        assert main(["engine", "build", str(folder)]) == (130 if isinstance(breaks, KeyboardInterrupt) else 3)
        after = files(folder)
        assert after.pop("model.plan").startswith(b"ftrt") and after == before
        (folder / "model.plan").unlink()


def test_a_graph_that_may_not_be_read_is_refused(
    here: FakeCudaLibrary, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, opened = folder / "model.onnx", Path.open

    def closed(self: Path, *how: Any, **named: Any) -> Any:
        if self == secret:
            raise PermissionError(13, "Permission denied")
        return opened(self, *how, **named)

    monkeypatch.setattr(Path, "open", closed)
    assert main(["engine", "build", str(folder)]) == 3
    assert f"{secret} cannot be read: Permission denied." in capsys.readouterr().err
