"""The command line's parts that ask no server: names, exit codes, folders, comparisons, problems in words."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from sluicegate.cli import diff, exits, gates, preview, session
from sluicegate.cli.errors import Problem, exit_code_of
from sluicegate.cli.main import main
from sluicegate.cli.output import Output
from sluicegate.cli.rollout import status_line
from sluicegate.client.errors import Mistake
from sluicegate.client.folder import hash_files, read_document, read_folder
from sluicegate.client.names import BadName, model_path, release_of, release_path


@pytest.mark.parametrize(
    ("status", "code"),
    [
        *((status, 0) for status in (200, 201, 204)),
        *((status, 3) for status in (400, 401, 403, 404, 409, 412, 413, 422, 428)),
        *((status, 2) for status in (408, 429, 500, 502, 503)),
    ],
)
def test_every_status_has_its_exit_code(status: int, code: int) -> None:
    assert exits.of_status(status) == code


def test_verdicts_and_ends_of_rollouts_have_exit_codes() -> None:
    verdicts = {v: exits.of_verdict(v) for v in ("passed", "failed", "undecided", "skipped", "errored")}
    assert verdicts == {"passed": 0, "failed": 1, "undecided": 1, "skipped": 1, "errored": 2}
    plans = {v: exits.of_build(v) for v in ("built", "failed", "unknown", "anything else")}
    assert plans == {"built": 0, "failed": 1, "unknown": 2, "anything else": 2}
    ends = {
        s: exits.of_rollout(s)
        for s in ("promoted", "reverted", "rolled_back", "stuck", "cancelled", "superseded", "rejected")
    }
    assert ends == {
        "promoted": 0,
        "reverted": 1,
        "rolled_back": 1,
        "stuck": 1,
        "cancelled": 1,
        "superseded": 1,
        "rejected": 3,
    }


def test_releases_are_named_model_slash_number() -> None:
    assert release_of("sentiment/r2") == ("sentiment", "r2")
    assert release_of("sentiment/2") == ("sentiment", "r2")
    assert release_path("a-b_c/r14") == "/models/a-b_c/releases/r14"


@pytest.mark.parametrize(
    "name", ["sentiment", "sentiment/latest", "sentiment/r0", "../r1", "a/b/r1", "sentiment/r1/x", ""]
)
def test_what_does_not_name_a_release_is_refused_with_the_right_form(name: str) -> None:
    with pytest.raises(BadName) as refused:
        release_of(name)
    assert exit_code_of(refused.value) == exits.REFUSED
    assert "sentiment/r2" in refused.value.next_step


def write_folder(root: Path) -> Path:
    folder = root / "r1"
    (folder / "artifact" / "deep").mkdir(parents=True)
    (folder / "tokenizer").mkdir()
    (folder / "release.yaml").write_text("model: sentiment\n")
    (folder / "artifact" / "model.onnx").write_bytes(b"graph")
    (folder / "artifact" / "deep" / "data.json").write_bytes(b"{}")
    (folder / "tokenizer" / "tokenizer.json").write_bytes(b"[]")
    (folder / "notes.txt").write_text("is not sent")
    return folder


def mistakes(folder: Path) -> list[tuple[str, str]]:
    return [(one.file, one.problem.message) for one in read_folder(folder).problems]


def test_a_folder_is_read_and_hashed_in_a_fixed_order(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    files = hash_files(read_folder(write_folder(tmp_path)).files, lambda done, total, note: seen.append((done, total)))
    assert [f.path for f in files] == ["artifact/deep/data.json", "artifact/model.onnx", "tokenizer/tokenizer.json"]
    assert files[1].as_json() == {
        "path": "artifact/model.onnx",
        "sha256": hashlib.sha256(b"graph").hexdigest(),
        "size_bytes": 5,
    }
    assert seen[-1] == (9, 9)


@pytest.mark.parametrize("place", ["artifact/link", "artifact/deep/link", "tokenizer/link"])
def test_symbolic_links_are_refused_wherever_they_are(tmp_path: Path, place: str) -> None:
    folder = write_folder(tmp_path)
    (folder / place).symlink_to("/etc/hostname")
    assert mistakes(folder) == [(place, "it is a link; releases hold bytes, not pointers.")]


def test_a_linked_part_is_refused_too(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "tokenizer" / "tokenizer.json").unlink()
    (folder / "tokenizer").rmdir()
    (folder / "tokenizer").symlink_to(folder / "artifact")
    assert [file for file, _ in mistakes(folder)] == ["tokenizer"]


def test_a_config_that_comes_along_is_sent_too(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "config.pbtxt").write_text("max_batch_size: 9\n")
    assert [path for path, _ in read_folder(folder).files][-3:] == [
        "artifact/model.onnx", "config.pbtxt", "tokenizer/tokenizer.json",
    ]  # fmt: skip
    (folder / "config.pbtxt").unlink()
    (folder / "config.pbtxt").symlink_to("/etc/hostname")
    assert [file for file, _ in mistakes(folder)] == ["config.pbtxt"]


def test_a_folder_of_another_name_is_not_left_behind(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / ".git").mkdir()
    assert mistakes(folder) == []
    (folder / "tokeniser").mkdir()
    assert mistakes(folder) == [("tokeniser/", "it is neither artifact/ nor tokenizer/, and would not be sent.")]


def test_a_field_that_is_written_twice_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "release.yaml").write_text("model: a\nserving: {max_batch_size: 1, max_batch_size: 2}\n")
    with pytest.raises(Mistake, match="line 2.*'max_batch_size' occurs twice"):
        read_document(folder)


@pytest.mark.parametrize("name", ["../../me", "..", "a/b", "a?b", "a#b"])
def test_a_models_name_is_one_part_of_its_address(name: str) -> None:
    rest = model_path(name).removeprefix("/models/")
    assert not set(rest) & set("/?#.")


def test_a_folder_without_its_parts_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(Mistake, match=r"no release\.yaml"):
        read_document(tmp_path / "empty")
    assert mistakes(tmp_path / "empty") == [("release.yaml", "there is no release.yaml.")]
    with pytest.raises(Mistake, match="is not a folder"):
        read_document(tmp_path / "absent")


def test_a_broken_release_yaml_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "release.yaml").write_text("model: a\n  serving: [\n")
    with pytest.raises(Mistake, match="line 2"):
        read_document(tmp_path)
    (tmp_path / "release.yaml").write_text("- a list\n")
    with pytest.raises(Mistake, match="mapping"):
        read_document(tmp_path)


def told(**parts: Any) -> dict[str, Any]:
    """A diff as the server answers it."""
    side = {"model": "sentiment", "digest": f"sha256:{'0' * 64}", "report": None, "verdict": None}
    return {
        "old": {**side, "name": "r1"}, "new": {**side, "name": "r2"}, "is_same": False, "changes": [], "changes_left_off": 0,
        "tensors": [], "unread": {}, "coupled": {"parts": [], "warning": ""}, "tokenizers": {}, "gates": [], "metrics": [],
        "agreement": None, **parts,
    }  # fmt: skip


def change(part: str, field: str, kind: str, old: Any, new: Any) -> dict[str, Any]:
    return {"part": part, "field": field, "kind": kind, "old": old, "new": new}


def test_equal_releases_are_said_to_be() -> None:
    assert diff.lines(told(is_same=True)) == ["sentiment/r1 and sentiment/r2 are the same bytes."]


def test_a_diff_names_files_by_digest_and_fields_by_path() -> None:
    one = {"path": "artifact/model.onnx", "sha256": "a" * 64, "size_bytes": 90_868_376, "role": "artifact"}
    two = {**one, "sha256": "c" * 64, "size_bytes": 23_000_000}
    changes = [
        change("files", "artifact/model.onnx", "changed", one, two),
        change("files", "artifact/b.data", "renamed", {**one, "path": "artifact/a.data"}, one),
        change("files", "tokenizer/vocab.txt", "removed", {**one, "size_bytes": 100}, None),
        change("serving", "inputs[text].dims", "changed", [1], [-1]),
        change("provenance", "notes", "added", None, "x" * 200),
    ]
    assert diff.lines(told(changes=changes)) == [
        f"~ files artifact/model.onnx  {'a' * 12} 86.7 MiB → {'c' * 12} 21.9 MiB",
        "» files artifact/b.data  was artifact/a.data",
        f"- files tokenizer/vocab.txt  {'a' * 12} 100 B",
        "~ serving inputs[text].dims  [1] → [-1]",
        f"+ provenance notes  {'x' * 117}…",
    ]
    many = diff.lines(told(changes=changes[3:4] * 50, changes_left_off=2))
    assert len(many) == 41 and many[-1] == "… and 12 more changes; --json lists them."


def test_a_diff_tells_tensors_tokens_gates_and_the_warning() -> None:
    f32, f16 = {"data_type": "F32", "shape": [2]}, {"data_type": "F16", "shape": [2]}
    tokens = {
        "vocabulary": {"old": 3, "new": 4, "added": 1, "removed": 0, "changed": 0},
        "tokens": {"added": [{"token": "new", "new": {"id": 3}}], "removed": [], "changed": []},
        "fields": [{"field": "normalizer", "old": None, "new": {"type": "Lowercase"}}],
    }
    accuracy = {"value": 0.9, "low": 0.88, "high": 0.92, "n": 1000}
    found = diff.lines(
        told(
            tensors=[{"format": "safetensors", "same": 1, "added": 0, "removed": 0, "changed": 117,
                      "examples": [change("tensors", "w", "changed", f32, f16)]}],
            unread={"artifact/x.onnx": "its header was not read"},
            tokenizers={"tokenizer/tokenizer.json": tokens, "tokenizer/vocab.txt": {"unknown": "The older … is not in the store."}},
            gates=[{"gate": "golden", "old": "passed", "new": None}],
            metrics=[{"gate": "golden", "metric": "accuracy", "unit": "frac", "old": accuracy, "new": None, "says": "only the older …"}],
            agreement={"value": 0.99, "low": 0.98, "high": 1.0, "n": 500},
            coupled={"parts": ["artifact", "tokenizer"], "warning": "r2 changes two."},
        )
    )  # fmt: skip
    assert found == [
        "tensors (safetensors): 117 changed; 1 the same",
        "tensors of artifact/x.onnx are not known: its header was not read.",
        "tokenizer/tokenizer.json: 3 → 4 tokens; 1 added, 0 removed, 0 changed",
        "tokenizer/vocab.txt: The older … is not in the store.",
        "gate golden: passed → not run",
        "  golden accuracy: only the older …",
        "  equal answers: 99.00% (98.00% to 100.00%) of 500",
        "Warning: r2 changes two.",
    ]


def test_a_problem_is_a_sentence_its_fields_and_the_next_step() -> None:
    problem = Problem(
        422,
        {
            "title": "Invalid",
            "detail": "release.yaml has 1 mistake.",
            "code": "invalid_spec",
            "errors": [{"field": "runtime.image", "message": "names a tag.", "fix": "Write the digest."}],
        },
    )
    assert problem.lines() == ["release.yaml has 1 mistake.", "  runtime.image: names a tag. Fix: Write the digest."]
    assert exit_code_of(problem) == exits.REFUSED
    assert problem.as_json()["code"] == "invalid_spec"


@pytest.mark.parametrize("errors", [1, 2])
@pytest.mark.parametrize(
    ("detail", "head"),
    [
        ("The alias has {n}. name: latest is reserved. Choose another.", "The alias has {n}."),
        ("latest is reserved. Choose another.", "latest is reserved. Choose another."),
        ("The request has errors: {all}", "The request has errors:"),
        ("The alias cannot be set.", "The alias cannot be set."),
    ],
)
def test_what_is_wrong_is_said_once(detail: str, head: str, errors: int) -> None:
    found = [
        {"field": "name", "message": "latest is reserved.", "fix": "Choose another."},
        {"field": "release", "message": "r0 is none.", "fix": "Write r1."},
    ][:errors]
    n = "1 mistake" if errors == 1 else "2 mistakes"
    said = detail.format(n=n, all="; ".join(f"{one['field']}: {one['message']}" for one in found))
    lines = Problem(422, {"detail": said, "errors": found}).lines()
    assert "\n".join(lines).count("latest is reserved.") == "\n".join(lines).count("Choose another.") == 1
    assert lines[0].startswith(head.format(n=n))


def test_a_problem_without_words_still_says_what_to_do() -> None:
    assert Problem(401, {}).lines() == [
        "The server answered 401.",
        "Next: Run `sluicegate login`, or set SLUICEGATE_TOKEN.",
    ]
    assert exit_code_of(Problem(502, {})) == exits.INFRASTRUCTURE


def test_wrong_usage_is_refused_not_an_infrastructure_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollout", "start"]) == exits.REFUSED
    assert "RELEASE" in capsys.readouterr().err


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    commands = ["up", "demo", "login", "push", "gates", "rollback", "diagnose", "runtimes", "waive"]
    commands += [
        "model create",
        "release diff",
        "release verify",
        "release fetch",
        "rollout watch",
        "rollout start",
        "rollout approve",
        "rollout promote",
        "audit verify",
        "token create",
    ]
    for command in commands:
        assert main([*command.split(), "--help"]) == exits.OK
        text = capsys.readouterr().out
        assert "--json" in text and "--server" in text, command


def test_without_a_token_the_next_step_is_to_sign_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("SLUICEGATE_TOKEN", "SLUICEGATE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("SLUICEGATE_STATE_DIR", str(tmp_path / "state"))
    assert main(["model", "list"]) == exits.REFUSED
    assert "sluicegate login" in capsys.readouterr().err


def test_tokens_are_kept_by_server_and_for_the_owner_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SLUICEGATE_TOKEN", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("SLUICEGATE_STATE_DIR", str(tmp_path / "state"))
    path = session.save_token("http://a", "sg_a")
    session.save_token("http://b", "sg_b")
    assert path.stat().st_mode & 0o777 == 0o600
    assert (session.find_token("http://a"), session.find_token("http://b"), session.find_token("http://c")) == (
        "sg_a",
        "sg_b",
        "",
    )
    monkeypatch.setenv("SLUICEGATE_TOKEN", "sg_env")
    assert session.find_token("http://a") == "sg_env"


def test_the_local_stacks_token_is_for_the_local_stack_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SLUICEGATE_TOKEN", "SLUICEGATE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("SLUICEGATE_STATE_DIR", str(tmp_path))
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "admin-token").write_text("sg_admin\n")
    (tmp_path / "ports.json").write_text(json.dumps({"web": 23456}))
    assert session.server_url(None) == "http://127.0.0.1:23456"
    assert session.find_token("http://127.0.0.1:23456") == "sg_admin"
    assert session.find_token("http://elsewhere") == ""


def test_progress_in_a_log_is_plain_lines_and_the_end_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with Output().progress("Sending", is_bytes=True) as meter:
        for done in range(0, 101, 10):
            meter(done * 1000, 100_000)
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["Sending: 97.7 KiB of 97.7 KiB"]


def test_a_rollouts_line_says_state_weight_step_and_reason() -> None:
    steps = [{"name": "step 1"}, {"name": "step 2"}, {"name": "bake"}]
    view = {"state": "shifting", "weight_bp": 2500, "step_index": 0, "steps": steps, "reason": "Holding."}
    assert status_line(view) == "shifting  25 %  step 1 of 2. Holding."
    assert status_line({**view, "state": "baking", "weight_bp": 9500}) == "baking  95 %. Holding."
    assert status_line({"state": "preparing", "weight_bp": 0, "step_index": -1, "steps": steps}) == "preparing  0 %."


def test_the_servers_own_next_step_is_not_drowned() -> None:
    assert Problem(409, {"detail": "It has ended. Start a new one."}).lines() == ["It has ended. Start a new one."]
    assert Problem(401, {"detail": "Unknown token."}).lines()[-1].startswith("Next: Run `sluicegate login`")


def test_a_preview_is_told_in_columns_and_its_warnings_with_their_codes() -> None:
    stage = {"name": "start", "weight_bp": 500, "min_s": 180, "min_samples": 300, "deadline_s": 3600, "approvals": 2}
    found = {
        "model": "sentiment", "candidate": "r2", "stable": None, "environment": "production",
        "policy": {"preset": "standard"}, "policy_digest": "sha256:0123456789abcdef",
        "traffic": {"rate_per_s": 12.5, "error_frac": 0.001, "source": "gateways"},
        "stages": [{**stage, "expected_s": 480.0}, {**stage, "name": "bake", "weight_bp": 9500, "expected_s": None}],
        "detect": [
            {"fail_frac": 0.01, "stage": "start", "weight_bp": 500, "seconds": None, "bad_requests": None, "convicted_s": None},
            {"fail_frac": 0.2, "stage": "start", "weight_bp": 500, "seconds": 14.0, "bad_requests": 1.8, "convicted_s": 14.0},
        ],
        "watch": [{"words": "errors", "page_all_s": 125.0, "page_ten_s": 240.0, "ticket_two_s": None, "met_s": 900.0}],
        "total_s": None, "can_start": False,
        "warnings": [{"code": "frozen_now", "level": "refused", "message": "Changes are frozen."}],
    }  # fmt: skip
    assert preview.lines(found) == [
        "sentiment/r2 as the first release in production, policy standard 0123456789ab",
        "Traffic: 12.5 requests/s, 0.1 % errors on stable (gateways).",
        "",
        "stage  weight  at least  samples  deadline  expected  approvals",
        "start  5 %     3 min     300      60 min    8 min     2",
        "bake   95 %    3 min     300      60 min    –         2",
        "",
        "found within  start at 5 %",
        "1 % fail      never",
        "20 % fail     14 s, 2 bad",
        "",
        "after the promotion  page: all fail  page: ten times  ticket: twice  proven to be met",
        "errors               2 min           4 min            never          15 min",
        "",
        "✗ refused frozen_now: Changes are frozen.",
        "Nothing was created, and a start would be refused.",
    ]


def test_what_a_running_gate_does_stands_behind_its_progress() -> None:
    told: list[tuple[int, int, str]] = []
    waiting = {"gate": "load", "verdict": "", "started_at": "2026-01-01T00:00:00Z", "progress_total": 0}
    run: dict[str, Any] = {"gates": [{"gate": "contract", "verdict": "passed", "reason": "It fits."}, waiting]}
    says = {"reason": "waits for gate run 7 of search r2 on n1"}
    for current in (waiting, {**waiting, **says}, {**waiting, **says, "progress_done": 3, "progress_total": 9}):
        run["gates"][1] = current
        gates._say_progress(run, {"contract"}, lambda *args: told.append(args), Output(as_json=True))
    sentence = "waits for gate run 7 of search r2 on n1"
    assert told == [(1, 2, "load"), (1, 2, f"load: {sentence}"), (1, 2, f"load 3/9: {sentence}")]
