"""The fleet page and its API: known and unknown facts of nodes, by reader."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.actions import actor_for
from accounts.core.access import Actor, Role
from accounts.models import User
from registry.adapters.capability_evidence import capabilities
from serving.models import Node, Replica, Server
from serving.targets.queries.fleet import fleet_of
from tests.pages.markup import squeezed
from tests.pages.test_model_tabs import HOSTILE, MOST_QUERIES, queries_of, signed_in
from tests.support.worlds.factories import (
    make_admin,
    make_environment,
    make_model,
    make_node,
    make_release,
    make_replica,
    make_server,
    make_team,
    make_user,
    resealed,
)

pytestmark = pytest.mark.django_db
SYSTEM = Actor.system("test")


@pytest.fixture
def admin() -> User:
    return make_user("root", is_admin=True)


def page_of(user: User, **query: str) -> str:
    return squeezed(signed_in(user).get(reverse("fleet"), query).content.decode())


def test_where_a_table_becomes_cards_each_cell_says_what_it_is(admin: User) -> None:
    make_server(make_replica(make_release(), make_environment(), state="ready"))
    (table,) = re.findall(r"<table[^>]*>(?:(?!<table).)*Recoveries.*?</table>", page_of(admin))
    (row,) = re.findall("<tr>(?:(?!<tr>).)*</tr>", table.partition("<tbody>")[2])
    cells = re.findall("<td[^>]*>", row)
    assert len(cells) == 10 and all("data-label=" in one for one in cells[1:])


def test_what_nobody_told_is_unknown_and_a_silent_node_is_said_to_be(admin: User) -> None:
    assert "No node has been heard of." in page_of(admin)
    node = make_node("local")
    page = page_of(admin)
    assert "its servers hold 0 MiB" in page  # there are none
    assert (
        "unknown: its agent did not say" in page
        and "<dt>Disk</dt><dd>unknown</dd>" in page
        and "</svg> reachable" in page
    )
    Node.objects.update(
        facts={"gpus": [], "memory_bytes": 2**30, "cpu_count": 2, "gpus_unknown": HOSTILE},
        seen_at=timezone.now() - timedelta(minutes=5),
    )
    page = page_of(admin)
    assert "<dt>GPUs</dt><dd> none </dd>" in page and "1024 MiB" in page and "</svg> silent" in page
    Node.objects.update(facts={"gpus": None, "gpus_unknown": HOSTILE})
    page = page_of(admin)
    assert "unknown: &lt;script&gt;" in page and "<script>alert" not in page
    assert "No node is like that." in page_of(admin, node="other") and node.name in page_of(admin, state="silent")


def test_each_runtime_shows_the_state_of_its_server_and_backends(admin: User) -> None:
    make_node("local")
    Node.objects.update(runtimes=[{"image": f"own@sha256:{'1' * 64}", "server": "acme", "backends": ["python"]}])
    assert re.search("acme <span[^>]*><svg.*?</svg> never run</span>", page_of(admin))
    Node.objects.update(runtimes=[{"image": f"own@sha256:{'1' * 64}", "server": "triton", "backends": ["tensorrt"]}])
    page = page_of(admin)
    state = next(row["state"] for row in capabilities() if row["id"] == "server:triton")
    assert re.search(
        f"triton <span[^>]*><svg.*?</svg> {state}</span> · tensorrt <span[^>]*><svg.*?</svg> never run", page
    )


def test_releases_of_other_teams_have_no_name(admin: User) -> None:
    server = make_server(make_replica(make_release(make_model("secret", team=make_team("ads"))), state="ready"))
    assert "secret r1" in page_of(admin) and "not compared yet" in page_of(admin)
    page = page_of(make_user("ana", team="search"))
    assert "secret" not in page and "another team" in page
    type(server).objects.update(drift_checked_at=timezone.now(), drift=[{"path": "model.onnx"}])
    assert "1 differ" in page_of(admin)


def test_where_a_release_would_fit_is_told_to_who_may_read_it(admin: User) -> None:
    make_node("local")
    make_release(make_model("secret", team=make_team("ads")))
    assert "Where secret/r1 would fit" in page_of(admin, fit="secret/r1")
    for fit, user in (("secret/r1", make_user("ana", team="search")), ("none", admin), ("secret/r99", admin)):
        assert signed_in(user).get(reverse("fleet"), {"fit": fit}).status_code == 404


def test_an_estimate_of_gpu_memory_is_shown_as_one_with_its_parts(admin: User) -> None:
    make_node("local")
    asks = {"accelerator": {"vendor": "nvidia"}, "engine": {"workspace_mib": 96}}
    resealed(make_release(make_model("sentiment")), envelope=asks)
    tab = signed_in(admin).get(reverse("release_replicas", args=["sentiment", 1])).text
    for page in (page_of(admin, fit="sentiment/r1"), tab):
        assert "GPU memory: an estimate before the run" in page and "envelope.engine.workspace_mib, as declared" in page
        assert "About 98 MiB on each device" in squeezed(page) and "the CUDA context and libraries" in page
    make_release(make_model("plain"))
    assert "an estimate before the run" not in page_of(admin, fit="plain/r1")


def test_the_api_lists_nodes(admin: User) -> None:
    make_server(make_replica(state="ready"))
    client: Client = signed_in(admin)
    (node,) = client.get("/api/v1/nodes").json()["results"]
    assert node["gpus"] is None and node["state"] == "reachable" and node["replicas"][0]["drifted_files"] is None


def test_the_page_asks_few_questions_however_many_nodes(admin: User) -> None:
    client, address = signed_in(admin), reverse("fleet")
    for number in (1, 200):
        for one in range(number):
            make_node(f"node-{number}-{one}")
        make_server(make_replica(state="ready"))
        assert queries_of(client, address) <= MOST_QUERIES


def test_what_a_nodes_replicas_hold_and_declare_is_summed(admin: User) -> None:
    told = resealed(make_release(make_model("told")), envelope={"host": {"memory_mib_min": 512}})
    untold = make_release(make_model("untold", team=make_team("vision")))
    for node, releases in (("a", (told, told, untold, told)), ("b", (told,)), ("c", ())):
        make_node(node)
        for release in releases:
            ordinal = Replica.objects.count()
            where = {"node_id": node, "environment": make_environment("production")}
            one = Replica.objects.create(release=release, state="ready", ordinal=ordinal, **where)
            make_server(one, memory_bytes=None if ordinal == 3 else 100 * 2**20)
    a, b, c = fleet_of(make_admin())
    assert [len(one.held) for one in (a, b, c)] == [4, 1, 0]
    assert [(one.declared_mib, one.undeclared) for one in (a, b, c)] == [(1536, 1), (512, 0), (0, 0)]
    assert [one.measured_mib for one in (a, b, c)] == [None, 100, 0]
    page = page_of(admin)
    assert "1536 MiB declared" in page and "Nothing runs here" in page
    other = fleet_of(actor_for(make_user("zoe", team="vision", role=Role.MODEL_TEAM)))[0]
    assert (other.declared_mib, other.undeclared) == (0, 4)
    listed = signed_in(admin).get("/api/v1/nodes").json()["results"]
    assert [(one["measured_memory_mib"], one["replica_count"]) for one in listed] == [(None, 4), (100, 1), (0, 0)]


def test_of_a_server_that_somebody_else_runs_nothing_is_said_to_be_known(admin: User) -> None:
    server = make_server(make_replica(state="ready"))
    told = {"address": "10.20.0.7:8000:8001", "loads": "request"}
    Node.objects.update(facts={"static": told, "containment": {"tier": "unknown"}})
    Server.objects.filter(pk=server.pk).update(pid=0, digest="")
    page = page_of(admin)
    assert "external, at 10.20.0.7:8000:8001: Sluicegate loads releases into it" in page.replace("&#x27;", "'")
    assert "Somebody else runs its server: what that serves cannot be proven from here." in page
    assert "not compared yet" not in page and "as sealed" not in page and "attested</span>" not in page
    Node.objects.update(facts={"static": {**told, "loads": "nothing"}})
    page = page_of(admin)
    assert "its owner chooses the model, and Sluicegate cannot prove that this is the release" in page
    assert "It takes nothing." not in page
    Node.objects.update(facts={"static": told, "missing": f"It takes nothing. {HOSTILE}"})
    page = page_of(admin)
    assert "not every kind</span> It takes nothing." in page and HOSTILE not in page
    Node.objects.update(runtimes=[])
    assert "nothing</span> It takes nothing." in page_of(admin)
