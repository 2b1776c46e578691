"""The end: no process, no folder, no shared memory and no device memory of the proof is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu_proof.outcome import Outcome, Verdict
from benchmarks.gpu_proof.scene import STARTED, Scene
from serving.targets.agent.gpu_reader import GpuReader

_SHARED = Path("/dev/shm")
_WAIT_S = 15.0
#: Device memory that a driver may keep for itself after its last client.
_DRIVERS_OWN_MIB = 64


def device_memory_mib() -> list[int] | None:
    """Memory in use on each GPU, or None if it cannot be read."""
    reader = GpuReader()
    used = [gpu.memory_used_bytes for gpu in reader.read().gpus if gpu.parent_uuid is None]
    reader.close()
    known = [size >> 20 for size in used if size is not None]
    return known if known and len(known) == len(used) else None


def left_of(work: Path) -> dict[str, Any]:
    """Processes, shared memory and folders that the servers below `work` left behind."""
    processes = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if os.fsencode(work / "servers") in path.read_bytes():
                processes.append(int(path.parent.name))
        except OSError:
            continue
    prefixes = [f"sg{Path(one['folder']).name.rpartition('-')[2]}_" for one in started(work)]
    shared = [path.name for prefix in prefixes for path in _SHARED.glob(f"{prefix}*")]
    folders = [path.name for path in (work / "servers").glob("*")]
    return {"processes": processes, "shared_memory": shared, "folders": folders}


def started(work: Path) -> list[dict[str, Any]]:
    file = work / STARTED
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def clean_end(scene: Scene) -> Outcome:
    """Shows first that the look finds a process, a region and a folder that are there."""
    work, baseline = scene.config.work, scene.config.baseline
    seen = _look_works(work)
    assert all(seen.values()), f"the look does not find what is there: {seen}"
    deadline = time.monotonic() + _WAIT_S
    while any((left := left_of(work)).values()) and time.monotonic() < deadline:
        time.sleep(0.1)
    used, before = device_memory_mib(), baseline.get("device_memory_mib")
    grown = [now - was for now, was in zip(used, before, strict=False)] if used and before else []
    numbers = {
        "servers": len(started(work)),
        "left": left,
        "device_memory_mib": used,
        "device_memory_before_mib": before,
    }
    is_clean = not any(left.values()) and all(more <= _DRIVERS_OWN_MIB for more in grown)
    on_gpu = f", {max(grown)} MiB more on the GPU than before" if grown else ""
    names = ", ".join(f"{len(of)} {name.replace('_', ' ')}" for name, of in left.items())
    sentence = f"After {len(started(work))} servers there are left: {names}{on_gpu}."
    if scene.is_gpu and not grown:
        return Outcome(Verdict.UNKNOWN, f"{sentence} Device memory could not be read.", numbers)
    return Outcome(Verdict.PROVED if is_clean else Verdict.REFUTED, sentence, numbers)


def _look_works(work: Path) -> dict[str, list[Any]]:
    folder = work / "servers" / "left-r1-1-0123abcd"
    folder.mkdir(parents=True)
    with (work / STARTED).open("a") as file:
        file.write(json.dumps({"folder": str(folder), "pid": 0}) + "\n")
    region = _SHARED / "sg0123abcd_look"
    process = subprocess.Popen([sys.executable, "-c", "input()", str(folder)], stdin=subprocess.PIPE)
    try:
        region.write_bytes(b"x")
        time.sleep(0.2)
        return left_of(work)
    finally:
        process.kill()
        process.wait()
        region.unlink(missing_ok=True)
        folder.rmdir()
        known = started(work)[:-1]
        (work / STARTED).write_text("".join(json.dumps(one) + "\n" for one in known))
