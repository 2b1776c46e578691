"""Settings and mistakes of a new model, and the effect of a change. The actions and the forms ask before they write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from accounts.models import Team
from accounts.queries import find_team
from registry.core.contract import read_settings, read_slug
from registry.core.schema import Problem
from registry.core.timeouts import of_releases
from registry.hooks.policy_validators import policy_problems
from registry.hooks.usage import usages_of
from registry.models import ServedModel

#: The settings that say what a release is held to, and what its gateways let through.
POLICIES: Final = ("objectives", "gate_policy", "rollout_policy", "traffic_policy")
#: Users of releases that send them no traffic: gate runs, and names for them.
_NO_TRAFFIC: Final = frozenset({"validators", "aliases"})


@dataclass(frozen=True)
class ProposedChange:
    """`before` and `after`: the settings that would differ, in normal form; `problems`: everything that speaks against it."""

    before: dict[str, Any]
    after: dict[str, Any]
    problems: list[Problem]


def proposed_change(model: ServedModel, changes: Mapping[str, Any]) -> ProposedChange:
    """What these settings would change of the model. Writes nothing."""
    read, problems = read_settings(changes)
    before = {name: getattr(model, name) for name, value in read.items() if getattr(model, name) != value}
    if "contract" in before and model.last_number:
        problems.append(
            Problem(
                "contract",
                f"clients rely on it since r1; {model.slug} has {model.last_number} sealed releases.",
                "Create a new model for a new contract.",
            )
        )
    if before.keys() & set(POLICIES):  # what was saved before is not judged anew
        problems += policy_problems({**{name: getattr(model, name) for name in POLICIES}, **read})
    if "objectives" in before:
        problems += of_releases(_in_use(model), model.objectives, read["objectives"])
    return ProposedChange(before, {name: read[name] for name in before}, problems)


def new_model(slug: str, team_slug: str, given: Mapping[str, Any]) -> tuple[Team | None, dict[str, Any], list[Problem]]:
    """(the owner, the settings in normal form, every mistake) of a model that is to be created. Writes nothing."""
    settings, problems = read_settings(given)
    problems += policy_problems(settings)
    owner = find_team(team_slug)
    if owner is None:
        fix = "Name another team, or create it as an administrator: sluicegate api POST /teams slug=TEAM"
        problems.append(Problem("team", f"there is no team {team_slug!r}.", fix))
    return owner, settings, read_slug(slug) + problems


def _in_use(model: ServedModel) -> list[tuple[str, dict[str, Any]]]:
    """(`r7 (stable in production)`, its manifest) of each release of the model that serves, or is to."""
    uses = usages_of(set(model.releases.exclude(number=None).values_list("pk", flat=True)), but=_NO_TRAFFIC)
    used = model.releases.filter(pk__in=uses).order_by("number")
    return [(f"{one.name} ({uses[one.pk][0]})", json.loads(one.manifest)) for one in used]
