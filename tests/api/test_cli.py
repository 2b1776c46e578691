"""The command line against the real API, in process: push, verify, fetch, diff, waive, and that mistakes are told."""

# ruff: noqa: F811 - fixtures are named as they are used

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.utils import timezone

import registry.tasks  # noqa: F401 - registers the handlers of its jobs
from accounts.core.access import Actor
from registry.models import Release, ServedModel
from serving.traffic.actions.routes import set_route
from sluicegate.cli import exits, gates, session
from sluicegate.cli.main import main
from sluicegate.cli.model import proof_lines
from sluicegate.client import Client
from tests.api.cli_world import GRAPH, IMAGE, Run, model, model_file, release_folder, run, tokens  # noqa: F401  # fixtures
from tests.support.worlds.alarm_setup import burning
from tests.support.worlds.factories import make_environment, make_node, make_release, make_replica, make_server
from tests.support.worlds.model_files import onnx_file
from tests.support.worlds.rollout_setup import TOLD, proven_on, put, report_for, serves, started
from validators.models import GoldenSet

pytestmark = [pytest.mark.django_db, pytest.mark.slow]  # whole commands, one request after another


def test_who_am_i_not(run: Run, tokens: dict[str, str]) -> None:
    tokens["nobody"] = "sg_wrong"
    code, told = run("nobody", "model", "list")
    assert (code, told["status"]) == (exits.REFUSED, 401)


def test_runtimes_on_offer_have_the_states_of_their_server_and_backends(run: Run) -> None:
    make_node(runtimes=[{"image": IMAGE, "server": "acme", "backends": ["python"], "versions": {}}])
    code, (runtime,) = run("ada", "runtimes")
    assert code == exits.OK and runtime["image"] == IMAGE
    assert runtime["states"] == {"server": "never run", "backends": {"python": "never run"}}
    _, text = run("ada", "runtimes", plain=True)
    assert "\tacme (never run)\tpython (never run)\t" in text


def test_push_seals_and_the_same_bytes_are_the_same_release(run: Run, model: None, tmp_path: Path) -> None:
    folder = release_folder(tmp_path / "one")
    code, sealed = run("robot", "push", str(folder))
    assert code == exits.OK
    assert (sealed["name"], sealed["state"]) == ("r1", "sealed")
    assert run("robot", "push", str(folder))[1]["digest"] == sealed["digest"]
    assert run("ada", "release", "list", "sentiment")[1][0]["name"] == "r1"
    assert Release.objects.count() == 1


def test_what_was_pushed_verifies_and_is_fetched_byte_by_byte(run: Run, model: None, tmp_path: Path) -> None:
    folder = release_folder(tmp_path / "one", graph=onnx_file(bytes(range(256)) * 9000))
    run("robot", "push", str(folder))
    code, verified = run("ada", "release", "verify", "sentiment/r1")
    assert (code, verified["ok"]) == (exits.OK, True)
    code, _ = run("ada", "release", "fetch", "sentiment/r1", str(tmp_path / "copy"))
    assert code == exits.OK
    for path in ("artifact/model.onnx", "tokenizer/tokenizer.json"):
        assert (tmp_path / "copy" / path).read_bytes() == (folder / path).read_bytes()
    assert run("ada", "release", "fetch", "sentiment/r1", str(tmp_path / "copy"))[0] == exits.REFUSED


def test_a_damaged_blob_is_found_by_verify_and_not_kept_by_fetch(run: Run, model: None, tmp_path: Path) -> None:
    run("robot", "push", str(release_folder(tmp_path / "one", graph=GRAPH)))
    stored = next(p for p in (tmp_path / "blobs").rglob("*") if p.is_file() and p.read_bytes() == GRAPH)
    stored.chmod(0o600)
    stored.write_bytes(b"graph two")
    code, verified = run("ada", "release", "verify", "sentiment/r1")
    assert code == exits.FAILED
    assert "artifact/model.onnx" in verified["wrong"][0]
    assert run("ada", "release", "fetch", "sentiment/r1", str(tmp_path / "copy"))[0] == exits.FAILED
    assert not list((tmp_path / "copy").rglob("model.onnx*"))


def test_diff_tells_files_from_configuration(run: Run, model: None, tmp_path: Path) -> None:
    run("robot", "push", str(release_folder(tmp_path / "one")))
    run(
        "robot",
        "push",
        str(release_folder(tmp_path / "two", graph=onnx_file("graph two"), provenance={"notes": "int8"})),
    )
    code, told = run("ada", "release", "diff", "sentiment/r1", "sentiment/r2")
    assert code == exits.OK
    assert [(c["part"], c["field"], c["kind"]) for c in told["changes"]] == [
        ("files", "artifact/model.onnx", "changed"),
        ("provenance", "notes", "added"),
    ]


def test_a_golden_set_is_checked_before_it_is_added(run: Run, model: None, tmp_path: Path) -> None:
    rows = [
        {"id": f"i{at}", "inputs": {"text": "x"}, "expected": {"probabilities": [0.5, 0.5]}, "slice": "ab"[at % 2]}
        for at in range(60)
    ]
    file = tmp_path / "golden.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    code, told = run("ada", "model", "golden", "sentiment", str(file), "--check")
    assert (code, told["kind"], told["compare"]) == (0, "tensors", "largest_relative_error")
    assert not GoldenSet.objects.exists()
    lines = proof_lines(told)
    assert lines[0] == (
        "60 examples of the kind tensors, compared by largest_relative_error, right within 0.005. Nothing was added."
    )
    assert lines[2].startswith("all  60 rows  against stable ") and lines[3].startswith(
        "slice a  30 rows  against stable "
    )
    caught = told["slices"][0]["caught"]
    assert f"{caught['against_stable']:.1%}  without one {caught['without_stable']:.1%}" in lines[3]
    assert "none" in proof_lines({**told, "caught": {"against_stable": None, "without_stable": None}})[2]
    file.write_text("{")
    assert run("ada", "model", "golden", "sentiment", str(file), "--check")[0] == exits.REFUSED
    file.write_text("\n".join(map(json.dumps, rows)))
    code, added = run("ada", "model", "golden", "sentiment", str(file))
    assert (code, added["items"], added["digest"]) == (0, 60, GoldenSet.objects.get().digest)


def test_a_wrong_release_yaml_names_every_mistake_and_leaves_nothing(run: Run, model: None, tmp_path: Path) -> None:
    folder = release_folder(
        tmp_path / "one", runtime={"image": "triton:24.01", "backend": "sluicegate-onnx"}, wishes={}
    )
    code, told = run("robot", "push", str(folder))
    assert code == exits.REFUSED
    assert {e["field"] for e in told["errors"]} >= {"runtime.image", "wishes"}
    assert all(e["fix"] for e in told["errors"])
    assert not Release.objects.exists()


@pytest.mark.parametrize(
    ("graph", "says"),
    [
        (b"not really a graph", "cannot be an ONNX graph"),
        (onnx_file(outputs=[("logits", "FP32", [-1, 2])]), "no output 'probabilities'"),
    ],
)
def test_a_file_that_lies_is_refused_before_anything_is_sent(
    run: Run, model: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graph: bytes, says: str
) -> None:
    real = Client.post

    def only_the_check(self: Client, path: str, *arguments: Any, **named: Any) -> Any:
        assert path.endswith("/releases:check"), path
        return real(self, path, *arguments, **named)

    monkeypatch.setattr(Client, "post", only_the_check)
    code, told = run("robot", "push", str(release_folder(tmp_path / "one", graph=graph)))
    assert code == exits.REFUSED and says in told["errors"][0]["message"] and told["errors"][0]["fix"]


def test_code_is_waived_by_a_release_manager_and_nobody_else(run: Run, model: None, tmp_path: Path) -> None:
    run("robot", "push", str(release_folder(tmp_path / "one", code=True)))
    for user in ("robot", "ada"):
        assert run(user, "waive", "sentiment/r1", "--reason", "It is fine.")[0] == exits.REFUSED
    code, granted = run("mara", "waive", "sentiment/r1", "--reason", "The code was read.")
    assert (code, granted["granted_by"]) == (exits.OK, "mara")


def test_the_log_of_events_is_verified_by_an_administrator(run: Run, model: None) -> None:
    code, chain = run("admin", "audit", "verify")
    assert (code, chain["is_whole"]) == (exits.OK, True)
    assert run("ada", "audit", "verify")[0] == exits.REFUSED


def test_an_administrator_makes_a_robot_that_can_push(
    run: Run, model: None, tokens: dict[str, str], tmp_path: Path
) -> None:
    made = run("admin", "api", "POST", "/users", "username=robot2", 'roles:=[{"team": "demo", "role": "ci"}]')
    assert made[0] == exits.OK
    assert run("ada", "token", "create", "--user", "robot2")[0] == exits.REFUSED
    tokens["robot2"] = run("admin", "token", "create", "--user", "robot2")[1]["token"]
    assert run("robot2", "push", str(release_folder(tmp_path / "one")))[0] == exits.OK


def test_what_is_not_there_is_refused(run: Run, model: None) -> None:
    assert run("ada", "release", "show", "sentiment/r9")[0] == exits.REFUSED
    assert run("ada", "model", "show", "absent")[0] == exits.REFUSED
    assert ServedModel.objects.count() == 1


def test_no_server_is_an_infrastructure_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicegate.client.connection.READ_PAUSE_S", 0)
    monkeypatch.setattr(session, "Client", Client)
    monkeypatch.setenv("SLUICEGATE_TOKEN", "sg_any")
    assert main(["model", "list", "--server", "http://127.0.0.1:9", "--json"]) == exits.INFRASTRUCTURE


@pytest.mark.parametrize(
    ("url", "token"),
    [("http://[::1", "sg_any"), ("http://a\u1f4a5\ufffd b:x", "sg_any"), ("http://127.0.0.1:9", "sg_ä")],
)
def test_an_address_or_a_token_that_is_none_is_refused(
    url: str, token: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICEGATE_TOKEN", token)
    assert main(["model", "list", "--server", url, "--json"]) == exits.REFUSED
    assert json.loads(capsys.readouterr().out)["next_step"]


@pytest.mark.parametrize(("error", "code"), [(KeyError("plan_digest"), exits.INFRASTRUCTURE), (BrokenPipeError(), 141)])
def test_what_breaks_a_command_says_nothing_of_a_release(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 would: CI takes it for a gate that failed."""

    def connect(_: str | None) -> Client:
        raise error

    monkeypatch.setattr("sluicegate.cli.model.connect", connect)
    monkeypatch.setattr("sluicegate.cli.main.os.dup2", lambda *_: None)
    assert main(["model", "list"]) == code
    assert ("another version" in capfd.readouterr().err) is (code == exits.INFRASTRUCTURE)


def test_gates_take_over_what_holds_still(
    run: Run, model: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("robot", "push", str(release_folder(tmp_path / "one")))
    release = Release.objects.get()
    runtime = json.loads(release.manifest)["runtime"]
    make_environment("staging", is_routed=False)
    offers = {"image": runtime["image"], "server": "triton", "backends": [runtime["backend"]], "versions": {}}
    report = proven_on(make_node(facts=TOLD, runtimes=[offers]), release, "contract")
    started = run("robot", "gates", "sentiment/r1", "--only-expired")[1]
    assert {one["gate"]: one["reused_from"] for one in started["gates"]}["contract"] == report.digest
    line = gates.gate_line(started["gates"][0])
    assert line == f"  ✓ contract: passed. Fine. Measured {timezone.now():%Y-%m-%d}, taken over."


def test_what_the_gates_demand_is_told_and_nothing_is_run(
    run: Run, model: None, capsys: pytest.CaptureFixture[str]
) -> None:
    told = run("robot", "gates", "sentiment", "--explain")[1]
    assert {one["gate"] for one in told["demands"]} >= {"contract", "cold_start", "load"}
    assert main(["gates", "sentiment/r7", "--explain"]) == exits.OK
    out = capsys.readouterr().out
    assert "cold_start.max_s: Ready within" in out and "  certifies: " in out
    lines = gates.demand_lines([{"field": "x", "demands": "D.", "certifies": "C.", "least_s": 8.0, "most_s": 8.0}])
    assert list(lines) == ["x: D. (8 s)", "  certifies: C."]


def test_lists_and_pages_of_releases_tell_what_the_gates_found(
    run: Run, model: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("robot", "push", str(release_folder(tmp_path / "one")))
    assert run("ada", "release", "list", "sentiment")[1][0]["gates"] == "not run"
    assert run("ada", "model", "show", "sentiment")[1]["newest_releases"][0]["gates"] == "not run"
    assert main(["release", "list", "sentiment"]) == exits.OK
    assert capsys.readouterr().out.splitlines()[0].split("\t")[:3] == ["release", "state", "gates"]
    release = Release.objects.get()
    report_for(release, "failed")
    run("ada", "model", "list")
    for words in (
        ["release", "list", "sentiment"],
        ["release", "show", "sentiment/r1"],
        ["model", "show", "sentiment"],
    ):
        assert main(words) == exits.OK
        assert "failed" in capsys.readouterr().out, words


def test_the_gpu_memory_is_estimated_before_the_push_and_after_it(run: Run, tmp_path: Path) -> None:
    """Weights of 1024 × 1024 × 4 bytes: 4 MiB, by the same estimate from the folder and from the sealed release."""
    run("ada", "model", "create", str(model_file(tmp_path)))
    folder = release_folder(tmp_path / "r1", graph=onnx_file(weights=[("w", "FP32", [1024, 1024])]))
    assert run("ada", "check", str(folder))[1]["gpu_memory_estimate"] is None
    document = yaml.safe_load((folder / "release.yaml").read_text())
    document["serving"]["instance_group"] = [{"kind": "gpu", "count": 1}]
    document["envelope"] = {"accelerator": {"vendor": "nvidia"}}
    (folder / "release.yaml").write_text(yaml.safe_dump(document))
    code, told = run("ada", "check", str(folder))
    assert code == exits.OK and told["gpu_memory_estimate"]["parts"][0]["mib"] == 4
    make_node("a", facts={"gpus": ["NVIDIA L4"]})
    assert run("ada", "push", str(folder))[0] == exits.OK
    fits = run("ada", "api", "GET", "/models/sentiment/releases/r1/fit")[1]["results"]
    assert fits[0]["gpu_memory_estimate"] == told["gpu_memory_estimate"]
    for words in (["check", str(folder)], ["release", "show", "sentiment/r1"]):
        lines = run("ada", *words, plain=True)[1].splitlines()
        lines = [line.strip() for line in lines]
        assert (
            "GPU memory, an estimate before the run: about 5 MiB on each device, without its unknown parts" in lines
        ), words
        assert "weights 4 MiB: tensors in the ONNX graph and its external data" in lines
        assert any(line.startswith("runtime unknown: the CUDA context") for line in lines)


def test_a_model_without_a_server_is_shown_as_lost(run: Run, model: None) -> None:
    assert run("ada", "model", "show", "sentiment", plain=True)[1].splitlines().count("serves nowhere") == 1
    release, production = make_release(ServedModel.objects.get()), make_environment("production")
    set_route(
        actor=Actor.system("engine"), environment=production, model=release.model, stable=release, fence=0, reason="a test"
    )  # fmt: skip
    told = run("ada", "model", "show", "sentiment", plain=True)[1]
    assert "production: r1; lost, 0 of 0 servers answer" in told

    node = make_node(seen_at=timezone.now() + timedelta(hours=1))  # reports, however slow this machine is
    make_server(make_replica(release, production, state="ready"))
    assert run("ada", "model", "show", "sentiment")[1]["serves"]["production"]["health"] == {
        "state": "healthy", "answering": 1, "wanted": 1, "silent_nodes": [],
    }  # fmt: skip
    told = run("ada", "environment", "show", "production", plain=True)[1]
    assert "  sentiment: r1; healthy, 1 of 1 servers answer" in told
    alarm = burning(release.model)
    code, told, *_ = run("ada", "model", "show", "sentiment", plain=True)
    assert code == exits.OK and f"alarm {alarm.pk} in production, page, open: 48 of 1200 errors of r1" in told

    type(node).objects.update(seen_at=timezone.now() - timedelta(minutes=5))
    told = run("ada", "model", "show", "sentiment", plain=True)[1]
    assert f"production: r1; lost, 0 of 1 servers answer; no report from {node.name}" in told


def test_where_a_release_was_rolled_back_is_listed_and_shown(run: Run, model: None, tmp_path: Path) -> None:
    run("robot", "push", str(release_folder(tmp_path / "one")))
    release = Release.objects.get(number=1)
    assert run("ada", "release", "show", "sentiment/r1")[1]["rolled_back"] == []
    serves(make_release(release.model))
    put(started(candidate=release), "rolled_back", weight_bp=0, reason="Errors.")
    shown = run("ada", "release", "show", "sentiment/r1")[1]
    assert [one["why"] for one in shown["rolled_back"]] == ["Errors."]
    assert run("ada", "release", "list", "sentiment")[1][1]["rolled_back"][0]["environment"] == "production"
