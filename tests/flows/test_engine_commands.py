"""`sluicegate engine` from the command to the files, on a fake TensorRT whose engine is ONNX Runtime."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from registry.core.spec import read_spec
from serving.adapters import tensorrt
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


def fault(monkeypatch: pytest.MonkeyPatch, spoil: Any) -> None:
    from tests.support.fakes import tensorrt as fake

    monkeypatch.setattr(fake, "fault", spoil)


def test_a_plan_that_passes_is_put_into_the_folder_with_what_it_was_built_for(
    here: FakeCudaLibrary, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(folder)
    code, found = told(capsys, "build", folder)
    assert (code, found["verdict"], found["plan"]) == (0, "passed", str(folder / "artifact" / "model.plan"))
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
        "compared": True,
        "optimization_profiles": [{"input": "x", "min": [1, INPUTS], "opt": [4, INPUTS], "max": [8, INPUTS]}],
    }
    assert [path for path, _ in read_folder(folder).files] == ["artifact/model.plan"], "the graph beside it is not sent"
    [output] = found["outputs"]
    assert output["elements"] == (4 + 4 + 3 * 8) * OUTPUTS and output["largest_absolute"] < 1e-5


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


def test_people_read_the_numbers_and_the_verdict_last(
    here: FakeCudaLibrary, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["engine", "build", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Building with TensorRT 10.3.0 for NVIDIA L4; this takes minutes."
    assert lines[1] == "x: 1×8 to 8×8, tuned for 4×8"
    assert lines[2].startswith("8 requests on NVIDIA L4 (compute capability 8.9), held against ONNX Runtime ")
    assert lines[3].startswith("passed y FP32: largest difference ")
    assert "(0.005 allowed: rounding of FP32), 0 of 512 elements beyond it, cosine 1.0000000" in lines[3]
    assert lines[-1] == "passed: The plan answers 8 requests as the graph does."


def test_a_plan_that_fails_replaces_nothing_and_is_not_sent(
    here: FakeCudaLibrary, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "artifact").mkdir()
    (folder / "artifact" / "model.plan").write_bytes(OLD)
    before = files(folder)
    fault(monkeypatch, lambda name, answer: answer * 1.05)
    code, found = told(capsys, "build", folder)
    assert (code, found["verdict"], found["plan"]) == (1, "failed", str(folder / "model.plan"))
    assert {path: data for path, data in files(folder).items() if path != "model.plan"} == before
    assert [path for path, _ in read_folder(folder).files] == ["artifact/model.plan"]
    fault(monkeypatch, lambda name, answer: answer)
    code, found = told(capsys, "compare", folder, "--plan", folder / "model.plan")
    assert (code, found["verdict"]) == (0, "passed"), "and it can be compared again"


@pytest.mark.parametrize(
    ("spoil", "code", "says"),
    [
        (lambda name, y: y[::-1] if len(y) == 8 else y, 1, "elements are beyond"),
        (lambda name, y: np.where(np.arange(len(y))[:, None] == 3, y * 1.1, y), 1, "elements are beyond"),
        (lambda name, y: np.full_like(y, np.nan), 1, "not finite"),
        (lambda name, y: np.zeros_like(y), 1, "elements are beyond"),
    ],
    ids=["rows in another order", "one row of a batch", "no numbers", "zeros"],
)
def test_faults_of_a_plan_are_found(
    here: FakeCudaLibrary,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    spoil: Any,
    code: int,
    says: str,
) -> None:
    fault(monkeypatch, spoil)
    got, found = told(capsys, "build", folder)
    assert got == code and says in found["reason"]


def test_a_graph_that_answers_everything_alike_is_unknown_and_changes_nothing(
    here: FakeCudaLibrary, folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    examples = tmp_path / "examples.jsonl"
    examples.write_text((json.dumps({"id": "a", "inputs": {"x": [0.5] * INPUTS}, "label": 1}) + "\n") * 3)
    document = (folder / "release.yaml").read_text()
    code, found = told(capsys, "build", folder, "--examples", examples)
    assert (code, found["verdict"]) == (2, "unknown") and "prove nothing" in found["reason"]
    assert (folder / "release.yaml").read_text() == document and not (folder / "artifact").exists()


def test_examples_are_what_is_asked(
    here: FakeCudaLibrary, folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    examples = tmp_path / "examples.jsonl"
    items = np.random.default_rng(1).normal(0, 1, (3, INPUTS)).tolist()
    examples.write_text("\n\n".join(json.dumps({"inputs": {"x": item}}) for item in items))
    code, found = told(capsys, "build", folder, "--examples", examples)
    assert code == 0 and found["requests"][:4] == [
        "item 1 alone, of the examples",
        "item 2 alone, of the examples",
        "item 3 alone, of the examples",
        "a batch of 4, of the examples",
    ]


@pytest.mark.parametrize("line", ["no json", '{"inputs": {"x": [1, 2]}}', '{"inputs": {"z": 1}}', "[]", "{}"])
def test_an_example_that_cannot_be_used_is_named_by_its_line(
    here: FakeCudaLibrary, folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str
) -> None:
    examples = tmp_path / "examples.jsonl"
    examples.write_text(json.dumps({"inputs": {"x": [1.0] * INPUTS}}) + f"\n{line}\n")
    assert main(["engine", "compare", str(folder), "--plan", str(examples), "--examples", str(examples)]) == 3
    assert "examples.jsonl, line 2: " in capsys.readouterr().err


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


def test_a_graph_that_only_tensorrt_reads_cannot_be_compared(
    here: FakeCudaLibrary, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no such operator\nhere")

    monkeypatch.setattr("onnxruntime.InferenceSession", refused)
    code, found = told(capsys, "build", folder)
    assert (code, found["verdict"]) == (2, "unknown") and "cannot load model.onnx: no such operator here" in found[
        "reason"
    ]
    assert "model.plan" not in files(folder), "minutes of building would have been for nothing"


@pytest.mark.parametrize(
    ("fails", "says"),
    [("build", "built no plan"), ("load", "does not load the plan"), ("execute", "did not run the request")],
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
    here.broken["cuStreamSynchronize"] = 700
    code, found = told(capsys, "build", folder)
    assert (code, found["verdict"]) == (2, "unknown") and "cuStreamSynchronize failed" in found["reason"]
    here.broken = {"cuInit": 100}
    assert told(capsys, "build", folder)[0] == 2


def test_people_are_told_where_a_built_plan_lies_and_nothing_of_where_a_compared_one_goes(
    here: FakeCudaLibrary, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["engine", "build", str(folder)]) == 0
    assert f"The plan is {folder / 'artifact' / 'model.plan'}." in capsys.readouterr().out.splitlines()
    fault(monkeypatch, lambda name, answer: answer * 1.05)
    assert main(["engine", "compare", str(folder)]) == 1
    assert "push" not in capsys.readouterr().out, "this one would be sent"
    assert main(["engine", "build", str(folder)]) == 1
    assert f"The plan is {folder / 'model.plan'}, which push does not send." in capsys.readouterr().out.splitlines()


def test_a_plan_that_takes_less_than_declared_fails(
    here: FakeCudaLibrary, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["engine", "build", str(folder)]) == 0
    capsys.readouterr()
    write(folder, {"serving.max_batch_size": 16})
    code, found = told(capsys, "compare", folder)
    assert (code, found["verdict"]) == (1, "failed") and "does not take x of the shape [16, 8]" in found["reason"]


@pytest.mark.parametrize("verb", ["build", "compare"])
def test_without_tensorrt_it_is_unknown_and_nothing_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    (folder / "artifact").mkdir()
    (folder / "artifact" / "model.plan").write_bytes(plan_file())
    monkeypatch.setattr(tensorrt, "find_spec", lambda name: None)
    before = files(folder)
    assert main(["engine", verb, str(folder)]) == 2
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
    assert main(["engine", "compare", str(folder)]) == 3
    assert "There is no plan" in capsys.readouterr().err
    assert main(["engine", "build", str(folder), "--within", "2"]) == 3
    assert "is no tolerance" in capsys.readouterr().err
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


@pytest.mark.parametrize("words", [("--seed", "-1"), ("--examples", "no such file")])
def test_what_cannot_be_asked_is_refused_before_the_long_work(
    here: FakeCudaLibrary, folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, str]
) -> None:
    before = files(folder)
    assert main(["engine", "build", str(folder), *words]) == 3
    captured = capsys.readouterr()
    assert words[1] in captured.err and "Building" not in captured.out + captured.err
    assert files(folder) == before


def test_files_that_may_not_be_read_say_nothing_of_what_is_in_them(
    here: FakeCudaLibrary, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, opened = folder / "other.plan", Path.open
    plan.write_bytes(plan_file())
    for secret, verb in ((plan, "compare"), (folder / "model.onnx", "build")):

        def closed(self: Path, *how: Any, it: Path = secret, **named: Any) -> Any:
            if self == it:
                raise PermissionError(13, "Permission denied")
            return opened(self, *how, **named)

        monkeypatch.setattr(Path, "open", closed)
        more = ["--plan", str(plan)] if verb == "compare" else []
        assert main(["engine", verb, str(folder), *more]) == 3
        assert f"{secret} cannot be read: Permission denied." in capsys.readouterr().err
