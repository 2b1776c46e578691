"""A node agent that may open no more files: it sees nothing, and ends nothing."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import resource
import time

import pytest

from ledger.models import Event
from serving.models import Replica, Server
from tests.real.test_agent import Machine, ask, database, eventually, machine  # noqa: F401  # fixtures

pytestmark = pytest.mark.real("triton")
SHORT_FOR_S = 15.0


@pytest.mark.django_db(transaction=True)
def test_an_agent_at_its_limit_of_files_ends_no_server(machine: Machine) -> None:
    replicas = [machine.deploy("doubling"), machine.deploy("doubling")]
    servers = [machine.ready(one) for one in replicas]
    pid = machine.agent.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))  # nothing new is opened; what is open stays
    try:
        until, asked = time.monotonic() + SHORT_FOR_S, 0
        while time.monotonic() < until:
            for server in servers:
                assert ask(server, 2) == [4, 4, 4, 4]
                asked += 1
            time.sleep(0.2)
        assert eventually(Event.objects.filter(verb="server.unseen").exists), _log_of(machine)
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    time.sleep(5)  # it looks again
    assert asked > 10 and not Event.objects.filter(verb__in=["server.lost", "server.stopped"]).exists()
    for replica, server in zip(replicas, servers, strict=True):
        assert Replica.objects.get(pk=replica.pk).recoveries == 0
        assert Server.objects.get(pk=server.pk).ended_at is None
        assert machine.ready(replica).pid == server.pid and ask(server, 3) == [6, 6, 6, 6]
    assert len(list(machine.servers.glob("*/shim.json"))) == 2


def _log_of(machine: Machine) -> str:
    return (machine.state / "agent.log").read_text()[-3000:]
