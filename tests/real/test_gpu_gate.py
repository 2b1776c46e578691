"""The gpu gate beside a load on a real server, with a real agent: on this machine's own GPUs, if any, and on GPUs that are recorded."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

import pytest

from serving.models import Node, Replica
from serving.targets import queries
from serving.targets.core.gpu import reading_of
from tests.real.test_agent import Machine, database, eventually, machine  # noqa: F401
from tests.support.worlds.factories import make_admin
from validators.actions import request_gate_run
from validators.execution.run import execute_gate_run
from validators.models import GateRun

pytestmark = [pytest.mark.real("triton", "onnx"), pytest.mark.django_db(transaction=True)]
NVIDIA = {"vendor": "nvidia", "memory_mib_min": 9000}
#: Of a load that any server takes, and of an objective that none meets.
LENIENT_MS, HOPELESS_MS = 60_000.0, 1e-3


def judged(
    replica: Replica, slo_ms: float = LENIENT_MS, meanwhile: Callable[[], object] = lambda: None
) -> tuple[GateRun, Mapping[str, tuple[str, str]]]:
    """The gate run, and (verdict, reason) of each gate. `meanwhile` is done once, while the load runs."""
    load = {
        "rate_per_s": 20,
        "duration_s": 3,
        "slo_ms": slo_ms,
        "slo_quantile": 0.9,
        "max_lag_ms": 60_000,
        "burst_s": 0,
    }
    served = replica.release.model
    served.gate_policy = {"gates": ["load", "gpu"], "load": load}
    served.save()
    gate_run, _ = request_gate_run(actor=make_admin(), release=replica.release)
    done: list[object] = []

    def beat(at: int, total: int, note: str) -> bool:
        if re.match(r"load: [1-9]\d* of", note) and not done:
            done.append(meanwhile())
        return True

    execute_gate_run(gate_run.pk, beat)
    gate_run.refresh_from_db()
    assert done, "the load ran"
    return gate_run, {one.gate: (one.verdict, one.reason) for one in gate_run.results.all()}


def test_a_release_that_declares_no_gpu_has_nothing_to_prove(machine: Machine) -> None:
    replica = machine.deploy("doubling")
    machine.ready(replica)
    run, found = judged(replica)
    assert found["gpu"] == ("passed", "It declares no GPU: nothing to prove.")
    assert (found["load"][0], run.verdict) == ("passed", "passed")


def test_a_gpu_that_nobody_saw_the_release_on_proves_nothing(machine: Machine) -> None:
    """On a machine without one nothing is read; on a machine with one, the release is not seen there."""
    replica = machine.deploy("doubling", accelerator=NVIDIA)
    machine.ready(replica)
    run, found = judged(replica)
    assert (found["load"][0], found["gpu"][0], run.verdict) == ("passed", "undecided", "undecided")
    read = reading_of(Node.objects.get(name=machine.name).gpus)
    assert read
    assert read.gpus or found["gpu"][1] == f"The GPUs of its node were not read: {read.unknown}."


class Recorded:
    """A machine whose agent was started anew, to read a recording."""

    def __init__(self, machine: Machine, recording: str) -> None:
        self.machine, self._told = machine, machine.state / "gpus.json"
        machine.kill_agent()
        machine.program = ["-m", "tests.support.rigs.recorded_gpus", recording, str(self._told)]
        machine.start_agent()
        node = Node.objects.filter(name=machine.name)
        assert eventually(lambda: bool((read := reading_of(node.get().gpus)) and read.gpus))
        self.replica = machine.deploy("doubling", accelerator=NVIDIA)
        self.server = machine.ready(self.replica)

    def tell(self, frame: int) -> None:
        """From the next reading on."""
        told = self._told.with_suffix(".new")
        told.write_text(json.dumps({"frame": frame, "pid": self.server.pid}))
        told.rename(self._told)

    def has_heard_an_xid(self) -> bool:
        readings = queries.gpu_readings_of(self.machine.name, since_s=self.server.started_at.timestamp())
        return any(gpu.xids for one in readings for gpu in one.gpus)


def test_a_gpu_that_was_well_passes(machine: Machine) -> None:
    recorded = Recorded(machine, "well")
    recorded.tell(frame=1)
    run, found = judged(recorded.replica)
    assert found["gpu"] == ("passed", "The GPU was well and undisturbed, and the release kept to it."), found
    evidence = run.results.get(gate="gpu").evidence
    assert evidence["finding"] == "well" and evidence["unknown"] == []
    assert run.verdict == "passed"


def test_an_xid_of_the_hardware_during_the_load_is_not_the_releases(machine: Machine) -> None:
    recorded = Recorded(machine, "xid_79")
    recorded.tell(frame=1)

    def falls_off_the_bus() -> None:
        recorded.tell(frame=2)
        assert eventually(recorded.has_heard_an_xid)

    run, found = judged(recorded.replica, HOPELESS_MS, falls_off_the_bus)
    verdict, reason = found["load"]
    assert verdict == "errored" and "Xid 79" in reason and "The machine is at fault, not the release" in reason
    assert "Measured was: " in reason and run.results.get(gate="load").evidence["gpu"]["finding"] == "node"
    assert (found["gpu"][0], run.verdict) == ("skipped", "errored")


def test_the_same_failure_on_a_gpu_that_was_well_is_the_releases(machine: Machine) -> None:
    recorded = Recorded(machine, "well")
    recorded.tell(frame=1)
    run, found = judged(recorded.replica, HOPELESS_MS)
    assert (found["load"][0], run.verdict) == ("failed", "failed")
