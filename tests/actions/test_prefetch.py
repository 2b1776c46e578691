"""Files are on every node that may serve a release before it is placed there: what is kept, in which order, and what that saves."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from accounts.core.access import Actor
from ledger.core.errors import Refused
from registry.models import Release
from serving.actions.deployments import ensure_deployment
from serving.actions.nodes import cordon_node
from serving.actions.prefetch import FilesReport, record_prefetches, record_progress
from serving.actions.replicas import continue_placing
from serving.agent import prefetcher
from serving.agent.node_agent import Agent
from serving.core.prefetch import FilesStanding, Reason
from serving.models import Deployment, Node, Prefetch, Route
from serving.queries.deployments import answering_servers
from serving.queries.prefetch import files_on_nodes, releases_to_keep
from tests.actions.test_blob_cache import Source, source  # noqa: F401
from tests.deployment_setup import Clock, clock  # noqa: F401
from tests.factories import (
    make_actor,
    make_admin,
    make_deployment,
    make_environment,
    make_model,
    make_node,
    make_release,
    resealed,
)
from tests.prefetch_setup import Machine, make_deployment_on, sealed_with, standings
from tests.rollout_setup import production, serves

pytestmark = pytest.mark.django_db
SYSTEM = Actor.system("test")


def candidate_of(stable: Release, **over: Any) -> None:
    route = Route.objects.filter(stable=stable)
    route.update(**{"candidate": over["candidate"], "candidate_bp": over.get("bp", 0)})


def test_what_nodes_keep_is_what_may_be_placed_on_them(source: Source) -> None:
    stable, candidate, former, measured = (sealed_with(source, bytes([n])) for n in range(4))
    serves(stable)
    serves(other := sealed_with(source, b"other"))
    candidate_of(stable, candidate=candidate)
    for one in (stable, candidate, former):
        make_deployment(one, production(), state="ready")
    make_deployment(measured, make_environment("staging", is_routed=False), state="ready")
    leaving = sealed_with(source, b"leaving")
    make_deployment(leaving, production(), state="ready", is_wanted=False)
    assert list(releases_to_keep().items()) == [
        (candidate.pk, Reason.CANDIDATE),
        (former.pk, Reason.SERVED),
        *((one.pk, Reason.STABLE) for one in (other, stable)),
    ]


def test_every_node_that_may_serve_it_fetches_the_candidate_and_says_how_far_it_is(
    source: Source, tmp_path: Path
) -> None:
    a, b = (Machine(name, tmp_path / name, source) for name in "ab")
    make_node("cordoned", facts={"fetches_ahead": True})
    cordon_node(actor=make_admin(), node=Node.objects.get(name="cordoned"), reason="repairs")
    make_node("other-runtime", runtimes=[], facts={"fetches_ahead": True})
    make_node("old-agent")
    release = sealed_with(source, b"w" * 2500, b"v" * 100)
    ensure_deployment(actor=SYSTEM, release=release, environment=production(), reason="a rollout")
    Deployment.objects.update(node="a")
    assert standings(release) == {"a": FilesStanding.WAITING, "b": FilesStanding.WAITING, "old-agent": None}
    a.bring_up()
    assert standings(release)["a"] is FilesStanding.READY  # each file was verified as it was placed
    assert b.look() == 0.0 and b.told() == {release.pk: "waiting"}
    assert b.look() == 0.0 and standings(release)["b"] is FilesStanding.FETCHING
    (half,) = Prefetch.objects.filter(node="b")
    assert (half.size_bytes, half.here_bytes) == (2600, 2500)
    assert b.look() > 0.0 and standings(release) == {
        "a": FilesStanding.READY,
        "b": FilesStanding.READY,
        "old-agent": None,
    }
    a.settle()
    assert a.cache.moved_bytes == b.cache.moved_bytes == 2600  # a's own server's files are those that it keeps


def test_a_lost_nodes_replica_comes_up_elsewhere_without_a_fetch(source: Source, tmp_path: Path, clock: Clock) -> None:
    a, b = (Machine(name, tmp_path / name, source) for name in "ab")
    stable = sealed_with(source, b"s" * 3000)
    serves(stable)
    make_deployment_on("a", stable)
    a.bring_up()
    b.settle()
    asked, moved = len(source.asked), b.cache.moved_bytes
    assert moved == 3000
    Node.objects.filter(name="a").update(seen_at=timezone.now() - timedelta(seconds=61))
    assert continue_placing(actor=SYSTEM) == []
    b.bring_up()
    assert [one.deployment.node_id for one in answering_servers().filter(deployment__node="b")] == ["b"]
    assert len(source.asked) == asked and b.cache.moved_bytes == moved


def test_what_does_not_fit_is_said_and_drives_nothing_else_out(source: Source, tmp_path: Path) -> None:
    a = Machine("a", tmp_path / "a", source, max_bytes=3000)
    serves(stable := sealed_with(source, b"s" * 2000))
    a.settle()
    make_node("b")
    make_deployment_on("b", candidate := sealed_with(source, b"c" * 1500))
    a.settle()
    assert a.told() == {candidate.pk: "ready", stable.pk: "no_room"}  # what is to be served first takes the room
    (row,) = Prefetch.objects.filter(release=stable)
    assert row.trouble == "It does not fit into the 3000 bytes that this node's copies may take."
    assert standings(stable)["a"] is FilesStanding.NO_ROOM and not any(
        one.is_under_way for one in files_on_nodes(stable)
    )


def test_what_is_no_longer_to_be_kept_is_forgotten_and_goes_first(source: Source, tmp_path: Path) -> None:
    a = Machine("a", tmp_path / "a", source, max_bytes=3500)
    serves(stable := sealed_with(source, b"s" * 2000))
    make_node("b")
    former = make_deployment_on("b", sealed_with(source, b"f" * 1000))
    a.settle()
    assert set(a.told()) == {stable.pk, former.release_id}
    Deployment.objects.update(state="gone", is_wanted=False)
    a.settle()
    assert a.told() == {stable.pk: "ready"} and a.cache.moved_bytes == 3000
    serves(sealed_with(source, b"n" * 1500))
    a.settle()
    assert set(a.told().values()) == {"ready"} and a.cache.moved_bytes == 4500
    assert sorted(path.stat().st_size for path in a.cache.folder.glob("??/*")) == [1500, 2000]


@pytest.mark.parametrize("harm", ["away", "damaged"])
def test_what_cannot_be_had_is_said_and_holds_up_nothing_else(
    source: Source, tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = Machine("a", tmp_path / "a", source)
    serves(good := sealed_with(source, b"good"))
    serves(bad := sealed_with(source, b"bad"))  # changed last, so it is fetched first
    (sha256,) = (one for one, data in source.data.items() if data == b"bad")
    source.data.pop(sha256) if harm == "away" else source.data.update({sha256: b"worse"})
    a.settle()
    assert a.told() == {bad.pk: "failed", good.pk: "ready"}
    (row,) = Prefetch.objects.filter(release=bad)
    said = {"away": "could not be fetched", "damaged": "are damaged"}[harm]
    assert sha256 in row.trouble and said in row.trouble and not any(one.is_under_way for one in files_on_nodes(bad))
    source.data[sha256] = b"bad"
    monkeypatch.setattr(prefetcher.time, "monotonic", lambda: 1e12)  # the pause is over
    a.settle()
    assert a.told() == {bad.pk: "ready", good.pk: "ready"}


def test_a_node_that_cannot_look_at_its_copies_says_so_and_is_not_waited_for(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = Machine("a", tmp_path / "a", source)
    serves(release := sealed_with(source, b"x" * 2500))
    with monkeypatch.context() as broken:
        broken.setattr(a.cache, "in_use", raising(OSError("Input/output error")))
        assert a.look() > 0.0 and a.told() == {release.pk: "failed"}
        (one,) = files_on_nodes(release)
        assert "Input/output error" in one.trouble and not one.is_under_way
        broken.setattr(a.cache, "in_use", raising(OperationalError("the database is away")))
        with pytest.raises(OperationalError):  # as everywhere in the agent: it waits for the database
            a.look()
    a.settle()
    assert a.told() == {release.pk: "ready"}


def raising(error: Exception) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


def test_who_makes_no_progress_is_not_waited_for(source: Source, tmp_path: Path) -> None:
    a = Machine("a", tmp_path / "a", source)
    serves(release := sealed_with(source, b"x" * 2500))
    now = timezone.now().timestamp()
    (one,) = files_on_nodes(release)
    assert one.standing is FilesStanding.WAITING and one.changed_at is None
    assert one.is_waited_for(now, since=now - 119) and not one.is_waited_for(now, since=now - 121)
    a.look(lambda seconds: True)
    Prefetch.objects.update(changed_at=timezone.now() - timedelta(seconds=300))
    (one,) = files_on_nodes(release)
    assert one.is_waited_for(now, since=now - 119) and not one.is_waited_for(now, since=now - 121)
    record_progress(actor=SYSTEM, node="a")
    (one,) = files_on_nodes(release)
    assert one.is_waited_for(now, since=now - 900)
    a.settle()
    (one,) = files_on_nodes(release)
    assert not one.is_waited_for(now, since=now)  # it has them


def test_a_silent_node_is_waited_for_by_nobody(source: Source, tmp_path: Path) -> None:
    Machine("a", tmp_path / "a", source)
    release = sealed_with(source, b"x")
    Node.objects.update(seen_at=timezone.now() - timedelta(seconds=31))
    (one,) = files_on_nodes(release)
    assert one.standing is None and not one.is_under_way and "not been heard of" in one.trouble


def test_a_node_that_may_serve_it_no_more_keeps_it_no_more(source: Source, tmp_path: Path) -> None:
    a = Machine("a", tmp_path / "a", source)
    serves(stable := sealed_with(source, b"x", envelope={"host": {"memory_mib_min": 1000}}))
    a.settle()
    assert a.told() == {stable.pk: "ready"}
    Node.objects.update(facts={"memory_bytes": 500 * 2**20, "fetches_ahead": True})
    a.settle()
    assert a.told() == {} and standings(stable) == {}
    Node.objects.update(facts={"fetches_ahead": True})
    a.settle()
    assert a.told() == {stable.pk: "ready"}
    Node.objects.update(cordoned_at=timezone.now())
    a.settle()
    assert a.told() == {}


def test_where_nothing_changes_nothing_is_written_and_little_is_asked(
    source: Source, tmp_path: Path, django_assert_max_num_queries: Any
) -> None:
    a = Machine("a", tmp_path / "a", source)
    for number in range(5):
        serves(sealed_with(source, b"x%d" % number))
    a.settle()
    before = list(Prefetch.objects.values_list("pk", "changed_at"))
    with django_assert_max_num_queries(3):
        a.look()
    a.prefetcher._settled = None
    with django_assert_max_num_queries(8) as asked:
        a.look()
    assert not any(one["sql"].startswith(("INSERT", "UPDATE", "DELETE")) for one in asked.captured_queries)
    assert list(Prefetch.objects.values_list("pk", "changed_at")) == before


def test_only_an_agent_tells_what_a_node_keeps() -> None:
    release = make_release()
    make_node("a")
    with pytest.raises(Refused):
        record_prefetches(actor=make_actor(), node="a", told=[FilesReport(release.pk, FilesStanding.READY, 1, 1)])


def test_a_release_that_cannot_be_read_keeps_no_other_back(source: Source, tmp_path: Path) -> None:
    a = Machine("a", tmp_path / "a", source)
    serves(good := sealed_with(source, b"good"))
    serves(resealed(make_release(make_model()), files=[{"path": "artifact/model.onnx"}]))
    a.settle()
    assert a.told() == {good.pk: "ready"}


@pytest.mark.django_db(transaction=True)
def test_the_agent_fetches_ahead_by_itself_and_says_that_it_does(source: Source, tmp_path: Path) -> None:
    a = Machine("a", tmp_path / "a", source)
    serves(stable := sealed_with(source, b"x" * 2500))
    Node.objects.filter(name="a").update(facts={})
    agent = Agent(node="a", servers=tmp_path / "servers", launcher=a, connect=a.connect, prefetcher=a.prefetcher)
    running = threading.Thread(target=agent.run)
    running.start()
    try:
        waited = threading.Event()
        for _ in range(6000):
            if a.told().get(stable.pk) == "ready":
                break
            waited.wait(0.01)
        assert standings(stable) == {"a": FilesStanding.READY} and Node.objects.get(name="a").facts["fetches_ahead"]
    finally:
        agent.stop()
        running.join(60)
        connection.close()
