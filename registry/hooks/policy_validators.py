"""Whether a model's policies can be read, asked when they are saved and not first when they are used.

What a policy may say is known in rooms above this one: they call `register_policy_validator` when Django is ready.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ledger.core.errors import Invalid
from registry.core.schema import Problem

#: Given the policy and the model's objectives: raises Invalid, with facts["errors"] = [{field, message, fix}].
Reader = Callable[[Mapping[str, Any], Mapping[str, Any]], object]
_readers: dict[str, Reader] = {}


def register_policy_validator(field: str, read: Reader) -> None:
    """From now on this field of models, such as `rollout_policy`, must be readable."""
    _readers[field] = read


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
