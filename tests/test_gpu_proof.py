"""The GPU proof without servers: verdicts, exit codes, report, watchdog, imports and archive. `.ci/run` has the servers."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_proof import cli, pack, parts
from benchmarks.gpu_proof.judged import judged
from benchmarks.gpu_proof.outcome import Outcome, Refuted, Step, Verdict, attempt, unknown
from benchmarks.gpu_proof.report import Report
from benchmarks.gpu_proof.steps import MAIN
from benchmarks.gpu_proof.steps.clean import left_of
from benchmarks.gpu_proof.steps.device import write_recording
from benchmarks.gpu_proof.watchdog import run_all
from tests.support.fakes.nvml import RecordedLibrary, record, recording, replayed
from validators.core.verdict import Judgement
from validators.core.verdict import Verdict as Gate

ROOT = Path(__file__).resolve().parents[1]
#: Not on the GPU machine.
NOT_THERE = [
    "django",
    "psycopg",
    "celery",
    "rest_framework",
    "redis",
    "boto3",
    "httpx",
    "yaml",
    "onnx",
    "onnxruntime",
    "tokenizers",
]


def step(name: str, run: Any = None, **more: Any) -> Step:
    return Step(name, f"claim of {name}", more.pop("stage", "one"), run, **more)


def gate(verdict: Gate) -> Judgement:
    return Judgement(verdict, f"it was {verdict}.")


@pytest.mark.parametrize(
    ("good", "bad", "verdict"),
    [
        (Gate.PASSED, Gate.FAILED, Verdict.PROVED),
        (Gate.FAILED, Gate.FAILED, Verdict.REFUTED),
        (Gate.PASSED, Gate.PASSED, Verdict.REFUTED),
        (Gate.PASSED, Gate.UNDECIDED, Verdict.UNKNOWN),
        (Gate.UNDECIDED, Gate.FAILED, Verdict.UNKNOWN),
        (Gate.ERRORED, Gate.FAILED, Verdict.UNKNOWN),
        (Gate.SKIPPED, Gate.SKIPPED, Verdict.UNKNOWN),
    ],
)
def test_a_gate_is_proved_only_if_it_tells_a_good_release_from_its_bad_twin(
    good: Gate, bad: Gate, verdict: Verdict
) -> None:
    assert judged(gate(good), gate(bad), twin="a fault").verdict == verdict


def test_an_assertion_refutes_and_any_other_exception_leaves_unknown() -> None:
    def raising(error: BaseException) -> Any:
        def run(scene: Any) -> Outcome:
            raise error

        return run

    found = [attempt(step("s", raising(one)), None) for one in (AssertionError("no"), Refuted("no"), OSError("disk"))]  # type: ignore[arg-type]
    assert [one.verdict for one in found] == [Verdict.REFUTED, Verdict.REFUTED, Verdict.UNKNOWN]
    assert [one.sentence for one in found] == ["AssertionError: no", "Refuted: no", "OSError: disk"]


# --- the report and the exit codes ------------------------------------------------------------------------------------


def report_at(path: Path) -> Report:
    return Report(path, part="main", device="cpu", form="numpy", machine={"card": None}, revision=None)


def test_the_report_is_whole_after_every_step(tmp_path: Path) -> None:
    report = report_at(tmp_path / "r.json")
    for count, verdict in enumerate(Verdict, 1):
        report.add(step(f"s{count}"), Outcome(verdict, "a sentence", {"n": count}, 1.5))
        found = json.loads(report.path.read_text())
        assert found["ended_at"] is None and len(found["steps"]) == count
        assert found["steps"][-1]["verdict"] == verdict and found["steps"][-1]["numbers"] == {"n": count}
        assert report.is_refuted == (Verdict.REFUTED in [one["verdict"] for one in found["steps"]])
    report.end()
    found = json.loads(report.path.read_text())
    assert {"schema", "device", "machine", "ended_at", "steps"} <= set(found) and found["ended_at"]
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def proved_by(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *verdicts: Verdict, require: str = "") -> int:
    left = list(verdicts)

    def run_all(steps: Any, given: Any, record: Any, **more: Any) -> None:
        for one in steps[: len(left)]:
            record(one, Outcome(left.pop(0), "a sentence"))

    monkeypatch.setattr("benchmarks.gpu_proof.watchdog.run_all", run_all)
    monkeypatch.setattr(cli, "why_missing", lambda names, venv: {})
    required = ["--require", require] if require else []
    return cli.main(["--cpu", "--out", str(tmp_path / "r.json"), *required])


def test_a_required_step_that_is_not_proved_is_no_success(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (step.name for step in MAIN[:2])
    assert proved_by(monkeypatch, tmp_path, Verdict.PROVED, Verdict.UNKNOWN, require=first) == cli.OK
    assert proved_by(monkeypatch, tmp_path, Verdict.PROVED, Verdict.UNKNOWN, require=second) == cli.REFUTED
    assert f"Required, and not proved: {second}." in capsys.readouterr().err


def test_what_cannot_be_proved_or_written_is_told_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.gpu_proof.watchdog.run_all", lambda *given, **more: pytest.fail("it ran"))
    assert (
        cli.main(["--cpu", "--serving-venv", str(tmp_path / "none"), "--out", str(tmp_path / "r.json")]) == cli.MISSING
    )
    assert capsys.readouterr().err.startswith("missing: triton: ")
    monkeypatch.setattr(cli, "why_missing", lambda names, venv: {})
    (tmp_path / "file").touch()
    for out in (tmp_path, tmp_path / "file" / "r.json"):
        assert cli.main(["--cpu", "--out", str(out)]) == cli.MISSING
        said = capsys.readouterr().err
        assert said.startswith(f"The report cannot be written to {out}: ") and "Name another file with --out." in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]
    for scale in ("-3", "0", "nan", "much"):
        with pytest.raises(SystemExit):
            cli.main(["--cpu", "--seconds-scale", scale, "--out", str(tmp_path / "r.json")])


def test_the_exit_code_is_1_only_if_a_step_is_refuted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert proved_by(monkeypatch, tmp_path, Verdict.PROVED, Verdict.UNKNOWN) == cli.OK
    assert proved_by(monkeypatch, tmp_path, Verdict.PROVED, Verdict.REFUTED, Verdict.UNKNOWN) == cli.REFUTED


def test_without_a_gpu_it_lists_the_missing_parts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = {"gpu": "no driver", "torch": "No module named 'torch'", "triton": ""}
    monkeypatch.setattr(cli, "why_missing", lambda names, venv: {one: absent[one] for one in names if absent.get(one)})
    assert cli.main(["--out", str(tmp_path / "r.json")]) == cli.MISSING
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1].strip() for line in lines] == ["gpu", "torch"]
    assert all("It comes with" in line for line in lines) and not (tmp_path / "r.json").exists()


def test_this_machine_is_asked_for_its_parts() -> None:
    found = parts.why_missing(list(parts.PARTS), ROOT / "nowhere")
    assert "modules" not in found and "There is no serving environment" in found["triton"]


def test_the_rollout_through_envoy_is_never_called_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--part", "rollout"]) == cli.MISSING
    assert "never run" in capsys.readouterr().err


def test_a_step_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--cpu", "--only", "nonsense", "--out", str(tmp_path / "r.json")])
    assert ended.value.code == 2


# --- the watchdog -----------------------------------------------------------------------------------------------------

#: Does as the names of its steps say.
CHILD = """
import json, os, sys, time
for name in json.load(sys.stdin)["steps"]:
    if name.startswith("hangs"): time.sleep(600)
    if name.startswith("dies"): sys.exit("it died of it")
    print(json.dumps({"name": name, "verdict": "proved", "sentence": str(os.getpid()), "numbers": {"n": 1}, "seconds": 0.1}), flush=True)
"""


def told_of(steps: list[Step], *, missing: dict[str, str] | None = None, lasts_s: float = 600) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    given: dict[str, Any] = {"config": {"earlier": {}}}
    until_s = time.monotonic() + lasts_s
    run_all(
        steps,
        given,
        lambda one, outcome: found.setdefault(one.name, outcome),  # type: ignore[arg-type,return-value]
        until_s=until_s,
        missing=missing or {},
        child=[sys.executable, "-c", CHILD],
    )
    proved = {name for name, one in found.items() if one.verdict == Verdict.PROVED}
    assert given["config"]["earlier"].keys() == proved, "later steps get the numbers of earlier ones"
    return found


def test_steps_of_a_stage_share_a_process_and_other_stages_have_their_own() -> None:
    found = told_of([step("a"), step("b"), step("c", stage="two")])
    pids = [one.sentence for one in found.values()]
    assert pids[0] == pids[1] != pids[2]


def test_a_step_that_hangs_or_dies_costs_itself_only() -> None:
    found = told_of([step("a"), step("hangs", budget_s=1.0), step("b"), step("dies"), step("c")])
    assert [one.verdict for one in found.values()] == ["proved", "unknown", "proved", "unknown", "proved"]
    assert "did not end within 1 s" in found["hangs"].sentence
    assert "ended. it died of it" in found["dies"].sentence


def test_the_part_ends_in_time_and_names_every_step() -> None:
    found = told_of([step("hangs"), step("a"), step("b", stage="two")], lasts_s=1.0)
    assert list(found) == ["hangs", "a", "b"]
    assert {one.verdict for one in found.values()} == {Verdict.UNKNOWN}
    assert "time of the part was over" in found["b"].sentence


def test_a_step_without_its_part_is_unknown_with_the_reason() -> None:
    found = told_of([step("a", needs=("gpu",)), step("b")], missing={"gpu": "no driver"})
    assert found["a"] == unknown("Not run, because a part is missing: gpu: no driver.")
    assert found["b"].verdict == Verdict.PROVED


# --- the steps ---------------------------------------------------------------------------------------------------------


def test_every_step_has_its_own_name_and_needs_known_parts() -> None:
    names = [one.name for one in MAIN]
    assert len(set(names)) == len(names) and MAIN[-1].name == "clean_end"
    assert {need for one in MAIN for need in one.needs} <= {*parts.PARTS, "form"}
    on_gpu = [one.name for one in MAIN if "gpu" in one.needs]
    assert {"reader_idle", "recordings", "throttling", "cuda_adapter", "xid", "gpu_gate"} == {*on_gpu} - {"reader_load"}


def test_the_proof_imports_nothing_that_a_gpu_machine_lacks() -> None:
    program = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {NOT_THERE!r}:
            raise ImportError(name)
sys.meta_path.insert(0, Absent())
import benchmarks.gpu_proof.child, benchmarks.gpu_proof.cli, benchmarks.gpu_proof.machine, benchmarks.gpu_proof.report
import tests.support.fakes.nvml, serving.targets.adapters.cuda, validators.execution.runners.generator
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_the_parts_that_start_it_need_the_standard_library_alone() -> None:
    program = (
        "import sys; sys.path = [p for p in sys.path if 'site-packages' not in p]; import benchmarks.gpu_proof.cli"
    )
    done = subprocess.run([sys.executable, "-S", "-c", program], cwd=ROOT, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_a_recording_that_it_writes_is_replayed_as_it_was_read(tmp_path: Path) -> None:
    """`tests/contracts/test_nvml.py` plays every recording in its folder."""
    from serving.targets.agent.gpu_reader import GpuReader

    frames = record(1, RecordedLibrary(recording("well")))
    found = write_recording(tmp_path / "card.json", frames)
    assert found["frames"] == 1 and found["names"] == ["NVIDIA H100 80GB HBM3"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.support.fakes.nvml.RECORDINGS", tmp_path)
        with replayed("card"):
            (again,) = GpuReader(now=lambda: 100.0).read().gpus
    with replayed("well"):
        (once,) = GpuReader(now=lambda: 100.0).read().gpus
    assert again == once


def test_what_servers_leave_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "servers" / "dense-r1-1-89abcdef"
    folder.mkdir(parents=True)
    (tmp_path / "started.jsonl").write_text(json.dumps({"folder": str(folder), "pid": 1}) + "\n")
    region = Path("/dev/shm/sg89abcdef_test")
    region.write_bytes(b"x")
    try:
        assert left_of(tmp_path) == {"processes": [], "shared_memory": [region.name], "folders": [folder.name]}
    finally:
        region.unlink()


# --- the archive ------------------------------------------------------------------------------------------------------


def test_the_archive_is_pinned_by_the_projects_own_locks() -> None:
    for lock, names in pack.PACKAGES.items():
        for name in names:
            entry = pack._locked(ROOT / lock, [name])
            assert entry.startswith(f"{name}==") and "--hash=sha256:" in entry and "#" not in entry


def test_only_the_right_python_unpacks_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "PYTHON", "3.1")
    assert cli.main(["--cpu", "--pack", str(tmp_path / "p.tar.xz")]) == cli.MISSING
    (tmp_path / "p.tar.xz").touch()
    assert pack.run_in(tmp_path / "p.tar.xz", []) == cli.MISSING
    refusals = capsys.readouterr().err.splitlines()
    assert "there is no" in refusals[0] and "is for Python 3.1," in refusals[1]


def test_it_runs_in_the_environment_that_it_unpacks(tmp_path: Path) -> None:
    """With a module in the place of Triton: the environment's own packages come first, the machine's after them."""
    (tmp_path / "site-packages" / "numpy").mkdir(parents=True)
    (tmp_path / "site-packages" / "numpy" / "__init__.py").write_text("")
    with tarfile.open(tmp_path / "p.tar.xz", "w:xz") as archive:
        archive.add(tmp_path / "site-packages", "site-packages")
    home = pack.unpack(tmp_path / "p.tar.xz", tmp_path)
    program = "import numpy, grpc, sys; print(numpy.__file__, sys.prefix)"
    said = subprocess.run(
        [str(home / "bin" / "python"), "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert Path(said[0]).is_relative_to(home) and Path(said[1]) == home


def test_the_built_archive_has_its_members_and_is_small_enough() -> None:
    built = ROOT / ".build" / "gpu-pack.tar.xz"
    if not built.exists():
        pytest.skip("`make gpu-pack` was not run")
    with tarfile.open(built) as archive:
        names = set(archive.getnames())
    assert {f"site-packages/{name}" for name in pack.MEMBERS} <= names
    assert not [name for name in names if "libpython3" in name or "/tests/" in name]
    assert built.stat().st_size <= pack.MOST_BYTES
