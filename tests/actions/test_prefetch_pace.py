"""Fetching ahead is in nobody's way: one range at a time, no faster than it may, and never before what a server waits for."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from serving.agent import prefetcher
from serving.agent.reconciler import DeploymentReconciler
from serving.models import Prefetch
from tests.actions.test_blob_cache import Source, source, until  # noqa: F401
from tests.deployment_setup import QUICK, Clock, clock  # noqa: F401
from tests.prefetch_setup import Machine, make_deployment_on, sealed_with
from tests.rollout_setup import serves

pytestmark = pytest.mark.django_db


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
