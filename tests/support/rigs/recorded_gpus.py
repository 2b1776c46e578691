"""`manage.py` on a machine whose GPUs answer from a recording: `python -m tests.support.rigs.recorded_gpus RECORDING TOLD agent …`.

TOLD is a file, looked at before each reading: `{"frame": 2, "pid": 4711}` says which frame answers, and by which number the recorded
process is known here.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from django.core.management import execute_from_command_line

from serving.targets.agent.gpu_reader import GpuReader
from serving.targets.core.gpu import GpuReading
from tests.support.fakes.nvml import RecordedLibrary, replayed

RECORDED_PID = 4242


def _follow(library: RecordedLibrary, told: Path) -> None:
    """Before each reading that is made from now on."""
    read = GpuReader.read

    def following(reader: GpuReader) -> GpuReading:
        if told.exists():
            now: dict[str, Any] = json.loads(told.read_text())
            library.at = now["frame"]
            for one in _processes(library):
                one["pid"] = now["pid"] if one["pid"] == RECORDED_PID else one["pid"]
        return read(reader)

    GpuReader.read = following  # type: ignore[method-assign,assignment]


def _processes(library: RecordedLibrary) -> list[dict[str, Any]]:
    asked = [own.get("nvmlDeviceGetComputeRunningProcesses_v3") for frame in library.frames for own in frame.values()]
    return [one for listed in asked if isinstance(listed, list) for one in listed]


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sluicegate.settings")
    with replayed(sys.argv[1]) as recorded:
        _follow(recorded, Path(sys.argv[2]))
        execute_from_command_line(["manage.py", *sys.argv[3:]])
