"""The verbs of environments: make one, and change the rules for entering it."""

from __future__ import annotations

import re
from typing import Any

from django.db import IntegrityError, transaction

from accounts.core.access import Actor, Verb, require, require_version
from accounts.core.slugs import slug_near
from ledger.actions import append_event
from ledger.core.errors import StateChanged, field_error
from serving.environments.actions.locks import lock_open, notify_routes
from serving.environments.core.platforms import PlatformKind
from serving.environments.queries.inventory import live_replicas
from serving.models import Environment, ListedServer

_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
#: What may be changed of one. Whether it has a gateway is decided when it is made: its routes rest on that.
CHANGEABLE = ("title", "platform", "needs_passed_report", "needs_approval", "allows_forced_release")


def ensure_environment(*, slug: str, rules: dict[str, Any]) -> Environment:
    """The environment by this name, made with these rules if there was none. For whoever sets up an installation."""
    return Environment.objects.get_or_create(slug=slug, defaults=rules)[0]


@transaction.atomic
def create_environment(*, actor: Actor, slug: str, is_routed: bool = True, **rules: Any) -> Environment:
    """The environment; `rules` is of CHANGEABLE. For administrators. Raises Refused, Invalid, StateChanged.

    Every rollout to an environment with a gateway waits for an approval, unless `rules` state otherwise.
    """
    require(actor, Verb.ADMINISTER, "*")
    rules = {"needs_approval": is_routed, **rules}
    if not _SLUG.fullmatch(slug):
        raise field_error(
            "slug",
            f"{slug[:60]!r} is no name of an environment.",
            "Use 1 to 40 lower-case letters, digits and dashes, with no dash at either end, "
            f"such as {slug_near(slug, 40) or 'staging'}.",
        )
    row = Environment(slug=slug, is_routed=is_routed, title=slug.title())
    _fill(row, rules)
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError:
        raise _exists(slug) from None
    _tell("environment.created", row, actor, is_routed=is_routed, **_rules(row))
    return row


@transaction.atomic
def change_environment(
    *, actor: Actor, environment: Environment, expected_version: int | None, changes: dict[str, Any]
) -> Environment:
    """The environment with other rules (CHANGEABLE), which hold for whatever begins from now on.

    Rollouts that are under way keep the approvals that they were started with. Forced requests that are allowed again have a new key.
    Raises Refused, Stale, Invalid, StateChanged (it is retired).
    """
    require(actor, Verb.ADMINISTER, "*")
    row = lock_open(environment)
    require_version(row.version, expected_version, f"environment {row.slug}")
    before = _rules(row)
    _fill(row, changes)
    changed = {name: value for name, value in _rules(row).items() if value != before[name]}
    if not changed:
        return row
    row.version += 1
    if "platform" in changed:
        _refuse_platform_in_use(row)
    if changed.get("allows_forced_release"):
        row.forced_key_number += 1  # the key changes with it
    row.save(update_fields=[*CHANGEABLE, "forced_key_number", "version"])
    if "allows_forced_release" in changed:
        notify_routes()  # gateways are told which releases may be forced
    _tell("environment.changed", row, actor, **changed)
    return row


def _refuse_platform_in_use(row: Environment) -> None:
    if live_replicas().filter(environment=row).exists() or ListedServer.objects.filter(environment=row).exists():
        raise StateChanged(
            "environment_in_use",
            f"Releases run in {row.slug}, or servers are listed there, so its platform stays as it is. "
            "Take them out first, or make another environment.",
        )


def _exists(slug: str) -> StateChanged:
    if Environment.objects.filter(slug=slug, retired_at=None).exists():
        return StateChanged("environment_exists", f"There is an environment {slug} already. Change that one.")
    return StateChanged(
        "environment_exists",
        f"{slug} is the name of a retired environment, whose history keeps it. Bring that one back "
        f"(sluicegate api POST /environments/{slug}/restore --if-match '*'), or choose another name.",
    )


def _fill(row: Environment, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if name not in CHANGEABLE:
            raise field_error(name, "This cannot be set.", f"What can is {', '.join(CHANGEABLE)}.")
        setattr(row, name, value)
    if row.platform not in list(PlatformKind):
        raise field_error("platform", f"{row.platform!r} is no platform.", f"Use {' or '.join(PlatformKind)}.")
    if not row.title.strip() or len(row.title) > 120 or not row.title.isprintable():
        raise field_error("title", "A title has 1 to 120 printable characters.", "Correct it.")


def _rules(row: Environment) -> dict[str, Any]:
    return {name: getattr(row, name) for name in CHANGEABLE}


def _tell(verb: str, row: Environment, actor: Actor, **facts: Any) -> None:
    append_event(verb=verb, subject_type="environment", subject_id=row.slug, actor=actor, facts=facts)
