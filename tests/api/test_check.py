"""`sluicegate check`: with a server, and with less than that: no sign-in, no answer, no such model, no node."""

# ruff: noqa: F811 - fixtures are named as they are used

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from registry.models import Release
from sluicegate.cli import exits, session
from sluicegate.cli.main import main
from sluicegate.client import Client
from sluicegate.client.checks import NEEDS_SERVER
from tests.api.cli_world import IMAGE, Run, model, model_file, release_folder, run, tokens  # noqa: F401 - fixtures
from tests.support.worlds.factories import make_node
from tests.support.worlds.model_files import onnx_file

pytestmark = pytest.mark.django_db
OTHER = onnx_file(outputs=[("logits", "FP32", [-1, 2])])


def test_check_prints_every_mistake_at_its_place_and_sends_nothing(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("ada", "model", "create", str(model_file(tmp_path)))
    folder = release_folder(tmp_path / "r1")
    code, told = run("ada", "check", str(folder))
    assert (code, told["is_fine"], told["problems"]) == (exits.OK, True, [])
    text = (folder / "release.yaml").read_text().replace("max_batch_size: 16", "max_batch_size: x")
    (folder / "release.yaml").write_text(text)
    (folder / "artifact" / "broken.json").write_text("{")
    (folder / "config.pbtxt").write_text("max_batch_size: ,\n")
    for words in (["check", str(folder)], ["push", str(folder), "--check"]):
        code, told = run("ada", *words)
        found = {(one["file"], one["line"], one["field"]) for one in told["problems"]}
        line = text.splitlines().index("  max_batch_size: x") + 1
        assert code == exits.REFUSED
        assert found == {
            ("release.yaml", line, "serving.max_batch_size"), ("artifact/broken.json", None, "artifact/broken.json"),
            ("config.pbtxt", 1, ""),
        }  # fmt: skip
    assert main(["check", str(folder)]) == exits.REFUSED
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith(f"release.yaml:{line}:19: serving.max_batch_size: 'x' is not a whole number.")
    assert printed[-1].endswith("has 3 mistakes; nothing was sent.") and Release.objects.count() == 0


def wrong_folder(tmp_path: Path, **changes: Any) -> Path:
    """A graph without the declared output, and a config.pbtxt that contradicts."""
    folder = release_folder(tmp_path / "wrong", graph=OTHER, **changes)
    (folder / "config.pbtxt").write_text("max_batch_size: 4\n")
    return folder


def messages(told: dict[str, Any]) -> str:
    return " ".join(one["message"] for one in told["problems"])


def test_without_a_sign_in_it_tells_what_this_machine_can(
    run: Run, tokens: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens["nobody"] = ""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    code, told = run("nobody", "check", str(wrong_folder(tmp_path)))
    assert code == exits.REFUSED and "no output 'probabilities'" in messages(told)
    assert "max_batch_size is 4" in messages(told)
    assert set(NEEDS_SERVER) <= set(told["not_checked"]) and "not signed in" in told["not_checked"][-1]
    code, out = run("nobody", "check", str(release_folder(tmp_path / "good")), plain=True)
    assert code == exits.OK and "Not checked: the model's contract and objectives." in out
    assert out.splitlines()[-1].endswith("has no mistake, as far as it was checked.")


def away(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


def stranger(request: httpx.Request) -> httpx.Response:
    return httpx.Response(401, json={"code": "not_authenticated", "detail": "The token has expired."})


@pytest.mark.parametrize(("answers", "says"), [(away, "No answer from"), (stranger, "The token has expired.")])
def test_a_server_that_does_not_answer_hides_no_mistake(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: Callable[..., Any], says: str
) -> None:
    transport = httpx.MockTransport(answers)
    monkeypatch.setattr(session, "Client", functools.partial(Client, transport=transport))
    code, told = run("ada", "check", str(wrong_folder(tmp_path)))
    assert code == exits.REFUSED and "no output 'probabilities'" in messages(told)
    assert set(NEEDS_SERVER) <= set(told["not_checked"]) and says in " ".join(told["not_checked"])


def test_a_model_that_does_not_exist_is_one_mistake_among_others(run: Run, tmp_path: Path) -> None:
    folder = wrong_folder(tmp_path)
    for words in (["check", str(folder)], ["push", str(folder)]):
        code, told = run("ada", *words)
        problems = told["problems"] if "problems" in told else told["errors"]
        assert code == exits.REFUSED and [(one["file"], one["field"]) for one in problems] == [
            ("release.yaml", "model"), ("release.yaml", "serving.outputs[0].name"), ("config.pbtxt", ""),
        ]  # fmt: skip
        assert "there is no model 'sentiment' that you may read" in problems[0]["message"]
        assert problems[0]["line"] is not None and "sluicegate model create" in problems[0]["fix"]


def test_a_release_that_no_node_can_run_is_not_called_fine(run: Run, model: None, tmp_path: Path) -> None:
    folder = release_folder(tmp_path / "r1")
    code, told = run("ada", "check", str(folder))
    assert code == exits.OK and told["runs_nowhere"] == (
        f"No node offers the image {IMAGE} with the backend sluicegate-onnx; the nodes offer nothing."
    )
    make_node("a", runtimes=[{"image": IMAGE, "server": "triton", "backends": ["python"], "versions": {}}])
    last = run("ada", "check", str(folder), plain=True)[1].splitlines()[-1]
    assert "can be pushed, but not run: No node offers" in last and f"the nodes offer {IMAGE} (python)." in last
    offers = {"image": IMAGE, "server": "triton", "backends": ["sluicegate-onnx"], "versions": {}}
    make_node("b", runtimes=[offers], facts={"gpus": []})
    assert run("ada", "check", str(folder), plain=True)[1].splitlines()[-1].endswith("is fine, by the files here.")
    document = yaml.safe_load((folder / "release.yaml").read_text())
    document["serving"]["instance_group"] = [{"kind": "gpu", "count": 1}]
    document["envelope"] = {"accelerator": {"vendor": "nvidia"}}
    (folder / "release.yaml").write_text(yaml.safe_dump(document))
    told = run("ada", "check", str(folder))[1]
    assert told["runs_nowhere"].startswith("It fits no node with its runtime: b: The node has 0 NVIDIA devices")


def test_push_names_what_it_leaves_out(
    run: Run, model: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = release_folder(tmp_path / "r1")
    for path in ("artifact/.DS_Store", "artifact/__pycache__/model.cpython-311.pyc", "tokenizer/.gitkeep"):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(b"x")
    code, told = run("ada", "check", str(folder))
    left_out = ["artifact/.DS_Store", "artifact/__pycache__/", "tokenizer/.gitkeep"]
    assert (code, told["left_out"], told["problems"]) == (exits.OK, left_out, [])
    assert f"Left out: {', '.join(left_out)}." in run("ada", "check", str(folder), plain=True)[1]
    code, sealed = run("robot", "push", str(folder))
    assert code == exits.OK and {one["path"] for one in sealed["files"]} == {
        "artifact/model.onnx",
        "tokenizer/tokenizer.json",
    }
