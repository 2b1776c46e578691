"""The one table of role × verb, and the question it answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from accounts.core.scope import MOST_PATTERNS, MOST_STARS, WHOLE, Scope, unreadable_patterns
from ledger.core.errors import Refused, Stale, field_error

#: Stands for every team in place of a team's name.
EVERY_TEAM = "*"


class Role(StrEnum):
    VIEWER = "viewer"
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
    ANNOTATE_RELEASE = "release.annotate"
    SET_ALIAS = "alias.set"
    RUN_GATES = "gates.run"
    SCALE_RELEASE = "release.scale"
    START_ROLLOUT = "rollout.start"
    PAUSE_ROLLOUT = "rollout.pause"
    RESUME_ROLLOUT = "rollout.resume"
    APPROVE_ROLLOUT = "rollout.approve"
    ADVANCE_ROLLOUT = "rollout.advance"
    PROMOTE_NOW = "rollout.promote_now"
    SUPERSEDE_ROLLOUT = "rollout.supersede"
    ABORT_ROLLOUT = "rollout.abort"
    ROLL_BACK = "rollout.roll_back"
    HANDLE_ALARM = "alarm.handle"
    JUDGE = "judgement.make"
    MANAGE_WEBHOOKS = "webhook.manage"
    MANAGE_ACCOUNT = "account.manage"
    ADMINISTER = "administer"


#: Shutting is easier than opening: everyone who may push may also pause, abort and roll back.
_SHUT = frozenset({Verb.PAUSE_ROLLOUT, Verb.ABORT_ROLLOUT, Verb.ROLL_BACK})

MAY: dict[Role, frozenset[Verb]] = {
    Role.VIEWER: frozenset({Verb.READ}),
    Role.MODEL_TEAM: frozenset(
        {
            Verb.READ,
            Verb.CREATE_MODEL,
            Verb.EDIT_MODEL,
            Verb.PUSH_RELEASE,
            Verb.RETIRE_RELEASE,
            Verb.ANNOTATE_RELEASE,
            Verb.SET_ALIAS,
            Verb.RUN_GATES,
            Verb.SCALE_RELEASE,
            Verb.START_ROLLOUT,
            Verb.SUPERSEDE_ROLLOUT,
            Verb.RESUME_ROLLOUT,
            Verb.HANDLE_ALARM,
            Verb.JUDGE,
            Verb.MANAGE_WEBHOOKS,
        }
    )
    | _SHUT,
    Role.CI: frozenset(
        {
            Verb.READ,
            Verb.PUSH_RELEASE,
            Verb.ANNOTATE_RELEASE,
            Verb.RUN_GATES,
            Verb.START_ROLLOUT,
            Verb.SUPERSEDE_ROLLOUT,
            Verb.JUDGE,
        }
    )
    | _SHUT,
    Role.RELEASE_MANAGER: frozenset(
        {
            Verb.READ,
            Verb.RUN_GATES,
            Verb.WAIVE_CODE,
            Verb.RETIRE_RELEASE,
            Verb.ANNOTATE_RELEASE,
            Verb.SET_ALIAS,
            Verb.SCALE_RELEASE,
            Verb.START_ROLLOUT,
            Verb.SUPERSEDE_ROLLOUT,
            Verb.RESUME_ROLLOUT,
            Verb.APPROVE_ROLLOUT,
            Verb.ADVANCE_ROLLOUT,
            Verb.PROMOTE_NOW,
            Verb.HANDLE_ALARM,
            Verb.JUDGE,
            Verb.MANAGE_WEBHOOKS,
        }
    )
    | _SHUT,
}

#: The roles that can be held in every team at once, by people who are no administrators. Each is held in a team as well.
CROSS_TEAM: frozenset[Role] = frozenset({Role.VIEWER, Role.RELEASE_MANAGER})

#: Verbs that a scope with the first verb also holds: a rollback aborts a running rollout of the model.
_WITH: dict[Verb, frozenset[Verb]] = {Verb.ROLL_BACK: frozenset({Verb.ABORT_ROLLOUT})}

#: What everybody may about themselves: their password, tokens and sessions.
OF_ONESELF: frozenset[Verb] = frozenset({Verb.MANAGE_ACCOUNT})


#: Effect of each verb, for the sentence of a refusal.
DOING: dict[Verb, str] = {
    Verb.READ: "read the models",
    Verb.CREATE_MODEL: "create models",
    Verb.EDIT_MODEL: "edit models",
    Verb.PUSH_RELEASE: "push releases",
    Verb.WAIVE_CODE: "waive the code of releases",
    Verb.RETIRE_RELEASE: "retire or restore releases",
    Verb.ANNOTATE_RELEASE: "write notes and comments on releases",
    Verb.SET_ALIAS: "set aliases",
    Verb.RUN_GATES: "run gates",
    Verb.SCALE_RELEASE: "set the number of replicas",
    Verb.START_ROLLOUT: "start rollouts",
    Verb.PAUSE_ROLLOUT: "pause rollouts",
    Verb.RESUME_ROLLOUT: "resume rollouts",
    Verb.APPROVE_ROLLOUT: "approve or reject rollouts",
    Verb.ADVANCE_ROLLOUT: "advance rollouts",
    Verb.PROMOTE_NOW: "promote rollouts without their evidence",
    Verb.SUPERSEDE_ROLLOUT: "supersede rollouts",
    Verb.ABORT_ROLLOUT: "abort or cancel rollouts",
    Verb.ROLL_BACK: "roll back models",
    Verb.HANDLE_ALARM: "acknowledge, mute or close alarms",
    Verb.JUDGE: "have counters judged",
    Verb.MANAGE_WEBHOOKS: "manage webhooks",
    Verb.MANAGE_ACCOUNT: "manage accounts, tokens and sessions",
    Verb.ADMINISTER: "administer this installation",
}


def verbs_of(actor: Actor) -> frozenset[Verb]:
    """Everything that the actor may do anywhere: by any role in any team, and about themselves."""
    if actor.is_admin:
        return frozenset(Verb)
    return OF_ONESELF.union(*(MAY[Role(role)] for _, role in actor.roles))


@dataclass(frozen=True)
class Actor:
    """Who asks. `roles` maps a team's slug, or `*` for every team, to the roles held in it; `user_id` is None for the system itself.

    `is_admin` is an administrator whom no scope narrows. An administrator with a narrower token has `every_role` instead: ask `may`.
    `token_id` is the token that the request came with, None for a session; `secret_sha256`: the digest of its secret.
    """

    name: str
    user_id: int | None = None
    is_admin: bool = False
    is_system: bool = False
    roles: tuple[tuple[str, Role], ...] = ()
    every_role: bool = False
    scope: Scope = WHOLE
    token_id: int | None = None
    secret_sha256: str = ""

    @classmethod
    def system(cls, name: str) -> Actor:
        """The actor for a part of Sluicegate itself, such as the engine: it may do everything."""
        return cls(name=f"system:{name}", is_system=True)

    def roles_in(self, team: str) -> frozenset[Role]:
        """The roles held in the team, those that are held in every team among them."""
        return frozenset(role for slug, role in self.roles if slug in (team, EVERY_TEAM))


def may(actor: Actor, verb: Verb, team: str, model: str | None = None) -> bool:
    """Whether this actor may do this verb on what the team owns: on this model of it, or on what belongs to no single model."""
    if actor.is_system:
        return True
    return actor.scope.allows(verb, model) and _has_role_for(actor, verb, team)


def _has_role_for(actor: Actor, verb: Verb, team: str) -> bool:
    """Whether one of the actor's roles in the team allows the verb, ignoring the token's scope."""
    if actor.is_system or actor.is_admin or actor.every_role:
        return True
    return any(verb in MAY[role] for role in actor.roles_in(team))


def teams_where(actor: Actor, verb: Verb) -> frozenset[str] | None:
    """The teams in which the actor may do the verb on some model; None for every team. `scope` limits the models."""
    if actor.is_system:
        return None
    if not actor.scope.has_verb(verb):
        return frozenset()
    if _has_role_for(actor, verb, EVERY_TEAM):
        return None
    return frozenset(team for team, role in actor.roles if verb in MAY[role])


def require(actor: Actor, verb: Verb, team: str, model: str | None = None) -> None:
    """Raises Refused, naming sufficient roles or the gap in the token's scope, unless `may`."""
    if not _has_role_for(actor, verb, team):
        would = sorted(role.value for role, verbs in MAY.items() if verb in verbs)
        raise Refused(
            "forbidden",
            f"{actor.name} may not {DOING[verb]}{_of(verb, team)}; {_takes(would)}.",
            verb=verb.value,
            team=team,
            roles=would,
        )
    if not may(actor, verb, team, model):
        raise _out_of_scope(actor, verb, model)


def require_own(actor: Actor, user_id: int | None) -> None:
    """Raises Refused unless the account is the actor's own, which takes the scope to manage it, or the actor administers."""
    if actor.user_id is None or actor.user_id != user_id:
        require(actor, Verb.ADMINISTER, EVERY_TEAM)
    elif not all(actor.scope.allows(verb, None) for verb in OF_ONESELF):
        raise _out_of_scope(actor, Verb.MANAGE_ACCOUNT, None)


def scope_from(verbs: Iterable[str] | None, models: Iterable[str] | None) -> Scope:
    """The scope of these verbs and models; None: all. A role's name stands for the role's verbs; every scope may read its models.

    Raises Invalid, naming the unknown verbs and the impossible models.
    """
    wanted = None if verbs is None else {str(verb) for verb in verbs}
    if wanted is not None:
        unknown = sorted(wanted - set(Verb) - set(Role))
        if unknown:
            raise field_error("verbs", f"{unknown[0]!r} is no verb and no role.", f"Use {', '.join([*Verb, *Role])}.")
        of_roles = {verb.value for role in Role if role.value in wanted for verb in MAY[role]}
        wanted = (wanted - set(Role)) | of_roles | {Verb.READ.value}
        wanted |= {more.value for verb, with_it in _WITH.items() if verb.value in wanted for more in with_it}
    patterns = None if models is None else {str(model) for model in models}
    if patterns is not None and not 1 <= len(patterns) <= MOST_PATTERNS:
        raise field_error(
            "models", f"A scope has 1 to {MOST_PATTERNS} models.", "Name some, or leave the list out for all."
        )
    if patterns is not None and (wrong := sorted(unreadable_patterns(patterns))):
        fix = f"Use small letters, digits, - and _, with up to {MOST_STARS} stars in it, such as search-*."
        raise field_error("models", f"{wrong[0][:100]!r} is no model's name.", fix)
    return Scope(
        None if wanted is None else frozenset(map(str, wanted)), None if patterns is None else frozenset(patterns)
    )


def require_within(actor: Actor, scope: Scope) -> None:
    """Raises Refused unless the actor's own scope holds all of this one: no token makes a wider one."""
    if actor.is_system or actor.scope.holds(scope):
        return
    raise Refused(
        "out_of_scope",
        f"This token of {actor.name} has the scope {actor.scope.text()} and can give no more; asked was {scope.text()}. "
        "Ask for less, or sign in with a password.",
    )


def _out_of_scope(actor: Actor, verb: Verb, model: str | None) -> Refused:
    """Refusal that names the gap in the token's scope: the verb, the model, or all models."""
    if not actor.scope.has_verb(verb):
        lacks = f"the verb {verb.value}"
    else:
        lacks = f"the model {model}" if model is not None else "all models, which this takes"
    return Refused(
        "out_of_scope",
        f"This token of {actor.name} may not {DOING[verb]}: its scope is {actor.scope.text()}, and lacks {lacks}. "
        "Use another token, or issue one with that scope.",
        verb=verb.value,
        model=model,
        scope={
            "verbs": None if actor.scope.verbs is None else sorted(actor.scope.verbs),
            "models": None if actor.scope.models is None else sorted(actor.scope.models),
        },
    )


def require_version(current: int, expected: int | None, name: str, **facts: Any) -> None:
    """Raises Stale unless the row that is called `name` is at the version that the caller saw. None: the caller named no version.

    The refusal contains `facts`.
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
    return "" if verb is Verb.ADMINISTER or team in ("", EVERY_TEAM) else f" of team {team}"


def _takes(roles: list[str]) -> str:
    if not roles:
        return "only an administrator may"
    *others, last = roles
    return f"it takes the role {', '.join(others) + ' or ' if others else ''}{last}"
