"""What an agent makes of a replica: brought up, brought back, and let go."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ledger.models import Event
from registry.models import Release
from serving.environments.core.lifecycle import ReplicaState
from serving.models import Environment, Node, Replica, Server
from serving.ports import InferenceError, LaunchError, LaunchSpec
from serving.targets import actions, queries
from serving.targets.agent.launcher import visible_devices
from serving.targets.agent.reconciler import devices_of
from serving.targets.agent.timings import load_timeout_of
from tests.support.fakes.ports import FakeModel
from tests.support.worlds.replica_setup import (  # noqa: F401
    QUICK,
    SYSTEM,
    Clock,
    S,
    World,
    clock,
    ensure,
    model,
    node,
    production,
    release,
    staging,
    verbs_of,
    world,
)

pytestmark = pytest.mark.django_db


def test_gateways_are_woken_by_every_change_of_an_endpoint(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[str] = []
    monkeypatch.setattr("serving.targets.actions.lifecycle.notify_routes", lambda: woken.append(world.state))
    world.until(S.READY)
    assert woken
    woken.clear()
    world.server.is_down = True
    world.reconciler.step()
    assert woken


@pytest.mark.takes("deployment: fetching → loading", "deployment: loading → warming", "deployment: warming → ready")
def test_it_fetches_loads_warms_and_is_ready(world: World, release: Release, staging: Environment) -> None:
    row = world.until(S.READY)
    assert set(row.timings) == {"fetch_s", "load_s", "warmup_s"} and row.ready_at
    server = queries.ready_server(release, staging)
    assert server and server.is_serving and server.probed_at
    assert verbs_of(row) == ["deployment.requested", "deployment.fetched", "deployment.loaded", "deployment.ready"]
    world.reconciler.step()
    assert world.state == S.READY


def test_how_a_server_under_trial_ended_is_kept_also_of_one_that_never_came_up(
    world: World, release: Release, staging: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = world.launcher.start

    def dies_as_it_loads(spec: LaunchSpec) -> Any:
        running = started(spec)
        world.launcher.running[spec.folder][1].is_down = True
        return running

    with monkeypatch.context() as patch:
        patch.setattr(world.launcher, "start", dies_as_it_loads)
        world.reconciler.step()
    assert world.state == S.LOADING and Server.objects.get().exit_code == -9
    world.until(S.READY)
    server = queries.ready_server(release, staging)
    assert server and server.exit_code is None
    world.server.is_down = True
    world.reconciler.step()
    server.refresh_from_db()
    assert server.exit_code == -9


def test_of_a_server_that_users_reach_nothing_is_waited_for(
    release: Release, production: Environment, node: Node, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(release, production, clock)
    world.until(S.READY)
    monkeypatch.setattr(world.launcher, "exit_code", lambda server: pytest.fail("it would hold its recovery up"))
    world.server.is_down = True
    world.reconciler.step()
    assert world.state == S.LOADING and Server.objects.get().exit_code is None


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda w: setattr(w.behaviour, "load_error", "the weights are wrong"), "load_failed: the weights are wrong"),
        (
            lambda w: setattr(w.behaviour, "breaks", InferenceError("server_error", "no")),
            "warmup_failed: A warm-up request failed: no",
        ),
        pytest.param(
            lambda w: setattr(w.behaviour, "compute", lambda arrays: {"z": arrays["x"]}),
            "warmup_failed: A warm-up request failed: The answer lacks the outputs y",
            marks=pytest.mark.takes("deployment: warming → failed"),
        ),
        (
            lambda w: w.launcher.fail.append(LaunchError("digest_mismatch", "a byte is wrong")),
            "digest_mismatch: a byte is wrong",
        ),
    ],
    ids=["load", "warm-up", "output", "digest"],
)
def test_what_is_wrong_with_the_release_fails_at_once(world: World, harm: Any, reason: str) -> None:
    harm(world)
    row = world.until(S.FAILED)
    assert row.reason.startswith(reason)
    assert world.launcher.running == {} and queries.server_of(row) is None
    assert len(world.launcher.started) <= 1


def test_what_may_pass_is_tried_again(world: World) -> None:
    world.launcher.fail = [LaunchError("fetch_failed", "the store is away")] * 2
    world.until(S.READY)
    assert len(world.launcher.started) == 1


@pytest.mark.takes("deployment: fetching → failed")
def test_what_does_not_pass_fails_after_a_bounded_number_of_tries(world: World) -> None:
    world.launcher.fail = [LaunchError("fetch_failed", "the store is away")] * 99
    assert "tried 3 times" in world.until(S.FAILED).reason


@pytest.mark.takes("deployment: loading → failed", "deployment: failed → fetching")
def test_a_failed_replica_is_tried_again_when_asked_for(world: World, release: Release, staging: Environment) -> None:
    world.behaviour.load_error = "broken"
    world.until(S.FAILED)
    world.reconciler.step()
    assert world.state == S.FAILED  # not by itself: it never served
    world.behaviour.load_error = ""
    assert ensure(release, staging) == world.row
    world.until(S.READY)
    assert "deployment.retried" in verbs_of(world.row)


@pytest.mark.takes("deployment: ready → loading")
def test_a_dead_model_process_is_brought_back_on_a_new_server(
    world: World, release: Release, staging: Environment
) -> None:
    world.until(S.READY)
    before = queries.ready_server(release, staging)
    world.behaviour.is_dead = True
    world.reconciler.step()  # one probe is enough: the server itself says that the process died
    assert world.state == S.LOADING and queries.ready_server(release, staging) is None
    row = world.until(S.READY)
    assert queries.ready_server(release, staging) != before and row.recoveries == 1
    assert queries.current_servers().count() == 1 and len(world.launcher.running) == 1
    assert Event.objects.filter(subject_type="server", verb="server.lost").count() == 1
    assert Event.objects.filter(subject_type="server", verb="server.recovered").count() == 1


def test_a_dead_server_is_replaced(world: World, release: Release, staging: Environment) -> None:
    world.until(S.READY)
    before = queries.ready_server(release, staging)
    assert before
    world.server.is_down = True
    world.reconciler.step()
    before.refresh_from_db()
    assert not before.is_serving
    world.until(S.READY)
    after = queries.ready_server(release, staging)
    before.refresh_from_db()
    assert after and after.pk > before.pk and before.ended_at and "server process ended" in before.end_reason


@pytest.mark.parametrize(
    ("envelope", "wanted_s"),
    [
        ({}, 120),
        ({"performance": [{"cold_start_s": {"load": 90}}, {"cold_start_s": None}, {}]}, 180),
        ({"performance": [{"cold_start_s": {"load": 3}}]}, 120),
        ({"performance": [{"cold_start_s": {"load": 90}}], "lifecycle": {"load_timeout_s": 30}}, 30),
    ],
)
def test_a_server_may_load_as_long_as_its_release_declares(envelope: dict[str, Any], wanted_s: float) -> None:
    assert load_timeout_of(envelope, default_s=120) == wanted_s


def test_a_server_that_breaks_again_and_again_has_failed(world: World) -> None:
    for _ in range(len(QUICK.backoff)):
        world.until(S.READY)
        world.behaviour.is_dead = True
        world.reconciler.step()
    world.until(S.READY)
    world.behaviour.is_dead = True
    world.reconciler.step()
    assert world.state == S.FAILED and "broke or did not start 4 times in a row" in world.row.reason
    assert world.launcher.running == {}
    world.behaviour.is_dead = False
    world.reconciler.step()
    world.until(S.READY)  # it once served, so it is tried again after a while


@pytest.mark.takes("deployment: ready → draining", "deployment: draining → gone")
def test_a_drained_replica_leaves_no_server(world: World, staging: Environment) -> None:
    world.until(S.READY)
    actions.drain_replica(actor=SYSTEM, replica=world.row, reason="its gates are done")
    row = world.until(S.GONE)
    assert world.launcher.running == {} and row.gone_at and row.reason == "its gates are done"
    assert queries.current_servers().count() == 0
    assert world.reconciler.step() is None


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(S.LOADING, marks=pytest.mark.takes("deployment: loading → draining")),
        pytest.param(S.WARMING, marks=pytest.mark.takes("deployment: warming → draining")),
        pytest.param(S.FAILED, marks=pytest.mark.takes("deployment: failed → gone")),
    ],
)
def test_one_that_is_not_wanted_goes_wherever_it_is(world: World, state: ReplicaState) -> None:
    world.until(S.READY)  # so that what breaks now may pass
    world.behaviour.is_dead = True
    world.behaviour.load_error = "broken" if state == S.FAILED else ""
    world.until(S.LOADING)
    if state == S.WARMING:
        world.behaviour.is_dead, world.behaviour.breaks = False, InferenceError("server_error", "no")
    world.until(state)
    actions.drain_replica(actor=SYSTEM, replica=world.row, reason="never mind")
    world.until(S.GONE)
    assert world.launcher.running == {}


@pytest.mark.takes("deployment: fetching → draining")
def test_a_replica_that_is_not_wanted_before_it_is_up_goes(world: World) -> None:
    actions.drain_replica(actor=SYSTEM, replica=world.row, reason="never mind")
    world.until(S.GONE)
    assert world.launcher.started == []


def test_a_drain_during_a_load_is_noticed(world: World) -> None:
    make = world._make

    def drain_meanwhile(spec: LaunchSpec) -> FakeModel:
        Replica.objects.filter(pk=world.row.pk).update(is_wanted=False, version=world.row.version + 1)
        return make(spec)

    world.launcher._make = drain_meanwhile
    world.until(S.GONE)
    assert world.launcher.running == {}


def test_a_server_of_a_replica_that_went_meanwhile_is_ended_and_not_written_down(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node was removed while the agent stood still."""
    start = world.launcher.start

    def removed_meanwhile(spec: LaunchSpec) -> Any:
        Replica.objects.update(state=S.GONE)
        return start(spec)

    monkeypatch.setattr(world.launcher, "start", removed_meanwhile)
    assert world.reconciler.step() == 0.0
    assert world.reconciler.step() is None
    assert world.launcher.running == {} and not Server.objects.exists()


def test_folders_of_servers_are_named_after_their_release(world: World) -> None:
    world.until(S.READY)
    folder = Path(queries.current_servers()[0].folder)
    assert folder.name.startswith(f"doubling-{world.row.release.name}-{world.row.pk}-")


def test_a_server_is_told_which_devices_it_was_given(world: World) -> None:
    """By the names that CUDA takes; devices that were only counted have none."""
    for devices, told in (({"GPU-1": 9, "MIG-2": None}, ("GPU-1", "MIG-2")), ({"0": 9}, ()), ({}, ())):
        Replica.objects.update(claim={"memory_mib": 0, "devices": devices})
        assert devices_of(Replica.objects.get()) == told
    Replica.objects.update(claim={"memory_mib": 0, "devices": {"GPU-1": 9}})
    world.until(S.READY)
    (spec,) = world.launcher.started
    assert visible_devices(spec.devices) == {"CUDA_VISIBLE_DEVICES": "GPU-1"} and visible_devices(()) == {}
