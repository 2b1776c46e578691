"""What the verdicts of a report mean to an environment: some gates hold a release up there, others only advise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from validators.core.gates import GATES
from validators.core.verdict import Verdict, combine


def advisory_in(policy: Mapping[str, Any], environment: str) -> frozenset[str]:
    """The gates that only advise there. `policy` is a document, maybe from before environments had a say."""
    own = (policy.get("environments") or {}).get(environment) or {}
    return frozenset(own.get("advisory") or ())


def advisory_anywhere(policy: Mapping[str, Any]) -> frozenset[str]:
    """The gates whose failure some environment may let pass, so that the gates after them still have to run."""
    return frozenset[str]().union(*(advisory_in(policy, one) for one in policy.get("environments") or {}))


def policy_in(policy: Mapping[str, Any], environment: str | None) -> dict[str, Any]:
    """The document with the age that evidence may have in the environment; for None in the strictest one that it speaks of.

    So what is taken over without an environment in mind is fresh enough for each.
    """
    usual, every = policy["evidence"]["max_age_days"], policy.get("environments") or {}
    if environment is None:
        ages = [usual, *(own.get("max_age_days") for own in every.values())]
        age = min((one for one in ages if one is not None), default=None)
    else:
        own_age = (every.get(environment) or {}).get("max_age_days")
        age = usual if own_age is None else own_age
    return {**policy, "evidence": {**policy["evidence"], "max_age_days": age}}


def entry(
    verdicts: Iterable[tuple[str, Verdict]], policy: Mapping[str, Any], environment: str | None = None
) -> tuple[Verdict, str]:
    """The verdict over the gates that hold a release up in the environment, over all of them for None, with a sentence."""
    advisory = advisory_in(policy, environment) if environment else frozenset[str]()
    allowed = frozenset(gate for gate in GATES if (policy.get(gate) or {}).get("undecided") == "allow")
    return combine(((gate, one) for gate, one in verdicts if gate not in advisory), undecided_allowed=allowed)
