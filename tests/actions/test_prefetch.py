"""Files are on every node that may serve a release before it is placed there: what is kept, in which order, and what that saves."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from accounts.core.access import Actor
from ledger.core.errors import Refused
from registry.models import Release
from serving.actions.deployments import ensure_deployment
from serving.actions.nodes import cordon_node
from serving.actions.placement import continue_placing
from serving.actions.prefetch import FilesReport, record_prefetches, record_progress
from serving.agent import model_repository, prefetcher
from serving.agent.blob_cache import BlobCache
from serving.agent.node_agent import Agent
from serving.agent.prefetcher import Prefetcher
from serving.agent.reconciler import DeploymentReconciler
from serving.core.prefetch import FilesStanding, Reason
from serving.models import Deployment, Node, Prefetch, Route
from serving.ports import LaunchSpec, RunningServer
from serving.queries.deployments import answering_servers
from serving.queries.prefetch import files_on_nodes, releases_to_keep
from tests.actions.test_blob_cache import Source, source, until  # noqa: F401
from tests.contracts import serving_models as made
from tests.deployment_setup import QUICK, Clock, clock  # noqa: F401
from tests.factories import (
    RUNTIME,
    make_actor,
    make_admin,
    make_deployment,
    make_environment,
    make_model,
    make_node,
    make_release,
    resealed,
)
from tests.fakes.ports import FakeLauncher, FakeModel
from tests.rollout_setup import production, serves

pytestmark = pytest.mark.django_db
SYSTEM = Actor.system("test")
ROOMY = 2**40


def sealed_with(source: Source, *contents: bytes, **manifest: Any) -> Release:
    """A release of a model of its own, with these files, which the source has."""
    release = make_release(make_model())
    files = []
    for number, content in enumerate(contents):
        sha256, size = source.put(content)
        path = "artifact/model.onnx" if number == 0 else f"artifact/weights-{number}.bin"
        files.append({"path": path, "role": "artifact", "sha256": sha256, "size_bytes": size})
    return resealed(release, files=files, serving=made.serving(), **manifest)


class Machine(FakeLauncher):
    """A node with a real cache of its own: servers are fakes, their files are not."""

    def __init__(self, name: str, folder: Path, source: Source, *, max_bytes: int = ROOMY, pace: float = 1e12) -> None:
        super().__init__(
            [{"image": RUNTIME, "server": "triton", "backends": ["onnxruntime"], "versions": {}}], self._model
        )
        self.name, self.folder, self.actor = name, folder, Actor.system(f"agent:{name}")
        self.cache = BlobCache(folder / "cache", source, max_bytes=max_bytes)
        self.prefetcher = Prefetcher(self.cache, bytes_per_s=pace)
        make_node(name, facts={"fetches_ahead": True})

    def _model(self, spec: LaunchSpec) -> FakeModel:
        return FakeModel(spec.manifest["serving"], lambda arrays: {"y": arrays["x"]})

    def folder_for(self, deployment_id: int, model: str, release_name: str) -> Path:
        return self.folder / f"{model}-{deployment_id}-{next(self._pids)}"

    def start(self, spec: LaunchSpec) -> RunningServer:
        model_repository.write(spec, self.cache, spec.folder)
        return super().start(spec)

    def look(self, wait: Callable[[float], bool] = lambda seconds: False) -> float:
        return self.prefetcher.look(actor=self.actor, node=self.name, wait=wait)

    def settle(self, most: int = 50) -> None:
        """Looks until nothing is to be done at once."""
        for _ in range(most):
            if self.look():
                return
        raise AssertionError("it fetches without an end")

    def bring_up(self) -> None:
        """Every deployment of this node is brought up."""
        for one in Deployment.objects.filter(node=self.name, is_wanted=True).exclude(state="ready"):
            reconciler = DeploymentReconciler(one.pk, actor=self.actor, launcher=self, connect=self.connect, pace=QUICK)
            while one.state != "ready":
                reconciler.step()
                one.refresh_from_db()
                assert one.state != "failed", one.reason

    def told(self) -> dict[UUID, str]:
        return dict(Prefetch.objects.filter(node=self.name).values_list("release", "standing"))


def standings(release: Release) -> dict[str, FilesStanding | None]:
    return {one.node: one.standing for one in files_on_nodes(release)}


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


def make_deployment_on(node: str, release: Release, **over: Any) -> Deployment:
    made_one = make_deployment(release, production(), **over)
    Deployment.objects.filter(pk=made_one.pk).update(node=node)
    Node.objects.filter(name="local").delete()  # the factory's
    made_one.refresh_from_db()
    return made_one


def test_its_own_deployments_are_fetched_first(source: Source, tmp_path: Path, clock: Clock) -> None:
    a = Machine("a", tmp_path / "a", source)
    serves(ahead := sealed_with(source, b"ahead"))
    own = sealed_with(source, b"own")
    make_deployment_on("a", own)
    (sha256,) = (one for one, data in source.data.items() if data == b"own")
    with a.cache._counted(sha256):  # a server waits for it, and is about to fetch
        assert a.look() > 0.0 and source.asked == [] and a.told() == {own.pk: "waiting", ahead.pk: "waiting"}
    a.bring_up()
    assert source.asked == [(0, len(b"own"))]
    a.settle()
    assert a.told() == {own.pk: "ready", ahead.pk: "ready"}


def test_a_deployment_that_waits_for_its_next_try_is_in_nobodys_way(
    source: Source, tmp_path: Path, clock: Clock
) -> None:
    a = Machine("a", tmp_path / "a", source)
    serves(ahead := sealed_with(source, b"ahead"))
    own = make_deployment_on("a", sealed_with(source, b"own"))
    (sha256,) = (one for one, data in source.data.items() if data == b"own")
    del source.data[sha256]
    DeploymentReconciler(own.pk, actor=a.actor, launcher=a, connect=a.connect, pace=QUICK).step()
    own.refresh_from_db()
    assert own.state == "fetching" and "It is tried again" in own.reason
    a.settle()
    assert a.told() == {own.release_id: "failed", ahead.pk: "ready"}


def test_within_a_blob_it_stands_still_while_a_server_waits_for_another(source: Source, tmp_path: Path) -> None:
    a = Machine("a", tmp_path / "a", source)
    serves(sealed_with(source, b"x" * 5000))
    needed, size = source.put(b"needed")
    stood, done = list[float](), threading.Event()
    holding = a.cache._locks[needed]

    def wait(seconds: float) -> bool:
        """After the first range a server asks for another blob, and is answered once this one has stood still twice."""
        if not placing.is_alive() and not done.is_set():
            holding.acquire()
            placing.start()
            while not a.cache.is_busy:
                done.wait(0.001)
            done.set()
        elif seconds == prefetcher._STEP_ASIDE_S:
            stood.append(len(source.asked))
            if len(stood) == 2:
                holding.release()
                placing.join(60)
        return False

    placing = threading.Thread(target=a.cache.place, args=(needed, size, tmp_path / "file"))
    a.look(wait)
    assert stood == [1, 1] and (tmp_path / "file").read_bytes() == b"needed"
    assert a.cache.moved_bytes == 5000 + size


@pytest.mark.parametrize("pace", [1e12, 500.0])
@pytest.mark.parametrize("size", [5000, 1000])
def test_it_does_not_stand_still_for_a_server_that_waits_for_the_very_blob(
    source: Source, tmp_path: Path, size: int, pace: float
) -> None:
    a = Machine("a", tmp_path / "a", source, pace=pace)
    serves(sealed_with(source, b"y" * size))
    (y,) = source.data
    x = source.put(b"x")
    held, waits, stood = a.cache._locks[x[0]], list[float](), list[float]()

    def place_both() -> None:
        a.cache.place(*x, tmp_path / "x")
        a.cache.place(y, size, tmp_path / "y")

    def wait(seconds: float) -> bool:
        """A server asks for x during the first wait, and is answered and asks for y, while that is fetched, during the second."""
        waits.append(seconds)
        if len(waits) == 1:
            held.acquire()
            server.start()
            until(lambda: a.cache.is_busy)
        elif len(waits) == 2:
            held.release()
            until(lambda: a.cache.is_awaited(y) or not server.is_alive())
        elif server.is_alive() and a.cache.is_busy:
            stood.append(seconds)
        return bool(stood)  # it would never end by itself

    server = threading.Thread(target=place_both, daemon=True)
    a.look(wait)
    server.join(60)
    assert stood == [] and len(waits) >= 2 and (tmp_path / "y").read_bytes() == b"y" * size
    assert a.cache.moved_bytes == size + 1


def test_it_fetches_no_faster_than_it_was_told(source: Source, tmp_path: Path) -> None:
    a, waits = Machine("a", tmp_path / "a", source, pace=500.0), list[float]()
    serves(sealed_with(source, b"x" * 2500))
    a.look(lambda seconds: bool(waits.append(seconds)))
    assert sum(waits) == pytest.approx(5.0) and max(waits) <= prefetcher._STEP_ASIDE_S


def test_an_agent_that_ends_leaves_the_blob_to_the_next(source: Source, tmp_path: Path) -> None:
    a = Machine("a", tmp_path / "a", source)
    serves(stable := sealed_with(source, b"x" * 2500))
    a.look(lambda seconds: True)
    assert a.cache.moved_bytes == 1000 and a.told() == {stable.pk: "waiting"}
    assert list((tmp_path / "a" / "cache" / "incoming").iterdir()) == []


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


def test_within_a_large_blob_it_says_that_it_goes_on(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = Machine("a", tmp_path / "a", source)
    serves(release := sealed_with(source, b"x" * 3500))
    now, changed = [1000.0], list[Any]()
    monkeypatch.setattr(prefetcher.time, "monotonic", lambda: now[0])

    def wait(seconds: float) -> bool:
        changed.append(Prefetch.objects.get(node="a", release=release).changed_at)
        now[0] += prefetcher._TELL_EVERY_S / 2
        return False

    a.look(wait)
    assert len(changed) == 4 and changed[0] == changed[1] < changed[2] == changed[3]


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
