"""The stories of rollouts that engines are killed in: what stands at the beginning, and what people do meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django.utils import timezone

from accounts.actions import actor_for
from accounts.core.access import Actor
from accounts.models import User
from ledger.core.errors import Stale, StateChanged
from registry.models import Release
from rollouts import actions
from rollouts.core.lifecycle import FINAL
from rollouts.models import DecisionRecord, ProbeTally, Rollout
from serving.models import Environment, Gateway, Replica
from serving.traffic.actions.routes import set_route
from tests.kills.gateway import NAME, RunningGateway
from tests.support.worlds.factories import (
    make_admin,
    make_environment,
    make_model,
    make_node,
    make_release,
    make_replica,
    make_server,
)

ADMIN, MANAGER = "kills-admin", "kills-manager"
OBJECTIVES = {"errors_max_frac": 0.01, "slow": {"threshold_ms": 250, "max_frac": 0.01}}
SHADOW = {"sample_pct": 10, "min_s": 0, "min_samples": 40, "deadline_s": 600}
#: The states in which answers are compared.
WATCHED = {"shadowing", "shifting", "baking", "paused"}
#: Users at each reading: enough for proof within two ticks, or so few that nothing is ever proven.
BUSY, QUIET = 400, 4


def policy(**over: Any) -> dict[str, Any]:
    """The demo's tolerances without waiting."""
    stage = {"min_s": 0, "min_samples": 40, "deadline_s": 600}
    steps = [{"weight_pct": weight, **stage} for weight in (25, 50)]
    return {"preset": "demo", "second_look": {"looks": 1}, "steps": steps, "bake": stage, "no_data_s": 600, **over}


@dataclass
class Scene:
    """What those see who take part in a run beside the engine: the rollout as it is now, and the gateway."""

    gateway: RunningGateway
    rollout: Rollout
    done: set[str] = field(default_factory=set)

    def act(self, name: str, act: Callable[..., object], *, who: str = ADMIN, **said: Any) -> None:
        """A person's verb, once: it counts when it was taken, else it is said again with what is read next."""
        try:
            act(actor=person(who), rollout=self.rollout, expected_version=self.rollout.version, **said)
        except (Stale, StateChanged):
            return
        self.done.add(name)


People = Callable[[Scene], None]


def nobody(scene: Scene) -> None:
    """The engine is left alone."""


@dataclass(frozen=True)
class Story:
    name: str
    ends: str  # the state in which every telling of it ends
    policy: dict[str, Any] = field(default_factory=policy)
    candidate: dict[str, Any] = field(default_factory=dict)  # how the candidate behaves at the gateway
    rate: int = BUSY
    is_first: bool = False
    is_ready: bool = True  # whether the candidate runs already
    has_agent: bool = True  # whether a replica that is asked for comes up
    starts: bool = True  # whether the rollout was asked for already
    needs_approval: bool = False
    meanwhile: People = nobody
    is_over: Callable[[Rollout], bool] = lambda rollout: rollout.state in FINAL

    def seed(self) -> None:
        """One model in one environment with a stable release, and a rollout that was just asked for."""
        make_admin(ADMIN)
        make_admin(MANAGER)
        model = make_model("double", objectives=OBJECTIVES, rollout_policy=self.policy)
        environment = make_environment("production", needs_passed_report=False, needs_approval=self.needs_approval)
        make_node()
        address = {"admin_url": "http://127.0.0.1:1", "http_url": "http://127.0.0.1:2", "grpc_address": "127.0.0.1:3"}
        Gateway.objects.create(environment=environment, name=NAME, **address)
        if not self.is_first:
            stable = make_release(model)
            serve(make_replica(stable, environment))
            system = Actor.system("test")
            set_route(actor=system, environment=environment, model=model, stable=stable, reason="It serves.")
        candidate = make_release(model)
        if self.is_ready:
            serve(make_replica(candidate, environment))
        if self.starts:
            self.start(person(ADMIN))

    @staticmethod
    def start(actor: Actor) -> None:
        """Asks for the rollout of the newest release."""
        candidate = Release.objects.order_by("-number")[0]
        actions.start_rollout(actor=actor, candidate=candidate, environment=Environment.objects.get(slug="production"))


def person(name: str) -> Actor:
    return actor_for(User.objects.get(username=name))


def serve(replica: Replica) -> None:
    """What the agent does, all at once."""
    Replica.objects.filter(pk=replica.pk).update(state="ready")
    port = 9000 + 3 * replica.pk
    make_server(replica, http_port=port, grpc_port=port + 1, metrics_port=port + 2)


# --- what people do ---------------------------------------------------------------------------------------------------


def abort_while_shifting(scene: Scene) -> None:
    if "abort" not in scene.done and scene.rollout.state == "shifting" and scene.rollout.step_started_at:
        scene.act("abort", actions.abort, reason="A hunch.")


def pause_then_resume(scene: Scene) -> None:
    rollout = scene.rollout
    if "pause" not in scene.done and rollout.state == "shifting" and rollout.step_started_at:
        scene.act("pause", actions.pause, reason="Looking closer.")
    elif "pause" in scene.done and "resume" not in scene.done and rollout.state == "paused" and _has_ticked(scene, 2):
        scene.act("resume", actions.resume, reason="It looks fine.")
    elif "resume" in scene.done and "busy" not in scene.done:
        scene.gateway.told(rate=BUSY)
        scene.done.add("busy")


def advance_by_hand(scene: Scene) -> None:
    rollout = scene.rollout
    for name, index in (("first", 0), ("second", 1)):
        if (
            name not in scene.done
            and rollout.state == "shifting"
            and rollout.step_index == index
            and rollout.step_started_at
        ):
            scene.act(name, actions.advance, reason="We know it.")
            return
    if rollout.state == "baking" and "busy" not in scene.done:
        scene.gateway.told(rate=BUSY)
        scene.done.add("busy")


def hear_again_when_stuck(scene: Scene) -> None:
    """The gateway follows nothing while the rollback is decided, until the engine has said that it is stuck."""
    rollout = scene.rollout
    if rollout.state == "shifting" and rollout.step_started_at and "deaf" not in scene.done:
        scene.gateway.told(is_deaf=True)
        scene.done.add("deaf")
    elif "deaf" in scene.done and "abort" not in scene.done and rollout.state == "shifting":
        scene.act("abort", actions.abort, reason="A hunch.")
    elif rollout.state == "stuck" and "hears" not in scene.done:
        scene.gateway.told(is_deaf=False)
        scene.done.add("hears")


def compare_answers(scene: Scene) -> None:
    """The prober's part: answers are compared all the time, and none differs."""
    if scene.rollout.state in WATCHED:
        tally, _ = ProbeTally.objects.get_or_create(
            rollout_id=scene.rollout.pk, guard="wrong", defaults={"epoch": "start-1", "at": timezone.now()}
        )
        tally.candidate_attempts, tally.stable_attempts = tally.candidate_attempts + 60, tally.stable_attempts + 60
        tally.at = timezone.now()
        tally.save()


def approve_the_bake(scene: Scene) -> None:
    if "approve" not in scene.done and DecisionRecord.objects.filter(code="awaiting_approval").exists():
        scene.act("approve", actions.approve, who=MANAGER, stage="bake", reason="Fine.")


def promote_at_once(scene: Scene) -> None:
    rollout = scene.rollout
    if "promote" not in scene.done and rollout.state == "shifting" and rollout.step_started_at:
        scene.act("promote", actions.promote_now, reason="We know it.")


def _old_release_is_gone(rollout: Rollout) -> bool:
    return not Replica.objects.filter(release__number=1, is_wanted=True).exists()


def _has_ticked(scene: Scene, times: int) -> bool:
    """Whether the engine looked so often at the rollout since this was asked first."""
    marks = [name for name in scene.done if name.startswith("tick ")]
    if not marks:
        scene.done.add(f"tick {scene.rollout.tick}")
        return False
    return scene.rollout.tick >= int(marks[0].removeprefix("tick ")) + times


STORIES = [
    Story("promoted", "promoted", is_ready=False),
    Story("first release promoted", "promoted", is_first=True),
    Story("breach", "rolled_back", candidate={"error_frac": 0.5}),
    Story("aborted", "rolled_back", rate=QUIET, meanwhile=abort_while_shifting),
    Story("paused and resumed", "promoted", rate=QUIET, meanwhile=pause_then_resume),
    Story("advanced by hand", "promoted", rate=QUIET, meanwhile=advance_by_hand),
    Story("stuck", "rolled_back", policy=policy(ack_deadline_s=0.3), rate=QUIET, meanwhile=hear_again_when_stuck),
    Story("shadowed", "promoted", policy=policy(shadow=SHADOW), meanwhile=compare_answers),
    Story("approved", "promoted", policy=policy(approvals={"bake": 1}), meanwhile=approve_the_bake),
    Story("promoted by hand", "promoted", rate=QUIET, meanwhile=promote_at_once),
    Story("let go", "promoted", policy=policy(instant_window_s=0.2, undo_max_s=0), is_over=_old_release_is_gone),
    Story("never ready", "cancelled", policy=policy(prepare_deadline_s=0.5), is_ready=False, has_agent=False),
]
