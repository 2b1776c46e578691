"""Aliases: names that point to releases. Every change is logged as an event and compares the version that was seen."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from accounts.core.access import Actor, Verb, require, require_version
from ledger.actions import append_event
from ledger.core.errors import PreconditionRequired, StateChanged
from registry.actions.served_models import lock_model
from registry.core.alias import name_problems
from registry.core.schema import Problem, Text
from registry.core.spec import refuse
from registry.models import Alias, AliasEvent, Release, ServedModel
from registry.queries import require_sealed


def set_alias(
    *,
    actor: Actor,
    model: ServedModel,
    name: str,
    release: Release | None,
    expected_version: int | None,
    reason: str = "",
) -> Alias:
    """The alias, pointing to the release from now on; to none where `release` is None.

    `expected_version` is the one that was seen, 0 or None for an alias that there must not be yet. Nothing happens when it
    points there already. Raises Refused, Invalid for the name, PreconditionRequired, Stale, and StateChanged unless the
    release is sealed.
    """
    require(actor, Verb.SET_ALIAS, model.team.slug, model.slug)
    problems = name_problems(name)
    Text(2000).read(reason, "reason", problems)
    if release is not None and release.model_id != model.pk:
        problems.append(Problem("release", f"{release.name} is one of another model.", f"Name one of {model.slug}."))
    refuse("invalid_alias", "The alias", problems)
    with transaction.atomic():
        # The model's row is locked, so changes of its aliases are serialized, creation of a new alias too.
        lock_model(model)
        alias = Alias.objects.select_related("release", "model").filter(model=model, name=name).first()
        _refuse_stale(alias, name, expected_version)
        if release is not None:
            release = _usable(release)
        before = alias.release if alias else None
        if (alias is not None or release is None) and before == release:
            return alias or _nothing_to_clear(name)
        return _written(actor, alias or Alias(model=model, name=name, version=0), before, release, reason.strip())


def _written(actor: Actor, alias: Alias, before: Release | None, after: Release | None, reason: str) -> Alias:
    alias.release, alias.version, alias.changed_at = after, alias.version + 1, timezone.now()
    alias.save()
    AliasEvent.objects.create(
        alias=alias,
        version=alias.version,
        from_release=before,
        to_release=after,
        actor=actor.name,
        reason=reason,
        at=alias.changed_at,
    )
    append_event(
        verb="alias.set" if after else "alias.cleared",
        subject_type="alias",
        subject_id=f"{alias.model.slug}/{alias.name}",
        actor=actor,
        from_state=before.name if before else "",
        to_state=after.name if after else "",
        reason=reason,
        facts={"model": alias.model.slug, "digest": after.digest if after else None, "version": alias.version},
    )
    return alias


def _refuse_stale(alias: Alias | None, name: str, expected_version: int | None) -> None:
    version = alias.version if alias else 0
    if alias is not None and expected_version is None:
        raise PreconditionRequired(
            "if_match_missing",
            f"The alias {name} is there already, at version {version}. Send If-Match with the version you saw.",
            field="If-Match",
            version=version,
        )
    require_version(version, expected_version or 0, f"The alias {name}")


def _usable(release: Release) -> Release:
    """The release's row, locked so that it is not retired meanwhile. Raises StateChanged."""
    locked = Release.objects.select_for_update(no_key=True).get(pk=release.pk)
    require_sealed(locked, "can have an alias")
    return locked


def _nothing_to_clear(name: str) -> Alias:
    raise StateChanged("no_such_alias", f"There is no alias {name}, so there is nothing to clear.", alias=name)
