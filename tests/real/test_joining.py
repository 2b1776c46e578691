"""A real agent process that is invited, joins, has its credential rotated under a real server, is killed, is revoked, and joins again."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.utils import timezone

from accounts.core.access import Actor
from ledger.models import Event
from serving.actions.joining import ask_rotation, digest_of, invite_node, revoke_node
from serving.core.joining import credential_file
from serving.models import Node, Server
from tests.real.test_agent import Machine, database, eventually  # noqa: F401

pytestmark = pytest.mark.real("triton")
ROOT = Actor.system("test")


@pytest.fixture
def machine(database: str, tmp_path: Path) -> Iterator[Machine]:
    """One whose agent has not been started; only nodes that have joined are let in."""
    made = Machine(database, tmp_path)
    made.env["SLUICEGATE_NODES_JOIN_BY_TOKEN"] = "1"
    try:
        yield made
    finally:
        made.close()
        Node.objects.filter(name=made.name).update(cordoned_at=timezone.now())


def said(machine: Machine) -> str:
    return (machine.state / "agent.log").read_text()


def invite(machine: Machine) -> str:
    """The token, in a file that the next agent is told of."""
    token, _ = invite_node(actor=ROOT, name=machine.name)
    file = machine.state / "join-token"
    file.write_text(token)
    machine.env["SLUICEGATE_NODE_JOIN_TOKEN_FILE"] = str(file)
    return token


def node_of(machine: Machine) -> Node:
    return Node.objects.get(name=machine.name)


def test_an_agent_is_invited_rotated_killed_revoked_and_joins_again(machine: Machine, tmp_path: Path) -> None:
    machine.start_agent()
    assert eventually(lambda: f"{machine.name} has not joined" in said(machine))
    assert not Node.objects.filter(name=machine.name).exists() and machine.agent.poll() is None
    machine.kill_agent()

    token = invite(machine)
    machine.begin()
    assert eventually(lambda: node_of(machine).seen_at is not None)
    kept = credential_file(machine.state, machine.name)
    assert node_of(machine).credential == digest_of(kept.read_text().strip()) and kept.stat().st_mode & 0o777 == 0o600
    assert token not in str(Path(f"/proc/{machine.agent.pid}/cmdline").read_bytes()) and token not in said(machine)
    server = machine.ready(machine.deploy("words"))

    (other_state := tmp_path / "other").mkdir()
    other = Machine(machine.database, other_state)  # says that it is this node, with the token that was used
    other.name, other.env = machine.name, dict(machine.env)
    try:
        other.start_agent()
        assert eventually(lambda: "was used already" in said(other))
    finally:
        other.close()
    assert Event.objects.filter(verb="node.refused", subject_id=machine.name).exists()

    before = kept.read_text()
    ask_rotation(actor=ROOT, node=node_of(machine))
    assert eventually(lambda: node_of(machine).rotation_asked_at is None)
    assert eventually(lambda: kept.read_text() != before)
    probed_at = Server.objects.get(pk=server.pk).probed_at
    assert eventually(lambda: Server.objects.get(pk=server.pk).probed_at != probed_at)  # no server was stopped
    machine.kill_agent()
    del machine.env["SLUICEGATE_NODE_JOIN_TOKEN_FILE"]
    machine.start_agent()
    assert eventually(lambda: Event.objects.filter(verb="server.adopted", subject_id=str(server.pk)).exists())

    node = revoke_node(actor=ROOT, node=node_of(machine), reason="stolen")
    assert eventually(lambda: "was revoked by system:test" in said(machine) and "stolen" in said(machine))
    assert node_of(machine).seen_at < node.revoked_at  # type: ignore[operator]
    assert machine.agent.poll() is None
    os.kill(server.pid, 0)  # its server answers until others do
    machine.kill_agent()
    machine.start_agent()
    assert eventually(lambda: said(machine).count("was revoked by system:test") == 2)
    machine.kill_agent()

    invite(machine)
    machine.start_agent()
    assert eventually(lambda: node_of(machine).revoked_at is None)
    assert eventually(lambda: Event.objects.filter(verb="server.adopted", subject_id=str(server.pk)).count() == 2)
    assert node_of(machine).cordoned_at is not None and Server.objects.get(pk=server.pk).ended_at is None
