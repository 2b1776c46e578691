"""The agent's meter: what servers that no user reaches use, and nothing of others."""

from __future__ import annotations

import os

import pytest

from accounts.core.access import Actor
from serving.agent import meter
from serving.core.use import Use
from serving.queries import last_reading
from tests.factories import make_deployment, make_environment, make_model, make_release, make_server

pytestmark = pytest.mark.django_db
AGENT = Actor.system("agent:local")


def test_servers_under_trial_are_read_and_those_of_users_are_not() -> None:
    release = make_release(make_model("sentiment"))
    tried = make_server(make_deployment(release, make_environment("staging", is_routed=False)), pid=os.getpid())
    serving = make_server(make_deployment(release, make_environment("production")), pid=os.getpid())
    again_in_s = meter.read_servers(
        actor=AGENT, node=tried.deployment.node_id, gpu_memory=lambda pids: {os.getpid(): 7}
    )
    found = last_reading(tried)
    assert found and found.use.memory_bytes > 10 << 20 and found.use.cpu_s and found.use.gpu_memory_bytes == 7
    assert last_reading(serving) is None
    assert again_in_s >= 0.25
    meter.read_servers(actor=AGENT, node=tried.deployment.node_id)
    newer = last_reading(tried)
    assert newer and newer.at_s > found.at_s and newer.use.gpu_memory_bytes is None, "nobody reads GPUs here"
    meter.read_servers(actor=AGENT, node="elsewhere")
    assert last_reading(tried) == newer


def test_reading_takes_no_more_than_a_tenth_of_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server(make_deployment(environment=make_environment("staging", is_routed=False)), pid=5)
    spent = iter([1.0, 1.5])
    monkeypatch.setattr(meter.time, "thread_time", lambda: next(spent))
    monkeypatch.setattr(meter, "use_of", lambda pids: {pid: Use(1) for pid in pids})
    assert meter.read_servers(actor=AGENT, node=server.deployment.node_id) == pytest.approx(5.0)
