"""The table of capabilities: it rests on tests that exist, and the pages show it unchanged."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from registry.core.capabilities import BY_ID, CAPABILITIES, KINDS, State, states_of, table
from sluicegate.cli.main import main
from tests.support.house.capabilities import (
    BEGIN,
    END,
    GPU_REPORT,
    PAGES,
    ROOT,
    Shown,
    claims_of,
    merged,
    of_gpu,
    read,
    summary,
    whole,
    with_table,
)

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
NOTHING: dict[str, Any] = {"tests": {}, "gpu": None}
#: Words of parts that have to be `run` or `run on a GPU` before a page may name them without a link to the table.
WORDS = {
    "builder:tensorrt": "TensorRT",
    "gpu:mig": "MIG",
    "gpu:dcgm": "DCGM",
    "gpu:nvml": "NVML",
    "backend:triton/sluicegate-onnx-cuda": "CUDA",
    "backend:triton/pytorch": "PyTorch|`pytorch`",
    "platform:kubernetes": "Kubernetes",
    "server:tensorflow-serving": "TensorFlow Serving",
    "server:torchserve": "TorchServe",
    "server:bentoml": "BentoML",
    "server:ray-serve": "Ray Serve",
    "server:vllm": "vLLM",
}
#: Pages on which such a word is about something else.
ELSEWHERE = {("identity.md", "Kubernetes"): "a cluster that issues tokens"}


def row_of(evidence: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in table(evidence) if row["id"] == name)


def files_by_claim() -> dict[str, set[str]]:
    """Capability → test files with a mark that names it."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path != Path(__file__) and "mark.shows(" in (text := path.read_text()):
            for name in claims_in(ast.parse(text)):
                found.setdefault(name, set()).add(path.relative_to(ROOT).as_posix())
    return found


def claims_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "shows":
            for argument in node.args:
                assert isinstance(argument, ast.Constant), f"write the ids out: {ast.unparse(node)}"
                yield str(argument.value)


def test_what_is_stated_as_run_has_tests_and_what_has_none_is_not() -> None:
    marked, evidence = files_by_claim(), read()
    assert marked.keys() <= BY_ID.keys()
    assert evidence["tests"].keys() <= BY_ID.keys()
    for name, shown in evidence["tests"].items():
        assert shown["files"].keys() <= marked.get(name, set()), f"{name}: run `make capabilities`"
        assert shown["files"] and min(shown["files"].values()) > 0
    for row in table(evidence):
        assert (row["state"] != State.RUN) or row["id"] in marked


def test_the_evidence_of_the_gpu_proof_is_that_of_its_report() -> None:
    assert read()["gpu"] == of_gpu(GPU_REPORT), "run `python -m tests.support.house.capabilities`"


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_the_pages_have_the_table_as_it_is(page: Path) -> None:
    text = page.read_text()
    assert text == with_table(text, PAGES[page](table(read()))), "run `python -m tests.support.house.capabilities`"


@pytest.mark.parametrize("name", WORDS)
def test_a_page_that_names_what_was_not_run_links_to_the_table(name: str) -> None:
    if row_of(read(), name)["state"] in (State.RUN, State.RUN_ON_GPU):
        return
    pages = {page.name: page.read_text() for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}
    naming = {page for page, text in pages.items() if re.search(rf"(?<![\w/])(?:{WORDS[name]})(?!\w)", text)}
    naming -= {"capabilities.md"} | {page for page, word in ELSEWHERE if word == WORDS[name]}
    assert [page for page in sorted(naming) if "capabilities.md" not in pages[page]] == []


def test_ids_are_unique_and_of_a_known_kind() -> None:
    assert len(BY_ID) == len(CAPABILITIES)
    assert {capability.kind for capability in CAPABILITIES} == set(KINDS)


@pytest.mark.parametrize("capability", CAPABILITIES, ids=list(BY_ID))
def test_without_evidence_nothing_was_run(capability: Any) -> None:
    row = row_of(NOTHING, capability.id)
    assert row["state"] == (State.FROM_DOCUMENTS if capability.has_code else State.NEVER_RUN)
    assert (row["tests"], row["shown_at"], row["version"], row["card"]) == ([], None, None, None)


def outcome(name: str, when: str, outcome: str, path: str = "tests/contracts/test_x.py") -> Any:
    return pytest.TestReport(
        f"{path}::test_it", (path, 1, "test_it"), {}, outcome, None, when, user_properties=[("shows", [name])]
    )


def heard(*reports: Any) -> dict[str, Any]:
    plugin = Shown()
    for report in reports:
        # As a worker sends them: JSON has no tuples.
        data = json.loads(json.dumps({"user_properties": report.user_properties}))
        report.user_properties = data["user_properties"]
        plugin.pytest_runtest_logreport(report)
    return merged(NOTHING, plugin.passed, plugin.failed, now=NOW, version="0.1.0")


def test_a_test_that_passed_shows_its_capability() -> None:
    calls = [outcome("server:kserve", when, "passed") for when in ("setup", "call", "teardown")]
    row = row_of(heard(*calls), "server:kserve")
    assert (row["state"], row["tests"]) == ("run", ["tests/contracts/test_x.py"])
    assert (row["shown_at"], row["version"]) == ("2026-11-26T12:00:00Z", "0.1.0")
    assert heard(*calls)["tests"]["server:kserve"]["files"] == {"tests/contracts/test_x.py": 1}


@pytest.mark.parametrize("when", ["setup", "call", "teardown"])
def test_one_failure_takes_the_state_away(when: str) -> None:
    found = heard(outcome("server:kserve", "call", "passed"), outcome("server:kserve", when, "failed"))
    assert row_of(found, "server:kserve")["state"] == "from documents"
    before = heard(outcome("server:kserve", "call", "passed"))
    assert merged(before, {}, {"server:kserve"}, now=NOW, version="0.1.0") == NOTHING


def test_a_test_that_was_left_out_shows_nothing_and_takes_nothing() -> None:
    assert heard(outcome("server:kserve", "setup", "skipped")) == NOTHING
    before = heard(outcome("server:kserve", "call", "passed"))
    assert merged(before, {}, set(), now=datetime(2027, 1, 1, tzinfo=UTC), version="0.2.0") == before


def test_a_row_that_is_gone_takes_its_evidence_along() -> None:
    before = {**NOTHING, "tests": {"server:gone": {"files": {"a": 1}, "shown_at": "", "version": ""}}}
    assert merged(before, {}, set(), now=NOW, version="0.1.0") == NOTHING


class Item:
    """A test with marks, as far as `claims_of` looks at it."""

    nodeid = "tests/x.py::test_it"

    def __init__(self, *marks: Any) -> None:
        self.marks = marks

    def iter_markers(self, name: str) -> list[Any]:
        return [mark.mark for mark in self.marks if mark.mark.name == name]


def test_a_fake_shows_nothing() -> None:
    shows, real = pytest.mark.shows("server:kserve"), pytest.mark.real("kserve", "envoy")
    assert claims_of(Item(shows, real)) == ["server:kserve"]  # type: ignore[arg-type]
    for marks in ([shows], [shows, pytest.mark.real("triton")]):
        with pytest.raises(pytest.UsageError, match="without the mark real for kserve"):
            claims_of(Item(*marks))  # type: ignore[arg-type]
    with pytest.raises(pytest.UsageError, match="does not list"):
        claims_of(Item(pytest.mark.shows("server:nobody"), real))  # type: ignore[arg-type]
    with pytest.raises(pytest.UsageError, match="a part that the capability has to name first"):
        claims_of(Item(pytest.mark.shows("platform:kubernetes"), real))  # type: ignore[arg-type]


def report(tmp_path: Path, device: str, **verdicts: str) -> Path:
    path = tmp_path / "gpu-proof.json"
    steps = [{"name": name, "verdict": verdict} for name, verdict in verdicts.items()]
    told = {"device": device, "machine": {"card": "NVIDIA L4"}, "ended_at": "2026-11-27T08:00:00Z", "steps": steps}
    path.write_text(json.dumps(told))
    return path


def test_a_gpu_report_raises_the_rows_whose_steps_are_all_proved(tmp_path: Path) -> None:
    evidence = {
        **NOTHING,
        "gpu": of_gpu(
            report(
                tmp_path,
                "gpu",
                reader_idle="proved",
                reader_load="proved",
                launch="proved",
                contract="proved",
                load="unknown",
            )
        ),
    }
    row = row_of(evidence, "gpu:nvml")
    assert (row["state"], row["card"], row["shown_at"]) == ("run on a GPU", "NVIDIA L4", "2026-11-27T08:00:00Z")
    assert row["instead"] == "" and row["version"] is None
    assert row_of(evidence, "server:triton")["state"] == "from documents", "its load was not proved"
    assert "GPU proof on NVIDIA L4, 2026-11-27" in whole(table(evidence))
    assert "| GPU facts and verdicts | NVML | – |" in summary(table(evidence))


@pytest.mark.parametrize("verdict", ["refuted", "unknown"])
def test_a_step_that_was_not_proved_raises_nothing(tmp_path: Path, verdict: str) -> None:
    assert of_gpu(report(tmp_path, "gpu", reader_idle=verdict)) is None


def test_every_step_that_a_row_names_is_one_of_the_proof() -> None:
    proof = pytest.importorskip("benchmarks.gpu_proof.steps")
    assert {step for row in CAPABILITIES for step in row.steps} <= {step.name for step in proof.MAIN}


def test_a_report_of_the_cpu_raises_nothing_and_neither_does_none(tmp_path: Path) -> None:
    assert of_gpu(report(tmp_path, "cpu", reader_idle="proved")) is None
    assert of_gpu(tmp_path / "none.json") is None


def test_tests_that_need_a_gpu_ran_on_one() -> None:
    found = heard(outcome("gpu:nvml", "call", "passed"), outcome("server:triton", "call", "passed"))
    assert row_of(found, "gpu:nvml")["state"] == "run on a GPU"
    assert row_of(found, "server:triton")["state"] == "run"


def test_a_page_has_one_place_for_the_table() -> None:
    assert with_table(f"a\n{BEGIN}\nold\n{END}\nb", "new \\1") == f"a\n{BEGIN}\nnew \\1\n{END}\nb"
    with pytest.raises(ValueError, match="0 places"):
        with_table("a", "new")


def test_what_no_row_names_was_never_run() -> None:
    rows = table(heard(outcome("server:triton", "call", "passed"), outcome("backend:triton/python", "call", "passed")))
    backends = {"python": "run", "tensorrt": "never run", "dali": "never run"}
    assert states_of(rows, "triton", list(backends)) == {"server": "run", "backends": backends}
    assert states_of(rows, "other", ["python"]) == {"server": "never run", "backends": {"python": "never run"}}


def test_the_command_line_prints_the_table_without_a_server(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEGATE_URL", "http://127.0.0.1:9")
    assert main(["runtimes", "--states", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == table(read())
    assert main(["runtimes", "--states"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split("\t") == ["id", "name", "state", "scope"] and len(lines) == len(CAPABILITIES)
    assert "platform:kubernetes\tkubernetes\tnever run\tThe product has no controller for it" in lines
