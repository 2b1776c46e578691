"""The report: written anew after every step, so that an end by force keeps all measurements so far."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu_proof.outcome import Outcome, Step, Verdict

SCHEMA = "sluicegate/gpu-proof/v1"


class Report:
    """Keys that other programs read: `schema`, `device`, `machine.card`, `ended_at`, `steps[].name`, `steps[].verdict`."""

    def __init__(
        self, path: Path, *, part: str, device: str, form: str, machine: dict[str, Any], revision: str | None
    ) -> None:
        self.path = path
        self.body: dict[str, Any] = {
            "schema": SCHEMA,
            "part": part,
            "device": device,
            "form": form,
            "revision": revision,
            "command": sys.argv[1:],
            "machine": machine,
            "began_at": _now(),
            "ended_at": None,
            "steps": [],
        }
        self.write()

    def add(self, step: Step, outcome: Outcome) -> None:
        self.body["steps"].append({"name": step.name, "claim": step.claim, "stage": step.stage, **outcome.as_json()})
        self.write()

    def end(self) -> None:
        self.body["ended_at"] = _now()
        self.write()

    @property
    def is_refuted(self) -> bool:
        return any(step["verdict"] == Verdict.REFUTED for step in self.body["steps"])

    def write(self) -> None:
        """In one move: a reader never sees half of it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_name(f".{self.path.name}.part")
        part.write_text(json.dumps(self.body, indent=1, default=str) + "\n")
        os.replace(part, self.path)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
