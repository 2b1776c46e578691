"""The benchmarks as a whole: which ones `make bench` runs, and that their load ends by the clock."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks import batching

ROOT = Path(__file__).resolve().parents[2]


def test_make_bench_runs_whatever_can_be_run_and_nothing_else() -> None:
    argv = ["make", "-s", "bench", "PYTHON=true", "PY=echo RUN", "ARGS=--more"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=150)
    ran = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("RUN ")]
    started = {path for path in (ROOT / "benchmarks").rglob("*.py") if 'if __name__ == "__main__"' in path.read_text()}
    # parts of the GPU proof are processes of their own; the proof itself needs a GPU, or is asked for --cpu
    scripts = {path for path in started if path.parent.name != "gpu_proof"}
    assert {ROOT / script for script, *_ in ran} == scripts
    assert all(more == ["--more"] for _, *more in ran)
    assert ROOT / "benchmarks" / "calibration" / "premises" / "__main__.py" in scripts
    assert ROOT / "benchmarks" / "load_generator.py" not in scripts


def test_a_closed_loop_never_runs_out_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        now = 0.0

        def perf_counter(self) -> float:
            self.now += 0.01
            return self.now

    asked: list[str] = []
    monkeypatch.setattr(batching, "time", Clock())
    monkeypatch.setattr(batching, "texts", lambda count: ["a", "b"])
    assert batching.closed_loop(asked.append, clients=1, seconds=0.1) == len(asked) >= 9
    assert asked[:4] == ["a", "b", "a", "b"]
