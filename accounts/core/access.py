"""The one table of role × verb, and the question it answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ledger.core.errors import Refused, Stale


class Role(StrEnum):
    MODEL_TEAM = "model_team"
    CI = "ci"
    RELEASE_MANAGER = "release_manager"


class Verb(StrEnum):
    READ = "read"
    CREATE_MODEL = "model.create"
    EDIT_MODEL = "model.edit"
    PUSH_RELEASE = "release.push"
    WAIVE_CODE = "release.waive"
    RETIRE_RELEASE = "release.retire"
    SET_ALIAS = "alias.set"
    RUN_GATES = "gates.run"
    START_ROLLOUT = "rollout.start"
    PAUSE_ROLLOUT = "rollout.pause"
    RESUME_ROLLOUT = "rollout.resume"
    APPROVE_ROLLOUT = "rollout.approve"
    ADVANCE_ROLLOUT = "rollout.advance"
    PROMOTE_NOW = "rollout.promote_now"
    SUPERSEDE_ROLLOUT = "rollout.supersede"
    ABORT_ROLLOUT = "rollout.abort"
    ROLL_BACK = "rollout.roll_back"
    MANAGE_WEBHOOKS = "webhook.manage"
    ADMINISTER = "administer"


#: Shutting is easier than opening: everyone who may push may also pause, abort and roll back.
_SHUT = frozenset({Verb.PAUSE_ROLLOUT, Verb.ABORT_ROLLOUT, Verb.ROLL_BACK})

MAY: dict[Role, frozenset[Verb]] = {
    Role.MODEL_TEAM: frozenset(
        {
            Verb.READ,
            Verb.CREATE_MODEL,
            Verb.EDIT_MODEL,
            Verb.PUSH_RELEASE,
            Verb.RETIRE_RELEASE,
            Verb.SET_ALIAS,
            Verb.RUN_GATES,
            Verb.START_ROLLOUT,
            Verb.SUPERSEDE_ROLLOUT,
            Verb.RESUME_ROLLOUT,
            Verb.MANAGE_WEBHOOKS,
        }
    )
    | _SHUT,
    Role.CI: frozenset({Verb.READ, Verb.PUSH_RELEASE, Verb.RUN_GATES, Verb.START_ROLLOUT, Verb.SUPERSEDE_ROLLOUT})
    | _SHUT,
    Role.RELEASE_MANAGER: frozenset(
        {
            Verb.READ,
            Verb.RUN_GATES,
            Verb.WAIVE_CODE,
            Verb.RETIRE_RELEASE,
            Verb.SET_ALIAS,
            Verb.START_ROLLOUT,
            Verb.SUPERSEDE_ROLLOUT,
            Verb.RESUME_ROLLOUT,
            Verb.APPROVE_ROLLOUT,
            Verb.ADVANCE_ROLLOUT,
            Verb.PROMOTE_NOW,
            Verb.MANAGE_WEBHOOKS,
        }
    )
    | _SHUT,
}


#: What a verb does, as it is said of somebody who may not.
DOING: dict[Verb, str] = {
    Verb.READ: "read the models",
    Verb.CREATE_MODEL: "create models",
    Verb.EDIT_MODEL: "edit models",
    Verb.PUSH_RELEASE: "push releases",
    Verb.WAIVE_CODE: "waive the code of releases",
    Verb.RETIRE_RELEASE: "retire or restore releases",
    Verb.SET_ALIAS: "set aliases",
    Verb.RUN_GATES: "run gates",
    Verb.START_ROLLOUT: "start rollouts",
    Verb.PAUSE_ROLLOUT: "pause rollouts",
    Verb.RESUME_ROLLOUT: "resume rollouts",
    Verb.APPROVE_ROLLOUT: "approve or reject rollouts",
    Verb.ADVANCE_ROLLOUT: "advance rollouts",
    Verb.PROMOTE_NOW: "promote rollouts without their evidence",
    Verb.SUPERSEDE_ROLLOUT: "supersede rollouts",
    Verb.ABORT_ROLLOUT: "abort or cancel rollouts",
    Verb.ROLL_BACK: "roll back models",
    Verb.MANAGE_WEBHOOKS: "manage webhooks",
    Verb.ADMINISTER: "administer this installation",
}


@dataclass(frozen=True)
class Actor:
    """Who asks. `roles` maps a team's slug to the roles held in it; `user_id` is None for the system itself."""

    name: str
    user_id: int | None = None
    is_admin: bool = False
    is_system: bool = False
    roles: tuple[tuple[str, Role], ...] = ()

    @classmethod
    def system(cls, name: str) -> Actor:
        """The actor for a part of Sluicegate itself, such as the engine: it may do everything."""
        return cls(name=f"system:{name}", is_system=True)

    def roles_in(self, team: str) -> frozenset[Role]:
        return frozenset(role for slug, role in self.roles if slug == team)


def may(actor: Actor, verb: Verb, team: str) -> bool:
    """Whether this actor may do this verb on what the team owns."""
    if actor.is_system or actor.is_admin:
        return True
    return any(verb in MAY[role] for role in actor.roles_in(team))


def require(actor: Actor, verb: Verb, team: str) -> None:
    """Raises Refused, naming the roles that would do, unless `may`."""
    if may(actor, verb, team):
        return
    would = sorted(role.value for role, verbs in MAY.items() if verb in verbs)
    raise Refused(
        "forbidden",
        f"{actor.name} may not {DOING[verb]}{_of(verb, team)}; {_takes(would)}.",
        verb=verb.value,
        team=team,
        roles=would,
    )


def require_version(current: int, expected: int | None, name: str, **facts: Any) -> None:
    """Raises Stale unless the row that is called `name` is at the version that the caller saw. None: the caller did not say.

    `facts` are told with the refusal.
    """
    if expected is not None and current != expected:
        raise Stale(
            "stale",
            f"{name} is at version {current}, not {expected}: it changed meanwhile. Read it again, then decide.",
            version=current,
            **facts,
        )


def _of(verb: Verb, team: str) -> str:
    """The team's part of the sentence; "" and "*" are no team, and an administrator's work is for all of them."""
    return "" if verb is Verb.ADMINISTER or team in ("", "*") else f" of team {team}"


def _takes(roles: list[str]) -> str:
    if not roles:
        return "only an administrator may"
    *others, last = roles
    return f"it takes the role {', '.join(others) + ' or ' if others else ''}{last}"
