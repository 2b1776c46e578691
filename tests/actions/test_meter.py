"""The agent's meter: what servers that no user reaches use, and nothing of others."""

from __future__ import annotations

import os

import pytest

from accounts.core.access import Actor
from serving import wiring
from serving.models import Node, NodeGpuReading
from serving.targets.agent import meter
from serving.targets.agent.gpu_meter import GpuMeter
from serving.targets.core.gpu import GpuReading, reading_of
from serving.targets.core.use import Use
from serving.targets.queries import last_reading
from tests.support.fakes.nvml import replayed
from tests.support.worlds.factories import (
    make_environment,
    make_model,
    make_node,
    make_release,
    make_replica,
    make_server,
)

pytestmark = pytest.mark.django_db
AGENT = Actor.system("agent:local")


def test_servers_under_trial_are_read_and_those_of_users_are_not() -> None:
    release = make_release(make_model("sentiment"))
    tried = make_server(make_replica(release, make_environment("staging", is_routed=False)), pid=os.getpid())
    serving = make_server(make_replica(release, make_environment("production")), pid=os.getpid())
    again_in_s = meter.read_servers(actor=AGENT, node=tried.replica.node_id, gpu_memory=lambda pids: {os.getpid(): 7})
    found = last_reading(tried)
    assert found and found.use.memory_bytes > 10 << 20 and found.use.cpu_s and found.use.gpu_memory_bytes == 7
    assert last_reading(serving) is None
    assert again_in_s >= 0.25
    meter.read_servers(actor=AGENT, node=tried.replica.node_id)
    newer = last_reading(tried)
    assert newer and newer.at_s > found.at_s and newer.use.gpu_memory_bytes is None, "nobody reads GPUs here"
    meter.read_servers(actor=AGENT, node="elsewhere")
    assert last_reading(tried) == newer


def test_reading_takes_no_more_than_a_tenth_of_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server(make_replica(environment=make_environment("staging", is_routed=False)), pid=5)
    spent = iter([1.0, 1.5])
    monkeypatch.setattr(meter.time, "thread_time", lambda: next(spent))
    monkeypatch.setattr(meter, "use_of", lambda pids: {pid: Use(1) for pid in pids})
    assert meter.read_servers(actor=AGENT, node=server.replica.node_id) == pytest.approx(5.0)


def test_gpu_memory_is_that_of_each_servers_own_processes_and_of_now() -> None:
    server = make_server(make_replica(environment=make_environment("staging", is_routed=False)), pid=4242)
    now = [0.0]
    gpus = GpuMeter(now=lambda: now[0])
    assert gpus.memory([4242]) == {}, "nothing was read yet"
    with replayed("mig"):
        gpus.read(actor=AGENT, node=server.replica.node_id)
    last = reading_of(Node.objects.get().gpus)
    assert last
    now[0] = last.at_s + 1
    assert gpus.memory([4242, 777]) == {4242: 4 << 30}, "a GPU that is cut into slices lists their processes again"
    now[0] = last.at_s + 6
    assert gpus.memory([4242]) == {}, "that was then"


def test_where_nvml_tells_nothing_the_second_source_is_asked() -> None:
    make_server(make_replica(environment=make_environment("staging", is_routed=False)), pid=4242)
    with replayed("well"):
        there = GpuMeter()
        there.read(actor=AGENT, node="local")
        told = reading_of(Node.objects.get().gpus)
    assert told and NodeGpuReading.objects.count() == 1
    second = GpuMeter(second=lambda: told)
    with replayed("no_driver"):
        second.read(actor=AGENT, node="local")
        second.read(actor=AGENT, node="local")
    assert NodeGpuReading.objects.count() == 2, "what was scraped once is one reading, however often it is asked for"
    nobody = GpuMeter(second=lambda: GpuReading(0.0, unknown="Prometheus is away"))
    with replayed("no_driver"):
        nobody.read(actor=AGENT, node="local")
    assert Node.objects.get().gpus["unknown"] == "Driver Not Loaded; Prometheus is away"


def test_the_second_source_is_configured_by_its_place_and_the_nodes_series(settings: object) -> None:
    make_node()
    settings.PROMETHEUS_URL, settings.DCGM_SELECTOR = "http://127.0.0.1:9", ""  # type: ignore[attr-defined]
    assert wiring.gpus_by_dcgm() is None
    settings.DCGM_SELECTOR = 'Hostname="gpu-7"'  # type: ignore[attr-defined]
    ask = wiring.gpus_by_dcgm()
    assert ask is not None and "cannot be reached" in ask().unknown
