"""Models: create and change."""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F

from accounts.core.access import Actor, Verb, require, require_version
from accounts.models import Team
from ledger.actions import append_event
from ledger.core.errors import StateChanged
from registry.core.spec import refuse
from registry.hooks.policy_validators import refuse_change
from registry.models import ServedModel
from registry.queries.model_changes import new_model, proposed_change


def create_model(
    *,
    actor: Actor,
    slug: str,
    team: Team | str,
    title: str = "",
    description: str = "",
    contract: dict[str, Any],
    objectives: dict[str, Any],
    gate_policy: dict[str, Any],
    rollout_policy: dict[str, Any],
    ownership: dict[str, Any] | None = None,
    traffic_policy: dict[str, Any] | None = None,
) -> tuple[ServedModel, bool]:
    """(the model, whether it was created): the one that is there, if it says the same.

    `team` is a team or its slug. Raises Refused, Invalid("invalid_model") with every problem, and
    StateChanged("model_exists") when the name is taken by a model that says something else.
    """
    team_slug = team if isinstance(team, str) else team.slug
    require(actor, Verb.CREATE_MODEL, team_slug, slug)
    given = {
        "title": title,
        "description": description,
        "contract": contract,
        "objectives": objectives,
        "gate_policy": gate_policy,
        "rollout_policy": rollout_policy,
        "ownership": ownership or {},
        "traffic_policy": traffic_policy or {},
    }
    owner, settings = _checked(slug, team_slug, given)
    try:
        with transaction.atomic():
            model = ServedModel.objects.create(slug=slug, team=owner, created_by_id=actor.user_id, **settings)
            facts = {"team": team_slug, **settings}
            append_event(verb="model.created", subject_type="model", subject_id=slug, actor=actor, facts=facts)
            return model, True
    except IntegrityError:
        return _same_model(slug, team_slug, settings), False


def _checked(slug: str, team_slug: str, given: dict[str, Any]) -> tuple[Team, dict[str, Any]]:
    """(the owner, the settings in normal form). Raises Invalid with every problem."""
    owner, settings, problems = new_model(slug, team_slug, given)
    refuse("invalid_model", "The model", problems)
    assert owner is not None  # there is one when there is no problem
    return owner, settings


def _same_model(slug: str, team_slug: str, settings: dict[str, Any]) -> ServedModel:
    model = ServedModel.objects.select_related("team").get(slug=slug)
    if model.team.slug == team_slug and all(getattr(model, name) == value for name, value in settings.items()):
        return model
    raise StateChanged(
        "model_exists",
        f"The name {slug} is taken by another model. Choose another name, or change that model.",
        slug=slug,
    )


@transaction.atomic
def change_model(*, actor: Actor, model: ServedModel, expected_version: int, changes: dict[str, Any]) -> ServedModel:
    """The model with other settings: title, description, objectives, policies, ownership, and the contract before the first seal.

    Raises Refused, Stale, and Invalid("invalid_model") with every problem. Nothing happens when nothing differs.
    """
    model = lock_model(model)
    require(actor, Verb.EDIT_MODEL, model.team.slug, model.slug)
    require_version(model.version, expected_version, f"The model {model.slug}")
    proposed = proposed_change(model, changes)
    refuse("invalid_model", "The model", proposed.problems)
    if not proposed.before:
        return model
    refuse_change(actor, model, proposed.after)
    ServedModel.objects.filter(pk=model.pk).update(version=F("version") + 1, **proposed.after)
    append_event(
        verb="model.changed",
        subject_type="model",
        subject_id=model.slug,
        actor=actor,
        facts={"before": proposed.before, "after": proposed.after},
    )
    model.refresh_from_db()
    return model


def lock_model(model: ServedModel) -> ServedModel:
    """The model as it is now; nobody changes it until the transaction ends."""
    return ServedModel.objects.select_for_update(no_key=True, of=("self",)).select_related("team").get(pk=model.pk)
