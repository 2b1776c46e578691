"""A real server that is killed in the midst of its gate: the report says how it ended and what it last said and held."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from serving.targets import queries
from tests.real.test_agent import Machine, database, machine  # noqa: F401
from tests.support.worlds.factories import make_admin
from validators.actions import request_gate_run
from validators.execution.last_words import MOST_LOG_BYTES
from validators.execution.run import execute_gate_run

pytestmark = [pytest.mark.real("triton", "onnx"), pytest.mark.django_db(transaction=True)]


def test_what_a_killed_server_leaves_is_in_the_report(machine: Machine) -> None:
    replica = machine.deploy("doubling")
    served = replica.release.model
    served.gate_policy = {"gates": ["load"], "load": {"rate_per_s": 20, "duration_s": 4}}
    served.save()
    server = machine.ready(replica)
    gate_run, _ = request_gate_run(actor=make_admin(), release=replica.release)

    def beat(done: int, total: int, note: str) -> bool:
        """Kills the server once the load runs and a reading was taken of it."""
        if note.startswith("load: ") and " of " in note and queries.last_reading(server):
            try:
                os.kill(server.pid, signal.SIGKILL)
            except ProcessLookupError:
                return True
        return True

    execute_gate_run(gate_run.pk, beat)
    gate_run.refresh_from_db()
    body: dict[str, Any] = json.loads(gate_run.report.body)
    assert body["verdict"] == "failed", body["reason"]
    found = body["gates"][0]["evidence"]["server"]
    assert (found["exit_code"], found["signal"]) == (-9, "SIGKILL")
    assert "Started" in found["log"] and "/tmp/" not in found["log"] and len(found["log"].encode()) <= MOST_LOG_BYTES
    last = found["last_reading"]
    assert last["memory_bytes"] > 10 << 20
    assert last["cpu_s"] is None or last["cpu_s"] > 0, (
        "a process that died meanwhile has no CPU time to read, and never 0"
    )
    assert found["statistics"] is None
