"""Whether a model's policies can be read, and whether this person may change them so: asked when they are saved.

What a policy may say is known in rooms above this one: they call `register_policy_validator` when Django is ready.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from accounts.core.access import Actor
from ledger.core.errors import Invalid
from registry.core.schema import Problem
from registry.models import ServedModel

#: Given the policy and the model's objectives: raises Invalid, with facts["errors"] = [{field, message, fix}].
Reader = Callable[[Mapping[str, Any], Mapping[str, Any]], object]
_readers: dict[str, Reader] = {}
#: Given who asks, the model as it is, and its settings that would differ: raises Refused.
Guard = Callable[[Actor, ServedModel, Mapping[str, Any]], None]
_guards: list[Guard] = []


def register_policy_validator(field: str, read: Reader) -> None:
    """From now on this field of models, such as `rollout_policy`, must be readable."""
    _readers[field] = read


def register_change_guard(refuse: Guard) -> None:
    """From now on a change of a model must be allowed by this function too."""
    _guards.append(refuse)


def refuse_change(actor: Actor, model: ServedModel, after: Mapping[str, Any]) -> None:
    """Raises Refused if the actor may edit the model and may not make this change."""
    for refuse in _guards:
        refuse(actor, model, after)


def policy_problems(settings: Mapping[str, Any]) -> list[Problem]:
    """Every mistake in the policies among a model's settings, at `rollout_policy.steps[0].min_s` and the like."""
    problems = []
    objectives = settings.get("objectives") or {}
    for name, read in _readers.items():
        policy = settings.get(name)
        if not policy:  # an empty one is the default
            continue
        try:
            read(policy, objectives)
        except Invalid as error:
            said = error.facts.get("errors") or [{"field": "", "message": error.message, "fix": "Correct it."}]
            problems += [
                Problem(f"{name}.{one['field']}" if one["field"] else name, one["message"], one["fix"]) for one in said
            ]
    return problems
