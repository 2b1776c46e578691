"""The GPU steps of the proof on recordings and fakes, so that a GPU machine runs no line for the first time but the driver's own."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu_proof.outcome import Step, Verdict, attempt
from benchmarks.gpu_proof.scene import Config, Meter, Scene
from benchmarks.gpu_proof.steps import clean, device, pair, xid
from serving.targets.adapters import cuda
from serving.targets.core.gpu import Gpu, GpuReading
from tests.support.fakes import nvml
from tests.support.fakes.cuda import FakeCudaLibrary
from validators.core.gpu_checks import Finding


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(Config(tmp_path, tmp_path, "gpu", "torch", True, 0.5, tmp_path / "report.json"))
    yield made
    made.close()


def outcome_of(run: Any, scene: Scene) -> Any:
    return attempt(Step("s", "a claim", "one", run), scene)


@contextlib.contextmanager
def advancing(name: str, processes: list[int] | None = None) -> Iterator[nvml.RecordedLibrary]:
    """The recording, a frame further with each power reading; the last frame stays. `processes`: pids that compute on the GPU."""
    frames = nvml.recording(name)
    if processes is not None:
        for frame in frames:
            listed = [{"pid": pid, "usedGpuMemory": 1 << 30} for pid in processes]
            frame["0"]["nvmlDeviceGetComputeRunningProcesses_v3"] = listed
    library = nvml.RecordedLibrary(frames)
    own = library._answer

    def answer(call: str, *arguments: Any) -> int:
        if call == "nvmlDeviceGetPowerUsage":
            library.at = min(library.at + 1, len(library.frames) - 1)
        return own(call, *arguments)

    library._answer = answer  # type: ignore[method-assign]
    with nvml._under_pynvml(library), pytest.MonkeyPatch.context() as patch:
        patch.setattr("pynvml.nvmlInit", lambda: library._nvmlInitWithFlags(0))
        yield library


class Burning:
    """In the place of the process that multiplies matrices."""

    def __init__(self, pid: int) -> None:
        self.pid, self.stdout = pid, SimpleNamespace(read=lambda: json.dumps({"tflops": 600.0}))

    def wait(self, timeout: float) -> None: ...


@pytest.fixture
def burning(monkeypatch: pytest.MonkeyPatch) -> None:
    pids = iter((4242, 4243))
    monkeypatch.setattr(device, "burning", lambda seconds, size=0: contextlib.nullcontext(Burning(next(pids))))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


def test_the_reader_at_idle_names_what_the_card_does_not_answer(scene: Scene) -> None:
    with advancing("well"):
        found = outcome_of(device.reader_idle, scene)
    assert found.verdict == Verdict.PROVED and "NVIDIA H100" in found.sentence, found.sentence
    assert set(found.numbers["checks"]) == set(device.CHECKS) and found.numbers["unknown"] == {
        "retired_pages_pending": "Not Supported"
    }
    with advancing("unsupported"):
        found = outcome_of(device.reader_idle, scene)
    assert found.verdict == Verdict.UNKNOWN and "without an answer: " in found.sentence


@pytest.mark.parametrize(
    ("listed", "verdict"), [([4242, 4243], Verdict.PROVED), ([4242], Verdict.UNKNOWN), ([17, 18], Verdict.UNKNOWN)]
)
@pytest.mark.usefixtures("burning")
def test_a_second_process_must_be_listed_by_its_id(scene: Scene, listed: list[int], verdict: Verdict) -> None:
    with advancing("well", listed) as library:
        library.frames *= 4  # idle comes first, and reads five of them
        for at, frame in enumerate(library.frames):
            grown = {"nvmlDeviceGetPowerUsage": 100_000 + 1000 * at, "nvmlDeviceGetTotalEnergyConsumption": 1000 * at}
            library.frames[at] = {**frame, "0": {**frame["0"], **grown}}
        found = outcome_of(device.reader_load, scene)
    assert found.verdict == verdict, found.sentence


@pytest.mark.parametrize(("watts", "verdict"), [(500, Verdict.PROVED), (900, Verdict.REFUTED)])
def test_energy_must_agree_with_power(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, watts: float, verdict: Verdict
) -> None:
    """The energy counter of a card that takes 500 W."""
    monkeypatch.setattr(device, "burning", lambda seconds, size=0: contextlib.nullcontext(Burning(1)))
    readings = [GpuReading(100.0 + at, (Gpu("GPU-a", power_w=watts, energy_j=500.0 * at),)) for at in range(20)]
    monkeypatch.setattr(device, "_reads", lambda count, pause_s: (readings, {}))
    found = outcome_of(device.throttling, scene)
    assert found.verdict == verdict, found.sentence
    assert "600 TFLOP/s" in found.sentence and found.numbers["energy_counter_j"] == 9500


@pytest.mark.usefixtures("burning")
def test_recordings_lie_beside_the_report(scene: Scene) -> None:
    with advancing("well"):
        found = outcome_of(device.recordings, scene)
    assert found.verdict == Verdict.PROVED, found.sentence
    folder = scene.config.out.parent / "report-recordings"
    assert sorted(path.name for path in folder.iterdir()) == ["idle.json", "load.json"]


def test_a_load_without_torch_names_the_reason() -> None:
    if importlib.util.find_spec("torch"):
        pytest.skip("torch is installed")
    with pytest.raises(RuntimeError, match=r"did not begin: [\s\S]*torch"), device.burning(0.1, 8):
        pass


def test_the_cuda_adapter_names_the_gpu(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "load_library", FakeCudaLibrary)
    monkeypatch.setattr(cuda.Cuda, "driver", "550.54.15")
    found = outcome_of(device.cuda_adapter, scene)
    assert found.verdict == Verdict.PROVED, found.sentence


@pytest.mark.parametrize(
    ("name", "verdict"), [("xid_31", Verdict.UNKNOWN), ("xid_79", Verdict.REFUTED), ("well", Verdict.UNKNOWN)]
)
def test_an_xid_is_heard_and_blamed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, verdict: Verdict
) -> None:
    """With a compiler that makes a script; its process is not in the recordings, so that Xid 31 has no culprit."""
    compiler = tmp_path / "nvcc"
    script = "open(sys.argv[2], 'w').write('#!/bin/sh\\necho fault'); os.chmod(sys.argv[2], 0o755)"
    compiler.write_text(f"#!{sys.executable}\nimport os, sys\n{script}\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(xid, "nvcc", lambda: str(compiler))
    monkeypatch.setattr(xid, "_LISTENS_S", 3)
    with advancing(name):
        found = outcome_of(xid.xid, scene)
    assert found.verdict == verdict, found.sentence
    assert "'fault'" in found.sentence


def test_a_meter_gives_each_process_to_its_server(scene: Scene) -> None:
    with advancing("well", [os.getpid(), 4242]):
        meter = Meter(os.getpid(), has_gpu=True)
        deadline = time.monotonic() + 30
        while len(meter.readings) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        meter.close()
    assert {one.use.gpu_memory_bytes for one in meter.readings} == {1 << 30}
    served: Any = SimpleNamespace(meter=meter)
    window = [meter.gpu_readings[0].at_s, meter.gpu_readings[-1].at_s]
    assert pair._alone(served, window) == Finding.PERF_INVALID
    assert all(meter.device_memory(meter.readings[1:]))


def test_device_memory_is_read_or_unknown() -> None:
    with advancing("well"):
        used = clean.device_memory_mib()
    assert used and used[0] > 0
