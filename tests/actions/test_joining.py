"""Agents join with a token, once, and from then on nothing is taken under a node's name without the credential that its agent made."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from accounts.core.access import Actor, Role
from ledger.adapters.files import write_whole
from ledger.core.errors import Invalid, Refused, Stale, StateChanged
from ledger.models import Event
from serving.actions.deployments import register_node
from serving.actions.joining import (
    ask_rotation,
    digest_of,
    invite_node,
    join_node,
    record_refused_agent,
    revoke_node,
    rotate_credential,
)
from serving.actions.nodes import uncordon_node
from serving.actions.replicas import continue_placing
from serving.agent.identity import NodeIdentity
from serving.core.joining import credential_file
from serving.models import Deployment, Node, NodeInvite, Server
from serving.queries.answering import on_heard_nodes
from serving.queries.deployments import current_servers
from serving.queries.replicas import lost_nodes
from sluicegate.stack.bootstrap import ensure_node
from sluicegate.stack.machine import JOIN_TOKEN
from tests.factories import make_actor, make_admin, make_deployment, make_node, make_server
from tests.rollout_setup import production, release_of, serves

pytestmark = pytest.mark.django_db
AGENT = Actor.system("agent:gpu-7")


def heard(name: str = "gpu-7", credential: str = "") -> Node:
    return register_node(actor=AGENT, name=name, runtimes=[], facts={}, credential=credential)


def invited(name: str = "gpu-7", **said: Any) -> str:
    return invite_node(actor=make_admin(), name=name, **said)[0]


def identity(tmp_path: Path, token: str = "", name: str = "gpu-7") -> NodeIdentity:
    return NodeIdentity(name, file=credential_file(tmp_path, name), join_token=token)


def kept(tmp_path: Path) -> str:
    return credential_file(tmp_path, "gpu-7").read_text().strip()


def refusal(agent: NodeIdentity) -> str:
    with pytest.raises(Refused) as refused:
        agent.introduce(runtimes=[], facts={})
    return refused.value.code


def revoked(node: Node) -> Node:
    return revoke_node(actor=make_admin(), node=node, reason="stolen")


def full(*_: Any, **__: Any) -> None:
    raise OSError("No space left on device")


def test_an_agent_joins_once_and_keeps_a_credential_that_nobody_else_knows(tmp_path: Path) -> None:
    token = invited()
    agent = identity(tmp_path, token)
    agent.introduce(runtimes=[{"image": "x"}], facts={"cpu_count": 4})
    node, secret = Node.objects.get(), kept(tmp_path)
    assert node.credential == digest_of(secret) and node.joined_by and node.seen_at and node.credential_used_at
    file = credential_file(tmp_path, "gpu-7")
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700
    assert [one.name for one in file.parent.iterdir()] == [file.name]
    told = str(list(Event.objects.values())) + str(list(Node.objects.values())) + str(list(NodeInvite.objects.values()))
    assert secret not in told and token not in told
    identity(tmp_path, token).introduce(runtimes=[], facts={})  # started again, with the token still there
    assert kept(tmp_path) == secret and Event.objects.filter(verb="node.joined").count() == 1


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_node_that_joins_is_told_once_with_what_it_can_run_whoever_was_killed_before(
    tmp_path: Path, is_prepared: bool
) -> None:
    token, images = invited(), [{"image": "x"}]
    if is_prepared:  # killed before it joined: it is heard of first, and joins then
        pending = tmp_path / "node-identity" / "gpu-7.next"
        pending.parent.mkdir()
        pending.write_text("sgn_next\n")
    for _ in range(2):
        identity(tmp_path, token).introduce(runtimes=images, facts={})
    told = Event.objects.filter(subject_type="node")
    assert sorted(told.values_list("verb", flat=True)) == ["node.invited", "node.joined", "node.registered"]
    assert told.get(verb="node.registered").facts == {"images": ["x"]}


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda token: "sgj_wrong", "not the token"),
        (lambda token: invited("gpu-8"), "not the token"),  # another node's
        (lambda token: (invited(), token)[1], "not the token"),  # another invitation took its place
        (lambda token: (NodeInvite.objects.update(expires_at=timezone.now()), token)[1], "ended at"),
        (lambda token: (NodeInvite.objects.update(used_at=timezone.now()), token)[1], "used already"),
        (lambda token: (NodeInvite.objects.all().delete(), token)[1], "nobody was invited"),
    ],
)
def test_a_token_that_is_none_joins_nobody(tmp_path: Path, spoil: Any, why: str) -> None:
    token = spoil(invited())
    agent = identity(tmp_path, token)
    for again in (agent, agent, identity(tmp_path, token)):  # at its next heartbeat, and when it is started again, too
        with pytest.raises(Refused, match=why) as refused:
            again.introduce(runtimes=[], facts={})
        assert refused.value.code == "join_refused" and token not in refused.value.message
    assert not Node.objects.exists()
    event = Event.objects.get(verb="node.refused")
    assert event.facts == {"code": "join_refused"} and token not in event.reason


@pytest.mark.parametrize("name", ["gpu-7", "gpu-7.next"])
@pytest.mark.parametrize("is_known", [False, True])
def test_no_file_lets_in_whose_token_is_refused(tmp_path: Path, name: str, is_known: bool) -> None:
    if is_known:  # without a credential
        heard()
    before = list(Node.objects.values())
    (tmp_path / "node-identity").mkdir()
    (tmp_path / "node-identity" / name).write_text("anything\n")
    assert refusal(identity(tmp_path, "sgj_wrong")) == "join_refused"
    assert list(Node.objects.values()) == before


def test_a_state_folder_that_cannot_be_looked_into_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nowhere = tmp_path / ("x" * 300)  # unlike a mode its name keeps root out, too
    for agent in (identity(nowhere), identity(nowhere, invited())):
        agent.introduce(runtimes=[], facts={})
    assert "gpu-7 cannot read" in caplog.text and "gpu-7 does not join" in caplog.text


def test_a_used_token_lets_no_second_agent_in(tmp_path: Path) -> None:
    token = invited()
    identity(tmp_path / "a", token).introduce(runtimes=[], facts={})
    assert refusal(identity(tmp_path / "b", token)) == "join_refused"


def test_under_a_name_that_has_joined_nobody_is_heard_without_its_credential(tmp_path: Path) -> None:
    identity(tmp_path, invited()).introduce(runtimes=[], facts={})
    before = Node.objects.get()
    for credential in ("", "sgn_wrong", kept(tmp_path).upper()):
        with pytest.raises(Refused) as refused:
            heard(credential=credential)
        assert refused.value.code == "node_credential_refused"
    assert refusal(identity(tmp_path / "empty")) == "node_credential_refused"
    after = Node.objects.get()
    assert (after.seen_at, after.runtimes) == (before.seen_at, before.runtimes)
    assert heard(credential=kept(tmp_path)).seen_at != before.seen_at


def test_a_credential_of_another_node_is_none(tmp_path: Path) -> None:
    identity(tmp_path, invited()).introduce(runtimes=[], facts={})
    identity(tmp_path, invited("gpu-8"), "gpu-8").introduce(runtimes=[], facts={})
    with pytest.raises(Refused):
        heard("gpu-8", kept(tmp_path))


def test_nodes_without_a_credential_are_let_in_until_the_setting_says_otherwise(settings: Any, tmp_path: Path) -> None:
    assert heard("old").credential == ""
    settings.NODES_JOIN_BY_TOKEN = True
    for name in ("old", "new"):
        with pytest.raises(Refused) as refused:
            heard(name)
        assert refused.value.code == "node_not_joined" and f"/nodes/{name}/invite" in refused.value.message
    identity(tmp_path, invited("old"), "old").introduce(runtimes=[], facts={})  # an upgrade, one node at a time
    assert Node.objects.get().joined_at is not None


def test_an_agent_that_the_database_forgot_is_heard_and_joins_again_where_it_is_invited(
    tmp_path: Path, settings: Any
) -> None:
    identity(tmp_path, invited()).introduce(runtimes=[], facts={})
    Node.objects.all().delete()
    identity(tmp_path).introduce(runtimes=[], facts={})
    assert Node.objects.get().credential == "" and Node.objects.get().credential_used_at is None
    assert refusal(identity(tmp_path, "sgj_used_long_ago")) == "join_refused"
    identity(tmp_path, invited()).introduce(runtimes=[], facts={})
    assert Node.objects.get().credential == digest_of(kept(tmp_path))
    Node.objects.all().delete()
    settings.NODES_JOIN_BY_TOKEN = True
    assert refusal(identity(tmp_path)) == "node_not_joined"


def test_a_disk_without_room_leaves_the_credential_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = identity(tmp_path, invited())
    agent.introduce(runtimes=[], facts={})
    before = kept(tmp_path)
    ask_rotation(actor=make_admin(), node=Node.objects.get())

    with monkeypatch.context() as patched:
        patched.setattr("serving.agent.identity.write_whole", full)
        agent.introduce(runtimes=[], facts={})
    assert kept(tmp_path) == before and Node.objects.get().rotation_asked_at is not None
    agent.introduce(runtimes=[], facts={})
    assert kept(tmp_path) != before


def test_an_agent_without_room_to_join_is_heard_as_before_and_joins_when_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    agent = identity(tmp_path, invited())
    with monkeypatch.context() as patched:
        patched.setattr("serving.agent.identity.write_whole", full)
        for _ in range(2):
            agent.introduce(runtimes=[], facts={})
        settings.NODES_JOIN_BY_TOKEN = True
        assert refusal(agent) == "node_not_joined"
    assert Node.objects.get().credential == "" and caplog.text.count("No space left") == 1
    agent.introduce(runtimes=[], facts={})
    assert Node.objects.get().credential == digest_of(kept(tmp_path))


def test_a_credential_that_could_not_be_put_in_its_place_is_good_and_is_put_there_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, file = identity(tmp_path, invited()), credential_file(tmp_path, "gpu-7")

    def nearly_full(path: Path, *said: Any, **more: Any) -> None:
        full() if path == file else write_whole(path, *said, **more)

    with monkeypatch.context() as patched:
        patched.setattr("serving.agent.identity.write_whole", nearly_full)
        agent.introduce(runtimes=[], facts={})
        ask_rotation(actor=make_admin(), node=Node.objects.get())
        agent.introduce(runtimes=[], facts={})  # not rotated: that would write over the only copy
        assert not file.exists() and Node.objects.get().rotation_asked_at is not None
        identity(tmp_path).introduce(runtimes=[], facts={})  # killed, and started again
    agent.introduce(runtimes=[], facts={})
    assert Node.objects.get().credential == digest_of(kept(tmp_path)) and Node.objects.get().rotation_asked_at is None


def test_an_agent_that_cannot_read_its_credential_goes_on_with_what_it_has(tmp_path: Path) -> None:
    agent, file = identity(tmp_path, invited()), credential_file(tmp_path, "gpu-7")
    agent.introduce(runtimes=[], facts={})
    file.unlink()
    file.mkdir()  # unlike a mode it keeps root out, too
    agent.introduce(runtimes=[], facts={})
    assert refusal(identity(tmp_path)) == "node_credential_refused"
    identity(tmp_path, invited()).introduce(runtimes=[], facts={})
    assert Event.objects.filter(verb="node.joined").count() == 2


def test_rotated_the_agent_has_another_and_the_one_before_is_good_no_more(tmp_path: Path) -> None:
    agent = identity(tmp_path, invited())
    agent.introduce(runtimes=[], facts={})
    before, node = kept(tmp_path), Node.objects.get()
    assert ask_rotation(actor=make_admin(), node=node).rotation_asked_at
    ask_rotation(actor=make_admin(), node=node)
    agent.introduce(runtimes=[], facts={})
    assert kept(tmp_path) != before and Node.objects.get().rotation_asked_at is None
    with pytest.raises(Refused):
        heard(credential=before)
    agent.introduce(runtimes=[], facts={})
    identity(tmp_path).introduce(runtimes=[], facts={})
    assert Event.objects.filter(verb__in=["node.rotation_asked", "node.rotated"]).count() == 2


@pytest.mark.parametrize("is_known", [False, True])
def test_an_agent_killed_while_it_rotates_is_who_it_was(tmp_path: Path, is_known: bool) -> None:
    identity(tmp_path, invited()).introduce(runtimes=[], facts={})
    before, pending = kept(tmp_path), tmp_path / "node-identity" / "gpu-7.next"
    pending.write_text("sgn_next\n")
    if is_known:
        rotate_credential(actor=AGENT, name="gpu-7", credential=before, new_digest=digest_of("sgn_next"))
    identity(tmp_path).introduce(runtimes=[], facts={})
    assert kept(tmp_path) == ("sgn_next" if is_known else before) and not pending.exists()


def test_drafts_of_an_agent_that_was_killed_as_it_wrote_are_removed_and_no_other_nodes(tmp_path: Path) -> None:
    folder = tmp_path / "node-identity"
    folder.mkdir()
    draft = f".{'b' * 16}.draft"
    others = [f".gpu-7.other{draft}", f".gpu-70{draft}", "gpu-70", "gpu-70.next"]
    for name in (f".gpu-7{draft}", f".gpu-7.next{draft}", *others):
        (folder / name).write_text("sgn_draft\n")
    identity(tmp_path, invited()).introduce(runtimes=[], facts={})
    assert sorted(one.name for one in folder.iterdir()) == sorted(["gpu-7", *others])


def test_what_was_never_given_is_not_rotated() -> None:
    node = make_node("plain")
    with pytest.raises(StateChanged, match="/nodes/plain/invite"):
        ask_rotation(actor=make_admin(), node=node)


def test_a_revoked_agent_is_refused_and_told_why_until_it_joins_again(tmp_path: Path) -> None:
    agent = identity(tmp_path, invited())
    agent.introduce(runtimes=[], facts={})
    node = revoked(Node.objects.get())
    assert node.cordoned_at and node.credential == "" and revoked(node).version == node.version
    for one in (agent, identity(tmp_path), identity(tmp_path / "empty")):
        with pytest.raises(Refused, match="stolen") as refused:
            one.introduce(runtimes=[], facts={})
        assert refused.value.code == "node_revoked"
    with pytest.raises(StateChanged, match="is revoked"):
        uncordon_node(actor=make_admin(), node=node, expected_version=node.version)
    identity(tmp_path, invited()).introduce(runtimes=[], facts={})
    node.refresh_from_db()
    assert node.revoked_at is None and node.cordoned_at is not None  # somebody gives it work again
    assert uncordon_node(actor=make_admin(), node=node, expected_version=node.version).cordoned_at is None


def test_revoking_ends_an_open_invitation() -> None:
    node, token = make_node("gpu-7"), invited()
    revoked(node)
    with pytest.raises(Refused, match="nobody was invited"):
        join_node(actor=AGENT, name="gpu-7", token=token, credential_digest="0" * 64)


def test_what_runs_on_a_revoked_node_loses_its_traffic_where_others_answer() -> None:
    here, there = make_node("gpu-7"), make_node()
    release = release_of()
    serves(release)
    one = make_deployment(release, production(), state="ready")
    Deployment.objects.filter(pk=one.pk).update(node=here)
    server = make_server(one)
    assert lost_nodes() == set()
    revoked(here)
    assert lost_nodes() == {"gpu-7"}  # though it was heard of just now
    assert not on_heard_nodes(current_servers()).exists()
    continue_placing(actor=AGENT)
    assert Server.objects.get(pk=server.pk).is_serving  # the last one keeps its traffic
    other = make_deployment(release, production(), state="ready", slot=1)
    Deployment.objects.filter(pk=other.pk).update(node=there)
    make_server(other)
    continue_placing(actor=AGENT)
    assert not Server.objects.get(pk=server.pk).is_serving


def test_where_nobody_else_is_heard_of_a_revoked_node_alone_is_lost() -> None:
    long_ago = timezone.now() - timedelta(hours=1)
    make_node("gpu-8", seen_at=long_ago)
    revoked(make_node("gpu-7"))
    assert lost_nodes() == {"gpu-7"}


def test_the_agent_of_a_stack_joins_by_itself_once_and_not_after_it_was_revoked(tmp_path: Path, settings: Any) -> None:
    settings.NODE_NAME = "gpu-7"
    file = tmp_path / JOIN_TOKEN

    def start() -> str:
        """What the bootstrap leaves for the agent."""
        ensure_node(tmp_path)
        return file.read_text().strip()

    first = start()
    assert file.stat().st_mode & 0o777 == 0o600
    assert start() != first  # nobody joined with it, and it has an end
    token = start()
    identity(tmp_path, token).introduce(runtimes=[], facts={})
    assert start() == token and Event.objects.filter(verb="node.joined").count() == 1
    identity(tmp_path, start()).introduce(runtimes=[], facts={})
    credential_file(tmp_path, "gpu-7").unlink()  # as when a part of the state folder was lost
    identity(tmp_path, start()).introduce(runtimes=[], facts={})
    assert Event.objects.filter(verb="node.joined").count() == 2
    revoked(Node.objects.get())
    assert refusal(identity(tmp_path, start())) == "node_revoked"
    file.unlink()
    assert start() == "revoked" and refusal(identity(tmp_path, start())) == "node_revoked"
    file.write_text(token := invited())  # as somebody does who lets it join again
    assert start() == token
    identity(tmp_path, token).introduce(runtimes=[], facts={})
    assert start() == token and Node.objects.get().revoked_at is None


def test_one_refusal_in_a_while_is_told() -> None:
    for _ in range(3):
        record_refused_agent(actor=AGENT, name="gpu-7", code="node_revoked", message="why")
    record_refused_agent(actor=AGENT, name="gpu-7", code="join_refused", message="why")
    assert Event.objects.filter(verb="node.refused").count() == 2


def test_for_administrators_and_by_what_they_saw() -> None:
    node, mara = make_node("gpu-7"), make_actor(Role.RELEASE_MANAGER)
    for verb in (ask_rotation, lambda **said: revoke_node(reason="", **said)):
        with pytest.raises(Refused):
            verb(actor=mara, node=node)
        with pytest.raises(Stale):
            verb(actor=make_admin(), node=node, expected_version=9)
    with pytest.raises(Refused):
        invite_node(actor=mara, name="gpu-9")
    for said in ({"name": "a b"}, {"name": "a/b"}, {"name": ""}, {"name": "x" * 61}, {"lasts": timedelta(days=8)}):
        with pytest.raises(Invalid):
            invite_node(**{"actor": make_admin(), "name": "gpu-9", **said})
