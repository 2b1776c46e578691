"""Deployments: what may be asked for, what an agent makes of it, and how a broken server comes back."""

from __future__ import annotations

import dataclasses
import itertools
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from accounts.core.access import Actor, Role
from accounts.models import Team
from ledger.core.canonical import canonical_bytes, sha256_of
from ledger.core.errors import DomainError, Refused, StateChanged, Unavailable
from ledger.models import Event
from registry.hooks.code_runs import code_runs_of
from registry.models import Release, ServedModel, Waiver
from serving import actions, queries
from serving.agent.reconciler import AgentTimings, DeploymentReconciler, load_timeout_of
from serving.agent.warmup import array
from serving.control_plane import store
from serving.core.lifecycle import DeploymentState
from serving.core.routes import RoutingTable, admit
from serving.models import Deployment, Environment, Node, Route, Server
from serving.ports import InferenceError, LaunchError, LaunchSpec
from tests.fakes.ports import FakeLauncher, FakeModel

pytestmark = pytest.mark.django_db

IMAGE = f"local/triton-onnx@sha256:{'a' * 64}"
RUNTIME = {"image": IMAGE, "server": "triton", "backends": ["onnxruntime", "python"], "versions": {}}
SYSTEM = Actor.system("test")
S = DeploymentState
QUICK = AgentTimings(
    probe_every=0.01,
    probe_timeout=0.05,
    patient_timeout=0.05,
    hung_after=0.2,
    hung_after_last_stable=0.5,
    warmup_timeout=0.1,
    drain=0.0,
    backoff=(0.0, 0.0, 0.0),
    backoff_most=7.0,
    healthy_after=1e9,
    retry_failed_after=0.0,
)
_numbers = itertools.count(1)


@pytest.fixture
def staging() -> Environment:
    return Environment.objects.get_or_create(slug="staging", defaults={"title": "Staging", "is_routed": False})[0]


@pytest.fixture
def production() -> Environment:
    return Environment.objects.get_or_create(slug="production", defaults={"title": "Production"})[0]


@pytest.fixture
def node() -> Node:
    return Node.objects.create(name="local", runtimes=[RUNTIME], seen_at=timezone.now())


@pytest.fixture
def model() -> ServedModel:
    team = Team.objects.create(slug="vision", title="Vision")
    return ServedModel.objects.create(slug="doubling", team=team)


def sealed(model: ServedModel, *, image: str = IMAGE, code: bool = False, **serving: Any) -> Release:
    number = next(_numbers)
    manifest = {
        "schema": "sluicegate/manifest/v1",
        "model": model.slug,
        "files": [],
        "envelope": {},
        "provenance": {"n": number},
        "runtime": {"image": image, "server": "triton", "backend": "onnxruntime"},
        "serving": {
            "max_batch_size": 8,
            "inputs": [{"name": "x", "data_type": "FP32", "dims": [4]}],
            "outputs": [{"name": "y", "data_type": "FP32", "dims": [4]}],
            "warmup": [],
            **serving,
        },
    }
    data = canonical_bytes(manifest)
    return Release.objects.create(
        id=uuid.uuid4(),
        model=model,
        number=number,
        state="sealed",
        manifest=data.decode(),
        digest=sha256_of(data),
        is_code_bearing=code,
        sealed_at=timezone.now(),
    )


@pytest.fixture
def release(model: ServedModel) -> Release:
    return sealed(model)


def ensure(release: Release, environment: Environment, actor: Actor = SYSTEM) -> Deployment:
    return actions.ensure_deployment(actor=actor, release=release, environment=environment, reason="a test wants it")


def verbs_of(deployment: Deployment) -> list[str]:
    return list(
        Event.objects.filter(subject_type="deployment", subject_id=str(deployment.pk))
        .order_by("seq")
        .values_list("verb", flat=True)
    )


# what may be asked for


def test_a_deployment_is_made_once_and_recorded(release: Release, staging: Environment, node: Node) -> None:
    first, again = ensure(release, staging), ensure(release, staging)
    assert first == again and first.state == S.FETCHING and first.node == node
    assert verbs_of(first) == ["deployment.requested"]
    assert queries.deployment_of(release, staging) == first


def test_a_node_is_told_of_once_and_known_anew_at_each_beat() -> None:
    for cpus in (2, 4):
        actions.register_node(actor=SYSTEM, name="gpu-1", runtimes=[RUNTIME], facts={"cpu_count": cpus})
    assert Node.objects.get(name="gpu-1").facts == {"cpu_count": 4}
    event = Event.objects.get(verb="node.registered")
    assert (event.subject_id, event.facts) == ("gpu-1", {"images": [RUNTIME["image"]]})
    with pytest.raises(Refused):
        actions.register_node(actor=Actor("somebody"), name="gpu-2", runtimes=[], facts={})


def test_a_draft_is_refused(model: ServedModel, staging: Environment, node: Node) -> None:
    draft = Release.objects.create(model=model)
    with pytest.raises(StateChanged, match="Seal it first"):
        ensure(draft, staging)


def test_code_needs_a_waiver_of_just_these_contents(model: ServedModel, staging: Environment, node: Node) -> None:
    release = sealed(model, code=True)
    Waiver.objects.create(release=release, manifest_digest=f"sha256:{'0' * 64}", reason="another digest")
    with pytest.raises(Refused, match="no release manager has waived it") as caught:
        ensure(release, staging)
    assert caught.value.code == "code_not_waived"
    Waiver.objects.create(release=release, manifest_digest=release.digest, reason="read and understood")
    assert ensure(release, staging).state == S.FETCHING


UNCONTAINED = {"containment": {"tier": "seccomp", "allows_uncontained_code": False}}


def waived(model: ServedModel) -> Release:
    release = sealed(model, code=True)
    Waiver.objects.create(release=release, manifest_digest=release.digest, reason="read and understood")
    return release


def test_code_runs_only_where_it_is_shut_in_or_the_owner_of_the_node_allows_it(
    model: ServedModel, staging: Environment, node: Node
) -> None:
    Node.objects.filter(pk=node.pk).update(facts=UNCONTAINED)
    release = waived(model)
    with pytest.raises(Refused, match="SLUICEGATE_ALLOW_UNCONTAINED_CODE") as caught:
        ensure(release, staging)
    assert caught.value.code == "not_contained" and caught.value.facts["containment"] == "seccomp"
    assert ensure(sealed(model), staging).node == node  # without code it runs there
    allowed = {"containment": {"tier": "none", "allows_uncontained_code": True}}
    Node.objects.filter(pk=node.pk).update(facts=allowed)
    assert ensure(release, staging).node == node


def test_code_goes_to_the_node_that_shuts_it_in(model: ServedModel, staging: Environment, node: Node) -> None:
    Node.objects.filter(pk=node.pk).update(facts=UNCONTAINED, seen_at=timezone.now())
    safe = Node.objects.create(name="safe", runtimes=[RUNTIME], facts={"containment": {"tier": "namespaces"}})
    assert ensure(waived(model), staging).node == safe


def test_what_code_may_do_is_told_for_every_node_that_it_could_run_on(model: ServedModel, node: Node) -> None:
    Node.objects.filter(pk=node.pk).update(facts=UNCONTAINED)
    Node.objects.create(name="old", runtimes=[RUNTIME])  # its agent tells nothing yet
    Node.objects.create(name="other", runtimes=[])
    local, old = code_runs_of(sealed(model, code=True))
    assert (local.node, local.containment, local.may_run) == ("local", "seccomp", False)
    assert local.says.startswith("This code will run with the service's rights")
    assert (old.node, old.containment, old.may_run) == ("old", "unknown", True) and "service's rights" in old.says
    assert code_runs_of(sealed(model)) == []


def test_a_runtime_that_no_node_has_is_refused_with_those_that_are_there(
    model: ServedModel, staging: Environment, node: Node
) -> None:
    with pytest.raises(Unavailable) as caught:
        ensure(sealed(model, image=f"other@sha256:{'b' * 64}"), staging)
    assert IMAGE in caught.value.message
    assert Deployment.objects.count() == 0


@pytest.mark.parametrize(("role", "may_stage"), [(Role.CI, True), (Role.MODEL_TEAM, True), (None, False)])
def test_who_may_deploy(release: Release, staging: Environment, node: Node, role: Role | None, may_stage: bool) -> None:
    actor = Actor("robot", user_id=1, roles=(("vision", role),) if role else ())
    if may_stage:
        assert ensure(release, staging, actor).pk
    else:
        with pytest.raises(Refused):
            ensure(release, staging, actor)


def test_only_the_system_reports_states(release: Release, staging: Environment, node: Node) -> None:
    deployment = ensure(release, staging)
    with pytest.raises(Refused):
        actions.record_state(
            actor=Actor("ci", roles=(("vision", Role.CI),)), deployment=deployment, to=S.LOADING, reason=""
        )


def test_a_move_from_a_stale_row_changes_nothing(release: Release, staging: Environment, node: Node) -> None:
    deployment = ensure(release, staging)
    stale = Deployment.objects.get(pk=deployment.pk)
    actions.record_state(actor=SYSTEM, deployment=deployment, to=S.LOADING, reason="first")
    with pytest.raises(StateChanged):
        actions.record_state(actor=SYSTEM, deployment=stale, to=S.FAILED, reason="second")
    assert Deployment.objects.get(pk=deployment.pk).state == S.LOADING
    assert verbs_of(deployment) == ["deployment.requested", "deployment.fetched"]


def test_a_move_that_the_table_does_not_know_is_refused(release: Release, staging: Environment, node: Node) -> None:
    with pytest.raises(StateChanged, match="cannot become ready"):
        actions.record_state(actor=SYSTEM, deployment=ensure(release, staging), to=S.READY, reason="")


def test_draining_is_refused_while_traffic_may_come(model: ServedModel, production: Environment, node: Node) -> None:
    stable, candidate = sealed(model), sealed(model)
    held, canary = ensure(stable, production), ensure(candidate, production)
    route = Route.objects.create(
        environment=production,
        model=model,
        stable=stable,
        candidate=candidate,
        candidate_bp=1,
        changed_at=timezone.now(),
    )
    for deployment in (held, canary):
        with pytest.raises(StateChanged) as caught:
            actions.drain_deployment(actor=SYSTEM, deployment=deployment, reason="away")
        assert caught.value.code == "still_routed"
    route.candidate_bp = 0
    route.save()
    assert not actions.drain_deployment(actor=SYSTEM, deployment=canary, reason="away").is_wanted
    actions.drain_deployment(actor=SYSTEM, deployment=canary, reason="again")
    assert verbs_of(canary).count("deployment.drained") == 1
    with pytest.raises(StateChanged, match="Ask again when it is gone"):
        ensure(candidate, production)


def test_gateways_are_woken_by_every_change_of_an_endpoint(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[str] = []
    monkeypatch.setattr("serving.actions.deployments.notify_routes", lambda: woken.append(world.state))
    world.until(S.READY)
    assert woken
    woken.clear()
    world.server.is_down = True
    world.reconciler.step()
    assert woken


# the agent's work on one deployment


class World:
    """One deployment, its reconciler, and fake servers that can be broken."""

    def __init__(self, release: Release, environment: Environment, pace: AgentTimings = QUICK) -> None:
        self.behaviour = FakeModel({}, lambda arrays: {"y": 2 * arrays["x"]})
        self.launcher = FakeLauncher([RUNTIME], self._make)
        self.row = ensure(release, environment)
        self.pace = pace
        self.reconciler = self.new_reconciler()

    def _make(self, spec: LaunchSpec) -> FakeModel:
        self.behaviour.serving = spec.manifest["serving"]
        return self.behaviour

    def new_reconciler(self) -> DeploymentReconciler:
        return DeploymentReconciler(
            self.row.pk,
            actor=Actor.system("agent:local"),
            launcher=self.launcher,
            connect=self.launcher.connect,
            pace=self.pace,
        )

    @property
    def state(self) -> str:
        self.row.refresh_from_db()
        return self.row.state

    @property
    def server(self) -> Any:
        ((_, server),) = self.launcher.running.values()
        return server

    def until(self, state: DeploymentState, most: int = 30) -> Deployment:
        for _ in range(most):
            if self.state == state:
                return self.row
            self.reconciler.step()
        raise AssertionError(f"it is {self.state} ({self.row.reason}), not {state}, after {most} steps")


@pytest.fixture
def world(release: Release, staging: Environment, node: Node) -> World:
    return World(release, staging)


@pytest.mark.takes("deployment: fetching → loading", "deployment: loading → warming", "deployment: warming → ready")
def test_it_fetches_loads_warms_and_is_ready(world: World, release: Release, staging: Environment) -> None:
    row = world.until(S.READY)
    assert set(row.timings) == {"fetch_s", "load_s", "warmup_s"} and row.ready_at
    server = queries.ready_server(release, staging)
    assert server and server.is_serving and server.probed_at
    assert verbs_of(row) == ["deployment.requested", "deployment.fetched", "deployment.loaded", "deployment.ready"]
    world.reconciler.step()
    assert world.state == S.READY


def test_it_warms_up_with_the_releases_own_requests(model: ServedModel, staging: Environment, node: Node) -> None:
    seen: list[Any] = []
    world = World(
        sealed(model, warmup=[{"batch_size": 2, "inputs": {"x": [1, 2, 3, 4]}}, {"batch_size": 1, "inputs": {"x": 7}}]),
        staging,
    )
    world.behaviour.compute = lambda arrays: (seen.append(arrays["x"].tolist()), {"y": arrays["x"]})[1]
    world.until(S.READY)
    assert seen == [[[1, 2, 3, 4], [1, 2, 3, 4]], [[7, 7, 7, 7]]]


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


def test_one_odd_failure_is_forgiven_and_two_in_a_row_are_not(world: World) -> None:
    world.until(S.READY)
    world.behaviour.breaks = InferenceError("server_error", "hiccup")
    world.reconciler.step()
    assert world.state == S.READY
    world.behaviour.breaks = None
    world.reconciler.step()
    world.behaviour.breaks = InferenceError("server_error", "hiccup")
    world.reconciler.step()
    assert world.state == S.READY
    world.reconciler.step()
    assert world.state == S.LOADING


def test_a_server_that_hangs_is_lost_when_the_window_is_over(world: World) -> None:
    world.until(S.READY)
    world.behaviour.is_hung = True
    began = time.monotonic()
    world.reconciler.step()
    world.reconciler.step()
    assert world.state == S.READY  # two late answers are no proof
    world.until(S.LOADING)
    assert QUICK.hung_after <= time.monotonic() - began < QUICK.hung_after_last_stable
    assert world.row.reason.startswith("it hung: for 0 s it answered no probe and finished nothing")
    world.behaviour.is_hung = False
    assert world.until(S.READY).recoveries == 1


def test_a_server_that_is_slow_for_everybody_is_left_alone(world: World, release: Release) -> None:
    """Each probe is given up, and finished all the same: slow, not dead."""
    world.until(S.READY)
    world.behaviour.latency_s = 2 * QUICK.probe_timeout
    began = time.monotonic()
    while time.monotonic() - began < 3 * QUICK.hung_after:
        world.reconciler.step()
    assert world.state == S.READY and world.row.recoveries == 0


def test_a_server_that_is_slow_because_it_serves_others_is_left_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.until(S.READY)
    counts = itertools.count(1)
    world.behaviour.is_hung = True  # for the probes
    monkeypatch.setattr(
        world.server,
        "statistics",
        lambda model: {"model_stats": [{"inference_stats": {"success": {"count": str(next(counts) // 2)}}}]},
    )
    began = time.monotonic()
    while time.monotonic() - began < 3 * QUICK.hung_after:
        world.reconciler.step()
    assert world.state == S.READY


def test_a_full_queue_is_load_and_no_error(world: World) -> None:
    world.until(S.READY)
    world.behaviour.breaks = InferenceError("full", "Exceeds maximum queue size")
    for _ in range(4):
        world.reconciler.step()
    assert world.state == S.READY


# the last server of a stable release


@pytest.fixture
def stable(release: Release, production: Environment, node: Node) -> World:
    """A ready deployment, alone behind a route's stable release."""
    world = World(release, production)
    world.until(S.READY)
    Route.objects.create(environment=production, model=release.model, stable=release, changed_at=timezone.now())
    return world


def test_the_last_server_of_stable_gets_longer_and_its_loss_is_said_loudly(stable: World) -> None:
    stable.behaviour.is_hung = True
    began = time.monotonic()
    stable.until(S.LOADING)
    assert time.monotonic() - began >= QUICK.hung_after_last_stable
    alarm = f"STABLE {stable.row.release.name} HAS NO SERVER in production; requests fail until it is back. it hung"
    assert stable.row.reason.startswith(alarm)
    assert Event.objects.get(verb="server.lost").reason.startswith(alarm)
    stable.reconciler.step()
    assert stable.state == S.WARMING and "HAS NO SERVER" in stable.row.reason and "hang" not in stable.row.reason
    stable.behaviour.is_hung = False
    assert "HAS NO SERVER" not in stable.until(S.READY).reason


def test_the_last_server_of_stable_is_dead_at_once_all_the_same(stable: World) -> None:
    stable.server.is_down = True
    stable.reconciler.step()
    assert stable.state == S.LOADING and not queries.current_servers()[0].is_serving
    assert "HAS NO SERVER" in stable.row.reason and "server process ended" in stable.row.reason


def test_the_last_server_of_stable_never_fails_for_good(stable: World) -> None:
    """Hangs, loads that fail, and warm-ups that are late, many more times than any other deployment gets."""
    pauses = []
    for n in range(len(QUICK.backoff) + 2):
        stable.until(S.READY)
        stable.behaviour.is_hung = True
        while stable.state == S.READY:
            pauses.append(stable.reconciler.step())
        stable.behaviour.load_error = "no memory" if n == 1 else ""
        if stable.behaviour.load_error:
            stable.server.is_down = True
            for _ in range(2 * len(QUICK.backoff)):
                pauses.append(stable.reconciler.step())
                assert stable.state == S.LOADING
            assert "HAS NO SERVER" in stable.row.reason and "load_failed: no memory" in stable.row.reason
        stable.behaviour.is_hung, stable.behaviour.load_error = False, ""
    stable.until(S.READY)
    assert "deployment.failed" not in verbs_of(stable.row)
    assert pauses[-1] == QUICK.backoff_most  # and ever more slowly


def test_stable_with_another_server_is_not_the_last(stable: World, release: Release, production: Environment) -> None:
    row = queries.live_deployments().get(pk=stable.row.pk)
    assert queries.is_last_of_stable(row)
    other = Deployment.objects.create(
        release=release, environment=production, node=Node.objects.create(name="two"), state=S.READY
    )
    server = Server.objects.create(
        deployment=other, http_port=5, grpc_port=6, metrics_port=7, pid=8, folder="/b", is_serving=True
    )
    assert not queries.is_last_of_stable(row)
    Server.objects.filter(pk=server.pk).update(is_serving=False)
    assert queries.is_last_of_stable(row)


def test_a_route_works_again_when_its_failed_deployment_is_healthy_again(stable: World) -> None:
    def admitted(last: RoutingTable | None) -> RoutingTable:
        loaded = store.load()
        return admit(loaded.tables["production"], last, loaded.known["production"]).table

    def ports(table: RoutingTable) -> list[int]:
        return [endpoint.http_port for endpoint in table.models[0].stable.endpoints]

    before = admitted(None)
    assert ports(before) == [queries.current_servers()[0].http_port]
    row = queries.live_deployments().get(pk=stable.row.pk)
    for state in (S.LOADING, S.FAILED):
        actions.record_state(actor=SYSTEM, deployment=row, to=state, reason="whatever it was")
    stable.reconciler.step()  # it ends the server
    assert queries.current_servers().count() == 0
    meanwhile = admitted(before)
    assert ports(meanwhile) == ports(before)  # its last address: better than nothing
    start = stable.launcher.start
    stable.launcher.start = lambda spec: dataclasses.replace(start(spec), http_port=77)  # type: ignore[method-assign]
    stable.until(S.READY)
    assert ports(admitted(meanwhile)) == [77] and ports(admitted(None)) == [77]


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


def test_the_next_agent_adopts_a_living_server(world: World, release: Release, staging: Environment) -> None:
    world.until(S.READY)
    before = queries.ready_server(release, staging)
    world.reconciler = world.new_reconciler()  # the agent was killed and came back
    world.reconciler.step()
    assert world.state == S.READY and queries.ready_server(release, staging) == before
    assert len(world.launcher.started) == 1
    assert Event.objects.filter(verb="server.adopted").count() == 1


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


def test_every_refusal_says_what_to_do_next(release: Release, staging: Environment) -> None:
    with pytest.raises(DomainError) as caught:
        ensure(release, staging)
    assert "start a node" in str(caught.value) and "no_node_for_runtime" in str(caught.value)


def test_warm_up_values_take_the_shape_of_the_tensor() -> None:
    text = {"name": "text", "data_type": "BYTES", "dims": [1]}
    assert array("hi", text, 2).tolist() == [["hi"], ["hi"]]
    assert array(["a", "b"], text, 2).tolist() == [["a"], ["b"]]
    assert array([["a"], ["b"]], text, 2).tolist() == [["a"], ["b"]]
    image = {"name": "x", "data_type": "FP32", "dims": [-1, 2]}
    assert array(None, image, 1).shape == (1, 1, 2) and array([[1, 2], [3, 4]], image, 3).shape == (3, 2, 2)
    assert array(3, {"name": "x", "data_type": "INT64", "dims": [2]}, 0).tolist() == [3, 3]
    with pytest.raises(ValueError, match="has the shape"):
        array([1, 2, 3], {"name": "x", "data_type": "FP32", "dims": [4]}, 1)


def test_folders_of_servers_are_named_after_their_release(world: World) -> None:
    world.until(S.READY)
    folder = Path(queries.current_servers()[0].folder)
    assert folder.name.startswith(f"doubling-{world.row.release.name}-{world.row.pk}-")
