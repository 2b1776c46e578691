"""Taking an environment out of use, and bringing one back.

One in which nothing ever ran is deleted. Any other is retired: its routes, rollouts and evidence are history, which is never rewritten.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db import transaction
from django.utils import timezone

from accounts.core.access import EVERY_TEAM, Actor, Verb, require, require_version
from ledger.actions import append_event
from ledger.core import plans
from ledger.core.errors import Invalid
from ledger.core.verbs import EventVerb
from registry.actions.releases import lock_release
from rollouts.queries.removal import obstacles
from serving.environments.actions.locks import lock_routes, notify_routes, refuse_retired
from serving.environments.core.reasons import LONGEST_REASON
from serving.models import Environment
from serving.targets.platforms import platform_of
from serving.targets.queries.removal import has_history
from serving.traffic.actions.gateways import remove_gateway
from serving.traffic.queries.routes import every_route


@dataclass(frozen=True)
class Removal:
    """Fate of an environment. `says`: in sentences, first the environment's own."""

    environment: str
    is_deleted: bool  # otherwise it is retired
    says: tuple[str, ...]

    @property
    def plan_digest(self) -> str:
        """Names what it says, so that nothing else is done to who has read it."""
        return plans.plan_digest(self.says)


@transaction.atomic
def plan_removal(*, actor: Actor, environment: Environment) -> Removal:
    """What `remove_environment` would do now. Raises Refused, NotFound, StateChanged as that."""
    return _plan(_locked(actor, environment, None, ""))


@transaction.atomic
def remove_environment(
    *,
    actor: Actor,
    environment: Environment,
    reason: str,
    is_confirmed: bool,
    plan_digest: str = "",
    expected_version: int | None = None,
) -> Removal:
    """Deletes an environment without history, else retires it: its servers stop, and it takes no more releases.

    Raises Refused, Stale, NotFound, StateChanged: it is retired already, or in use (a rollout, a gate run, a gateway that speaks,
    another environment that rests on its gates); "plan_changed" where `plan_digest` is not that of what it would do now; and
    Invalid("not_confirmed") where servers go with it, and neither `is_confirmed` nor a plan is said.
    """
    found = _locked(actor, environment, expected_version, reason)
    plan = _plan(found)
    platform = platform_of(found)
    releases = platform.hold(found)  # and the gateways, before the first event
    gateways = list(found.gateways.order_by("name").select_for_update(no_key=True))
    plans.require_read(plan.says, plan.plan_digest, plan_digest, is_confirmed=is_confirmed or not releases)
    why = reason.strip() or f"{found.slug} is taken out of use."
    platform.clear(found, actor=actor, reason=why, is_deleted=plan.is_deleted)
    for gateway in gateways:
        remove_gateway(actor=actor, gateway=gateway, reason=why)
    if plan.is_deleted:
        found.delete()
    else:
        found.replica_targets.all().delete()
        found.sleeps.all().delete()
        found.retired_at, found.retired_by, found.retire_reason = timezone.now(), actor.name, reason.strip()
        _save(found)
    _tell(
        EventVerb.ENVIRONMENT_DELETED if plan.is_deleted else EventVerb.ENVIRONMENT_RETIRED,
        found,
        actor,
        reason,
        plan.says,
    )
    return plan


@transaction.atomic
def restore_environment(
    *, actor: Actor, environment: Environment, reason: str = "", expected_version: int | None = None
) -> Environment:
    """The retired environment in use again, with a server asked for of each release that was stable there. Idempotent.

    Raises Refused, Stale, NotFound, and what `Platform.start` does: a release was retired meanwhile, is still being taken out, or has
    no room. Its gateways are registered anew.
    """
    require(actor, Verb.ADMINISTER, EVERY_TEAM)
    for route in every_route().filter(environment=environment).order_by("stable"):
        lock_release(route.stable)  # none of them is retired meanwhile; before the environment's row, as gate runs do
    found = lock_routes(environment)
    require_version(found.version, expected_version, f"environment {found.slug}")
    _check_reason(reason)
    if found.retired_at is None:
        return found
    platform = platform_of(found)
    platform.hold(found, *(route.stable for route in every_route().filter(environment=found)))  # before the first event
    found.retired_at, found.retired_by, found.retire_reason = None, "", ""
    _save(found)
    why = reason.strip() or f"{found.slug} is in use again."
    for route in every_route().filter(environment=found):
        platform.start(route.stable, found, actor=actor, reason=why)
    _tell(EventVerb.ENVIRONMENT_RESTORED, found, actor, reason, ())
    return found


def _locked(actor: Actor, environment: Environment, expected_version: int | None, reason: str) -> Environment:
    """The row of one in use, locked: whoever would begin something there waits, and then finds it as it is by then."""
    require(actor, Verb.ADMINISTER, EVERY_TEAM)
    found = lock_routes(environment)
    require_version(found.version, expected_version, f"environment {found.slug}")
    _check_reason(reason)
    return refuse_retired(found)


def _check_reason(reason: str) -> None:
    if len(reason) > LONGEST_REASON:
        raise Invalid("reason_too_long", f"The reason has {len(reason)} characters; {LONGEST_REASON} are the most.")


def _plan(environment: Environment) -> Removal:
    for obstacle in obstacles(environment):
        raise obstacle
    is_deleted, slug = not has_history(environment), environment.slug
    first = (
        f"Nothing ever ran in {slug}: it is deleted, and its name is free."
        if is_deleted
        else f"{slug} is retired: nothing is deployed or rolled out there any more. Its history, evidence and log stay, and its name."
    )
    return Removal(
        slug, is_deleted, (first, *platform_of(environment).plan_clearing(environment, is_deleted=is_deleted))
    )


def _save(environment: Environment) -> None:
    environment.version += 1
    environment.save(update_fields=["retired_at", "retired_by", "retire_reason", "version"])
    notify_routes()


def _tell(verb: EventVerb, environment: Environment, actor: Actor, reason: str, says: tuple[str, ...]) -> None:
    append_event(
        verb=verb, subject_type="environment", subject_id=environment.slug, actor=actor, reason=reason.strip(),
        facts={"says": list(says)} if says else {},
    )  # fmt: skip
