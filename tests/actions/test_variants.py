"""Servers of a release under another batching: they come up beside its own, and go with whoever asked for them."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

import validators.execution.variants as variants_module
from accounts.core.access import Actor
from ledger.core.errors import Refused
from registry.models import Release
from serving import actions, queries
from serving.agent.variants import VariantReconciler
from serving.core.lifecycle import DeploymentState
from serving.core.variants import Batching
from serving.models import Deployment, Environment, Node, Server, Variant
from serving.ports import LaunchError
from tests.support.fakes.ports import FakeInferenceServer
from tests.support.worlds.deployment_setup import QUICK, SYSTEM, Clock, World, clock, model, node, release, staging  # noqa: F401
from validators.execution.gates.context import NotServed
from validators.execution.variants import served

pytestmark = pytest.mark.django_db
OTHER = Batching(4, 500)


class VariantWorld(World):
    """An agent that is turned whenever somebody waits, and nothing else takes time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *made: Any) -> None:
        super().__init__(*made)
        self.until(DeploymentState.READY)
        self.reconcilers: dict[int, VariantReconciler] = {}
        for name in ("monotonic", "sleep"):
            monkeypatch.setattr(variants_module, name, getattr(self, name))
        monkeypatch.setattr(variants_module, "inference_server", self.client)

    def monotonic(self) -> float:
        return self.clock.now

    def sleep(self, seconds: float) -> None:
        self.clock.now += seconds
        self.turn()

    def turn(self) -> None:
        for pk in queries.live_variants().values_list("pk", flat=True):
            self.reconcilers.setdefault(pk, self.new_variant_reconciler(pk)).step()

    def new_variant_reconciler(self, pk: int) -> VariantReconciler:
        agent = Actor.system("agent:local")
        return VariantReconciler(pk, actor=agent, launcher=self.launcher, connect=self.launcher.connect, pace=QUICK)

    def client(self, variant: Variant) -> FakeInferenceServer:
        return self.launcher.running[self.launcher.started[-1].folder][1]

    @contextmanager
    def served(self, wait_s: float = 10.0) -> Iterator[Any]:
        with served(self.row, OTHER, actor=SYSTEM, wait_s=wait_s, beat=lambda: None) as found:
            yield found


@pytest.fixture
def agent(
    monkeypatch: pytest.MonkeyPatch, release: Release, staging: Environment, node: Node, clock: Clock
) -> VariantWorld:
    return VariantWorld(monkeypatch, release, staging, clock)


def test_another_batching_is_served_beside_the_releases_own(agent: VariantWorld) -> None:
    own = Server.objects.get()
    with agent.served() as (server, _):
        launched = agent.launcher.started[-1]
        assert launched.serving is not None and launched.serving["max_batch_size"] == 4
        assert launched.serving["dynamic_batching"]["max_queue_delay_us"] == 500
        assert launched.manifest["serving"]["max_batch_size"] == 8
        assert server.is_live() and len(agent.launcher.running) == 2
    variant = Variant.objects.get()
    assert variant.ended_at is not None and variant.ready_at is not None
    assert len(agent.launcher.running) == 1
    assert list(Server.objects.values_list("pk", "ended_at", "folder")) == [(own.pk, None, own.folder)]
    assert Deployment.objects.get().state == DeploymentState.READY


def test_the_server_of_a_worker_that_was_killed_ends_and_the_releases_own_stays(agent: VariantWorld) -> None:
    asked = actions.ask_variant(actor=SYSTEM, deployment=agent.row, batching=OTHER, for_s=30)
    assert asked is not None
    agent.turn()
    asked.refresh_from_db()
    assert asked.ready_at is not None and len(agent.launcher.running) == 2  # and now its worker is killed
    agent.turn()
    assert len(agent.launcher.running) == 2
    Variant.objects.update(until=timezone.now() - timedelta(seconds=1))
    agent.turn()
    asked.refresh_from_db()
    assert asked.ended_at is not None and "whoever asked for it is gone" in asked.end_reason
    (server,) = Server.objects.all()
    assert [str(folder) for folder in agent.launcher.running] == [server.folder]
    assert server.is_serving and server.ended_at is None
    assert agent.launcher.started[0].serving is None


def test_the_next_worker_waits_until_the_one_that_was_left_is_gone(agent: VariantWorld) -> None:
    left = actions.ask_variant(actor=SYSTEM, deployment=agent.row, batching=Batching(2, 0), for_s=30)
    assert left is not None
    agent.turn()
    assert actions.ask_variant(actor=SYSTEM, deployment=agent.row, batching=OTHER, for_s=30) is None
    with agent.served():
        left.refresh_from_db()
        assert left.ended_at is not None and len(agent.launcher.running) == 2
        assert queries.live_variants().get().max_batch_size == 4


def test_one_that_does_not_load_says_why(agent: VariantWorld) -> None:
    agent.launcher.fail.append(LaunchError("load_failed", "no memory"))
    with pytest.raises(NotServed, match="load_failed: no memory"), agent.served():
        pass
    assert len(agent.launcher.running) == 1
    agent.behaviour.load_error = "it is corrupt"
    with pytest.raises(NotServed, match="it is corrupt"), agent.served():
        pass
    assert len(agent.launcher.running) == 1, "what was started is ended"


def test_one_that_takes_too_long_is_given_up(agent: VariantWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "turn", lambda: None)
    with pytest.raises(NotServed, match="it was not ready within 2 s"), agent.served(wait_s=2):
        pass
    assert Variant.objects.get().until <= timezone.now()


def test_what_keeps_it_prolongs_it_and_tells_that_it_is_over(agent: VariantWorld) -> None:
    with agent.served() as (server, keep):
        before = Variant.objects.get().until
        agent.clock.now += 6
        keep()
        assert Variant.objects.get().until > before
        server.is_down = True
        agent.turn()
        agent.clock.now += 6
        with pytest.raises(NotServed, match="its server process ended"):
            keep()


def test_a_gate_that_is_stopped_gives_it_up_at_once(agent: VariantWorld) -> None:
    with pytest.raises(KeyboardInterrupt), agent.served():
        raise KeyboardInterrupt
    agent.turn()
    assert len(agent.launcher.running) == 1


def test_a_new_agent_gives_up_what_an_earlier_one_had_brought_up(agent: VariantWorld) -> None:
    asked = actions.ask_variant(actor=SYSTEM, deployment=agent.row, batching=OTHER, for_s=30)
    assert asked is not None
    agent.turn()
    agent.new_variant_reconciler(asked.pk).step()
    asked.refresh_from_db()
    assert asked.end_reason == "the node's agent began anew"


def test_it_ends_with_its_deployment(agent: VariantWorld) -> None:
    asked = actions.ask_variant(actor=SYSTEM, deployment=agent.row, batching=OTHER, for_s=30)
    agent.turn()
    Deployment.objects.update(is_wanted=False)
    agent.turn()
    assert asked is not None and Variant.objects.get(pk=asked.pk).ended_at is not None


def test_who_may_not_run_gates_may_ask_for_none(agent: VariantWorld) -> None:
    with pytest.raises(Refused):
        actions.ask_variant(actor=Actor("nobody", user_id=1), deployment=agent.row, batching=OTHER, for_s=30)


@pytest.mark.parametrize("is_time_over", [False, True])
def test_what_comes_after_one_that_was_given_up_does_not_share_the_machine_with_it(
    agent: VariantWorld, is_time_over: bool
) -> None:
    def beat() -> None:
        if is_time_over and live().ready_at:
            raise NotServed("no time was left")

    def live() -> Variant:
        return queries.live_variants().get()

    def cut() -> None:
        with served(agent.row, OTHER, actor=SYSTEM, wait_s=10, beat=beat):
            assert len(agent.launcher.running) == 2
            raise NotServed("it was cut")

    with pytest.raises(NotServed, match="it was cut"):
        cut()
    assert len(agent.launcher.running) == 1 and not queries.live_variants().exists()


def test_rows_of_those_that_are_over_are_kept_for_a_day(agent: VariantWorld) -> None:
    for _ in range(2):
        with agent.served():
            pass
    assert Variant.objects.count() == 2
    old = Variant.objects.earliest("pk")
    Variant.objects.filter(pk=old.pk).update(ended_at=timezone.now() - timedelta(days=2))
    with agent.served():
        pass
    assert Variant.objects.count() == 2 and not Variant.objects.filter(pk=old.pk).exists()


def test_one_whose_release_is_taken_away_says_so(agent: VariantWorld) -> None:
    Deployment.objects.update(is_wanted=False)
    with pytest.raises(NotServed, match="the release is taken away from there"), agent.served():
        pass


def test_one_that_loads_longer_than_its_asker_waits_is_not_loaded_to_the_end(agent: VariantWorld) -> None:
    asked = actions.ask_variant(actor=SYSTEM, deployment=agent.row, batching=OTHER, for_s=30)
    agent.launcher.loading = lambda: Variant.objects.update(until=timezone.now() - timedelta(seconds=1))
    agent.turn()
    assert asked is not None and "whoever asked for it is gone" in Variant.objects.get(pk=asked.pk).end_reason
    assert len(agent.launcher.running) == 1
