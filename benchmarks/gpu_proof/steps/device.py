"""The GPU itself: the product's reader at idle, under load and beside a second process, throttling facts, and recordings for tests."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_proof.outcome import Outcome, Verdict, unknown
from benchmarks.gpu_proof.parts import ROOT
from benchmarks.gpu_proof.scene import Scene
from serving.targets.agent.gpu_reader import GpuReader
from serving.targets.core.gpu import Gpu, GpuReading
from validators.core.gpu_checks import CHECKS, Finding, Watch, Window, checks_of

_BURN_STARTS_S = 60.0
_LOOKS = 50
#: Bits of nvml.h, nvmlClocksEventReason*: the power cap and the slowdowns.
REASONS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
#: By how much the energy counter and the sum of the power readings may differ.
_SAME_ENERGY_FRAC = 0.15


@contextlib.contextmanager
def burning(seconds: float, size: int = 8192) -> Iterator[subprocess.Popen[str]]:
    """A process that multiplies matrices on the GPU, from the moment it has begun. Raises RuntimeError if it does not begin."""
    command = [sys.executable, "-m", "benchmarks.gpu_proof.burn", str(seconds), str(size)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stderr is not None
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"the load did not begin: {process.stderr.read()[-300:]}")
        yield process
    finally:
        process.kill()
        process.communicate()


def _reads(count: int, pause_s: float) -> tuple[list[GpuReading], dict[str, float]]:
    """Readings of the product's reader, and how long one took: p50, p99 and the first, in ms."""
    reader, found, took = GpuReader(), [], []
    for _ in range(count):
        began = time.perf_counter()
        found.append(reader.read())
        took.append((time.perf_counter() - began) * 1000)
        time.sleep(pause_s)
    reader.close()
    times = {
        "p50_ms": float(np.quantile(took[1:], 0.5)),
        "p99_ms": float(np.quantile(took[1:], 0.99)),
        "first_ms": took[0],
    }
    return found, {name: round(value, 3) for name, value in times.items()}


def _first(readings: Sequence[GpuReading]) -> list[Gpu]:
    """The first GPU of each reading."""
    return [reading.gpus[0] for reading in readings if reading.gpus]


def reader_idle(scene: Scene) -> Outcome:
    """Which of the gpu gate's checks the card answers: their findings on readings at idle, by name."""
    readings, times = _reads(_LOOKS, 0.02)
    gpus = _first(readings)
    assert gpus, f"the reader found no GPU: {readings[-1].unknown}"
    last = gpus[-1]
    window = Window("load", readings[1].at_s, readings[-2].at_s)
    watch = Watch(1, readings[0].at_s, (window,), readings=readings, is_read=True)
    checks = {one.name: [str(one.finding), one.sentence] for one in checks_of(watch, last.uuid, _policy(), None)}
    # `alone` and `memory` are about a release, which is not here.
    unanswered = [
        name for name, (finding, _) in checks.items() if finding == Finding.UNKNOWN and name not in ("alone", "memory")
    ]
    numbers = {"reading": times, "checks": checks, "unknown": dict(last.unknown), "last": readings[-1].as_json()}
    sentence = (
        f"A reading of {last.name} took {times['p50_ms']:.1f} ms (p99 {times['p99_ms']:.1f} ms). Of {len(CHECKS)} checks the card leaves "
        f"{len(unanswered)} without an answer{': ' + ', '.join(unanswered) if unanswered else ''}; "
        f"{len(last.unknown)} questions have none: {', '.join(sorted(last.unknown)) or 'none'}."
    )
    needed = (last.power_w, last.sm_clock_mhz, last.memory_total_bytes)
    return Outcome(Verdict.PROVED, sentence, numbers) if None not in needed else unknown(sentence, **numbers)


def _policy() -> dict[str, Any]:
    return {"alone": True, "max_power_capped_frac": None}


def reader_load(scene: Scene) -> Outcome:
    """Busy share, power, energy and processes while one process computes, and while two do."""
    idle = _first(_reads(5, 0.1)[0])
    seconds = scene.seconds(6, 3)
    with burning(4 * seconds) as one:
        time.sleep(1)
        alone, times = _reads(int(seconds / 0.2), 0.2)
        with burning(2 * seconds, 2048) as two:
            beside, _ = _reads(int(seconds / 0.4), 0.2)
        pids = [one.pid, two.pid]
    busy, last = _first(alone), _first(beside)[-1]
    listed = [process.pid for process in last.processes or ()]
    power = [np.median([gpu.power_w or 0.0 for gpu in gpus]).item() for gpus in (idle, busy)]
    energy_j = (busy[-1].energy_j or 0.0) - (busy[0].energy_j or 0.0)
    numbers = {"reading": times, "power_w": power, "energy_j": energy_j, "busy_frac": busy[-1].busy_frac, "pids": pids, "listed": listed,
               "clocks_mhz": [gpu.sm_clock_mhz for gpu in busy], "in_pid_namespace": _pid_namespace()}  # fmt: skip
    sentence = (
        f"Under load the reader read {busy[-1].busy_frac} busy, {power[1]:.0f} W instead of {power[0]:.0f} W and {energy_j:.0f} J more; "
        f"with two processes {pids} it listed {listed}."
    )
    if not (busy[-1].busy_frac and power[1] > power[0] and energy_j > 0):
        return Outcome(Verdict.REFUTED, sentence, numbers)
    if not set(pids) <= set(listed):
        return unknown(f"{sentence} The driver's process ids are not those of this process's namespace.", **numbers)
    return Outcome(Verdict.PROVED, sentence, numbers)


def _pid_namespace() -> str:
    return os.readlink("/proc/self/ns/pid")


def throttling(scene: Scene) -> Outcome:
    """20 s of products of 8192³ in bf16. The energy counter must agree with the power readings."""
    seconds = scene.seconds(20, 10)
    with burning(seconds + 5) as process:
        readings, _ = _reads(int(seconds / 0.25), 0.25)
        process.wait(60)
        assert process.stdout is not None
        burnt = json.loads(process.stdout.read() or "{}")
    gpus, at = _first(readings), [one.at_s for one in readings if one.gpus]
    power = [gpu.power_w for gpu in gpus if gpu.power_w is not None]
    reasons = {word: sum(bool((gpu.clock_event_reasons or 0) & bit) for gpu in gpus) for bit, word in REASONS.items()}
    by_counter = (gpus[-1].energy_j or 0) - (gpus[0].energy_j or 0)
    by_power = (
        float(np.trapezoid([gpu.power_w or 0 for gpu in gpus], at)) if hasattr(np, "trapezoid") else _area(gpus, at)
    )
    capped = [gpu.power_capped_s for gpu in (gpus[0], gpus[-1])]
    numbers = {
        "load": burnt, "seconds": at[-1] - at[0], "energy_counter_j": by_counter, "energy_of_power_j": by_power, "power_w": power,
        "power_limit_w": gpus[-1].power_limit_w, "clocks_mhz": [gpu.sm_clock_mhz for gpu in gpus], "reasons": reasons,
        "power_capped_s": capped, "thermal_throttled_s": [gpu.thermal_throttled_s for gpu in (gpus[0], gpus[-1])],
        "temperature_c": [gpu.temperature_c for gpu in gpus],
    }  # fmt: skip
    shares = ", ".join(f"{word} in {count} of {len(gpus)}" for word, count in reasons.items() if count) or "none"
    sentence = (
        f"{burnt.get('tflops', 0):.0f} TFLOP/s in bf16; the energy counter grew by {by_counter:.0f} J, the power readings make "
        f"{by_power:.0f} J; clock event reasons: {shares}."
    )
    if not by_counter or not by_power:
        return unknown(f"{sentence} Power or energy is not known.", **numbers)
    is_same = abs(by_counter - by_power) <= _SAME_ENERGY_FRAC * by_counter
    return Outcome(Verdict.PROVED if is_same else Verdict.REFUTED, sentence, numbers)


def _area(gpus: Sequence[Gpu], at: Sequence[float]) -> float:
    pairs = zip(gpus[:-1], gpus[1:], at[:-1], at[1:], strict=True)
    return sum((end - begin) * ((one.power_w or 0) + (other.power_w or 0)) / 2 for one, other, begin, end in pairs)


def recordings(scene: Scene) -> Outcome:
    """Recordings at idle and under load, each replayed under the reader. Tests replay them from tests/recordings/nvml."""
    from tests.support.fakes import nvml

    folder, seconds = scene.config.out.parent / f"{scene.config.out.stem}-recordings", int(scene.seconds(6, 3))
    idle = nvml.record(max(2, seconds))
    with burning(seconds + 10):
        time.sleep(1)
        loaded = nvml.record(max(2, seconds))
    numbers = {
        name: write_recording(folder / f"{name}.json", frames) for name, frames in (("idle", idle), ("load", loaded))
    }
    replayed = ", ".join(f"{name}.json ({one['frames']} frames)" for name, one in numbers.items())
    return Outcome(
        Verdict.PROVED, f"Recorded and replayed {replayed} in {folder.name}.", {**numbers, "folder": str(folder)}
    )


def write_recording(path: Path, frames: list[dict[str, Any]]) -> dict[str, Any]:
    """Writes the recording, replays it from the file, and asserts that each frame has a reading with a GPU and the recorded name."""
    from tests.support.fakes import nvml

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"says": "Recorded on a real GPU.", "frames": frames}, indent=1) + "\n")
    library = nvml.RecordedLibrary(json.loads(path.read_text())["frames"])
    with nvml._under_pynvml(library):
        reader, readings = GpuReader(), []
        for at, _ in enumerate(library.frames):
            library.at = at
            readings.append(reader.read())
        reader.close()
    names = {gpu.name for reading in readings for gpu in reading.gpus}
    assert all(reading.gpus for reading in readings), f"a replayed frame has no GPU: {readings[-1].unknown}"
    assert all(names), f"a replayed GPU has no name: {names}"
    return {"frames": len(frames), "names": sorted(map(str, names)), "bytes": path.stat().st_size}


def cuda_adapter(scene: Scene) -> Outcome:
    """The product's CUDA adapter names the GPU, its compute capability and its driver."""
    from serving.targets.adapters.cuda import Cuda

    cuda = Cuda()
    assert cuda.name and cuda.driver, "the driver names no GPU, or not itself"
    numbers = {"name": cuda.name, "compute_capability": cuda.compute_capability, "driver": cuda.driver}
    return Outcome(Verdict.PROVED, f"It is {cuda.name} ({cuda.compute_capability}), driver {cuda.driver}.", numbers)
