"""What an agent makes of a deployment: brought up, brought back, let go, and taken over from an agent that died."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import InternalError
from django.utils import timezone

from ledger.models import Event
from registry.models import Release, ServedModel
from serving import actions, queries, wiring
from serving.agent import node_agent
from serving.agent.launcher import visible_devices
from serving.agent.node_agent import Agent
from serving.agent.reconciler import devices_of, load_timeout_of
from serving.agent.warmup import array, requests
from serving.core.lifecycle import DeploymentState
from serving.core.static_servers import StaticServer
from serving.models import Deployment, Environment, Node, Server
from serving.ports import InferenceError, LaunchError, LaunchSpec
from tests.deployment_setup import (  # noqa: F401
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
    sealed,
    staging,
    verbs_of,
    world,
)
from tests.fakes.ports import FakeModel

pytestmark = pytest.mark.django_db


def test_gateways_are_woken_by_every_change_of_an_endpoint(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[str] = []
    monkeypatch.setattr("serving.actions.deployments.notify_routes", lambda: woken.append(world.state))
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


def test_it_warms_up_with_the_releases_own_requests(
    model: ServedModel, staging: Environment, node: Node, clock: Clock
) -> None:
    seen: list[Any] = []
    world = World(
        sealed(model, warmup=[{"batch_size": 2, "inputs": {"x": [1, 2, 3, 4]}}, {"batch_size": 1, "inputs": {"x": 7}}]),
        staging,
        clock,
    )
    world.behaviour.compute = lambda arrays: (seen.append(arrays["x"].tolist()), {"y": arrays["x"]})[1]
    world.until(S.READY)
    assert seen == [[[1, 2, 3, 4], [1, 2, 3, 4]], [[7, 7, 7, 7]]]


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
def test_a_failed_deployment_is_tried_again_when_asked_for(
    world: World, release: Release, staging: Environment
) -> None:
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


# what breaks again and again, what leaves, and who takes over


def test_a_server_that_breaks_again_and_again_has_failed(world: World) -> None:
    for _ in range(len(QUICK.backoff)):
        world.until(S.READY)
        world.behaviour.is_dead = True
        world.reconciler.step()
    world.until(S.READY)
    world.behaviour.is_dead = True
    world.reconciler.step()
    assert world.state == S.FAILED and "brought back 3 times" in world.row.reason
    assert world.launcher.running == {}
    world.behaviour.is_dead = False
    world.reconciler.step()
    world.until(S.READY)  # it once served, so it is tried again after a while


@pytest.mark.takes("deployment: ready → draining", "deployment: draining → gone")
def test_a_drained_deployment_leaves_no_server(world: World, staging: Environment) -> None:
    world.until(S.READY)
    actions.drain_deployment(actor=SYSTEM, deployment=world.row, reason="its gates are done")
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
def test_one_that_is_not_wanted_goes_wherever_it_is(world: World, state: DeploymentState) -> None:
    world.until(S.READY)  # so that what breaks now may pass
    world.behaviour.is_dead = True
    world.behaviour.load_error = "broken" if state == S.FAILED else ""
    world.until(S.LOADING)
    if state == S.WARMING:
        world.behaviour.is_dead, world.behaviour.breaks = False, InferenceError("server_error", "no")
    world.until(state)
    actions.drain_deployment(actor=SYSTEM, deployment=world.row, reason="never mind")
    world.until(S.GONE)
    assert world.launcher.running == {}


@pytest.mark.takes("deployment: fetching → draining")
def test_a_deployment_that_is_not_wanted_before_it_is_up_goes(world: World) -> None:
    actions.drain_deployment(actor=SYSTEM, deployment=world.row, reason="never mind")
    world.until(S.GONE)
    assert world.launcher.started == []


def test_a_drain_during_a_load_is_noticed(world: World) -> None:
    make = world._make

    def drain_meanwhile(spec: LaunchSpec) -> FakeModel:
        Deployment.objects.filter(pk=world.row.pk).update(is_wanted=False, version=world.row.version + 1)
        return make(spec)

    world.launcher._make = drain_meanwhile
    world.until(S.GONE)
    assert world.launcher.running == {}


def test_a_server_of_a_deployment_that_went_meanwhile_is_ended_and_not_written_down(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node was removed while the agent stood still."""
    start = world.launcher.start

    def removed_meanwhile(spec: LaunchSpec) -> Any:
        Deployment.objects.update(state=S.GONE)
        return start(spec)

    monkeypatch.setattr(world.launcher, "start", removed_meanwhile)
    assert world.reconciler.step() == 0.0
    assert world.reconciler.step() is None
    assert world.launcher.running == {} and not Server.objects.exists()


def test_an_agent_outlives_an_idle_transaction_that_the_database_ended(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its machine stood still: the driver calls that an internal error."""
    agent = Agent(node="local", servers=tmp_path, launcher=world.launcher, connect=world.launcher.connect)
    tries: list[int] = []

    def introduce() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise InternalError("terminating connection due to idle-in-transaction timeout")
        agent.stop()

    monkeypatch.setattr(agent, "_introduce", introduce)
    monkeypatch.setattr(agent, "_dispatch", lambda: None)
    monkeypatch.setattr(node_agent, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(node_agent, "connection", SimpleNamespace(close=lambda: None))
    agent.run()
    assert len(tries) == 2


def test_what_could_not_be_stopped_is_tried_again_with_each_heartbeat(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, tries = Agent(node="local", servers=tmp_path, launcher=world.launcher, connect=world.launcher.connect), []
    monkeypatch.setattr(world.launcher, "stop_left", lambda: tries.append(1))
    agent._introduce()
    agent._introduce()
    assert len(tries) == 2


def test_agents_of_one_machine_sweep_nothing_of_each_other(tmp_path: Path, settings: Any) -> None:
    settings.STATE_DIR, settings.STATIC_SERVER = tmp_path, None
    local = wiring.blob_cache()
    half_fetched = local.folder / "incoming" / "half"
    half_fetched.parent.mkdir(parents=True)
    half_fetched.touch()
    others = []
    for port in (8001, 9001):
        settings.STATIC_SERVER = StaticServer("127.0.0.1", 8000, port)
        others.append(wiring.blob_cache())
        others[-1].sweep()
    assert half_fetched.exists() and len({one.folder for one in (local, *others)}) == 3


def test_the_next_agent_adopts_a_living_server(world: World, release: Release, staging: Environment) -> None:
    world.until(S.READY)
    before = queries.ready_server(release, staging)
    world.reconciler = world.new_reconciler()  # the agent was killed and came back
    world.reconciler.step()
    assert world.state == S.READY and queries.ready_server(release, staging) == before
    assert len(world.launcher.started) == 1
    assert Event.objects.filter(verb="server.adopted").count() == 1


def test_a_server_whose_node_is_heard_of_again_gets_traffic_again(
    world: World, release: Release, staging: Environment
) -> None:
    world.until(S.READY)
    server = Server.objects.get()
    actions.mark_serving(actor=SYSTEM, server=server, is_serving=False, reason="Nothing was heard of its node.")
    Node.objects.update(seen_at=timezone.now() - timedelta(seconds=61))
    world.reconciler.step()
    assert queries.ready_server(release, staging) is None  # others would take it away again at once
    Node.objects.update(seen_at=timezone.now())
    world.reconciler.step()
    assert queries.ready_server(release, staging) == server
    assert [event.verb for event in Event.objects.filter(subject_type="server").order_by("seq")] == [
        "server.started",
        "server.lost",
        "server.recovered",
    ]
    world.reconciler.step()
    assert Event.objects.filter(verb="server.recovered").count() == 1


def test_the_next_agent_replaces_a_server_that_died_meanwhile(world: World) -> None:
    world.until(S.READY)
    world.server.is_down = True
    world.reconciler = world.new_reconciler()
    world.reconciler.step()
    assert world.state == S.LOADING and "gone when the agent came back" in world.row.reason
    world.until(S.READY)
    assert len(world.launcher.started) == 2


def test_the_next_agent_starts_an_unfinished_launch_again(world: World) -> None:
    """Killed between the server's start and its load: the row says loading, and a server is there."""
    world.behaviour.load_error = "not yet"
    deployment = queries.live_deployments().get(pk=world.row.pk)
    world.reconciler._begin(deployment)
    assert world.state == S.LOADING and len(world.launcher.running) == 1
    world.behaviour.load_error = ""
    world.reconciler = world.new_reconciler()
    world.until(S.READY)
    assert len(world.launcher.running) == 1 and len(world.launcher.started) == 2


def test_warm_up_values_take_the_shape_of_the_tensor() -> None:
    text = {"name": "text", "data_type": "BYTES", "dims": [1]}
    assert array("hi", text, 2).tolist() == [["hi"], ["hi"]]
    assert array(["a", "b"], text, 2).tolist() == [["a"], ["b"]]
    assert array([["a"], ["b"]], text, 2).tolist() == [["a"], ["b"]]
    image = {"name": "x", "data_type": "FP32", "dims": [-1, 2]}
    assert array([[1, 2], [3, 4]], image, 3).shape == (3, 2, 2)
    assert array(3, {"name": "x", "data_type": "INT64", "dims": [2]}, 0).tolist() == [3, 3]
    with pytest.raises(ValueError, match="has the shape"):
        array([1, 2, 3], {"name": "x", "data_type": "FP32", "dims": [4]}, 1)
    with pytest.raises(ValueError, match="no form in JSON"):
        array([1.0], {"name": "x", "data_type": "BF16", "dims": [1]}, 1)
    for value in ([None, 1], [{}, 1], [2**70, 1], ["a", 1], [[1], 1]):
        with pytest.raises(ValueError, match="the value of ids is not INT64: "):
            array(value, {"name": "ids", "data_type": "INT64", "dims": [2]}, 0)


def test_a_made_up_warm_up_keeps_to_what_the_envelope_declares() -> None:
    """An id above the vocabulary ends many an embedding, and so does one of 0 where that is no word."""
    tensors = [{"name": name, "data_type": "INT64", "dims": [-1]} for name in ("ids", "mask")]
    serving = {"max_batch_size": 8, "inputs": [*tensors, {"name": "text", "data_type": "BYTES", "dims": [1]}]}
    limits = {"max_input_dims": {"ids": [512], "mask": [512]}, "input_values": {"ids": [100, 200], "mask": [1, 1]}}
    (asked,) = requests(serving, limits)
    assert {name: value.shape for name, value in asked.items()} == {"ids": (1, 64), "mask": (1, 64), "text": (1, 1)}
    assert 100 <= asked["ids"].min() < asked["ids"].max() <= 200 and set(asked["mask"].ravel()) == {1}
    assert all((requests(serving, limits)[0][name] == value).all() for name, value in asked.items())
    (plain,) = requests({**serving, "max_batch_size": 0}, {})
    assert plain["ids"].tolist() == [0] and plain["text"].shape == (1,)
    given = {"batch_size": 2, "inputs": {"ids": [7, 8], "mask": [1, 1], "text": "hi"}}
    (declared,) = requests({**serving, "warmup": [given]}, limits)
    assert declared["ids"].tolist() == [[7, 8], [7, 8]] and declared["text"].tolist() == [["hi"], ["hi"]]


def test_the_agent_warms_up_and_probes_within_the_envelope(
    model: ServedModel, staging: Environment, node: Node, clock: Clock
) -> None:
    seen: list[Any] = []
    world = World(sealed(model, limits={"input_values": {"x": [5, 6]}}), staging, clock)
    world.behaviour.compute = lambda arrays: (seen.append(arrays["x"]), {"y": arrays["x"]})[1]
    world.until(S.READY)
    world.reconciler.step()
    assert len(seen) >= 2 and all(5 <= x.min() <= x.max() <= 6 for x in seen)


def test_folders_of_servers_are_named_after_their_release(world: World) -> None:
    world.until(S.READY)
    folder = Path(queries.current_servers()[0].folder)
    assert folder.name.startswith(f"doubling-{world.row.release.name}-{world.row.pk}-")


def test_a_server_is_told_which_devices_it_was_given(world: World) -> None:
    """By the names that CUDA takes; devices that were only counted have none."""
    for devices, told in (({"GPU-1": 9, "MIG-2": None}, ("GPU-1", "MIG-2")), ({"0": 9}, ()), ({}, ())):
        Deployment.objects.update(claim={"memory_mib": 0, "devices": devices})
        assert devices_of(Deployment.objects.get()) == told
    Deployment.objects.update(claim={"memory_mib": 0, "devices": {"GPU-1": 9}})
    world.until(S.READY)
    (spec,) = world.launcher.started
    assert visible_devices(spec.devices) == {"CUDA_VISIBLE_DEVICES": "GPU-1"} and visible_devices(()) == {}
