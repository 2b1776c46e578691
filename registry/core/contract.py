"""What a model promises: its tensors, and the objectives it is held to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from registry.core.ownership import OWNERSHIP
from registry.core.schema import Json, ListOf, Number, Object, Problem, Record, Text, may, need, repeated
from registry.core.serving import TENSOR
from registry.core.spec import SLUG
from registry.core.timeouts import of_objectives
from registry.core.traffic import TRAFFIC_POLICY, contradictions

CONTRACT: Final = Record({"inputs": may(ListOf(TENSOR, most=200), []), "outputs": may(ListOf(TENSOR, most=200), [])})
_LONGEST_S: Final = 600  # as long as gateways wait at most; see serving.traffic.core.request_limits.Limits
_WAIT: Final = Number(above=True, most=_LONGEST_S, unit="seconds")
#: Models have pages at /models/<name>/, and these are others.
_TAKEN: Final = frozenset({"new"})
_TIMES: Final = Record(
    {
        "threshold_ms": need(Number(above=True, most=3_600_000, unit="milliseconds")),
        "max_frac": need(Number(most=1)),
    }
)
#: An objective that is not stated is not watched; a time-out that is not stated is the installation's.
OBJECTIVES: Final = Record(
    {
        "timeout_s": may(_WAIT),  # what a user waits for at most
        "attempt_timeout_s": may(_WAIT),  # what one attempt may take before stable is asked instead
        "errors_max_frac": may(Number(most=1)),
        "slow": may(_TIMES),
        "first_token": may(_TIMES),  # of streams: until the first text
        "stalled": may(_TIMES),  # of streams: the largest gap between texts
        "wrong": may(Record({"max_frac": need(Number(most=1))})),
    },
    elsewhere={
        "max_error_frac": "Write errors_max_frac.",
        "slow_ms": "Write slow: {threshold_ms: …, max_frac: …}.",
        "max_slow_frac": "Write slow: {threshold_ms: …, max_frac: …}.",
        "ttft_ms": "Write first_token: {threshold_ms: …, max_frac: …}.",
        "itl_ms": "Write stalled: {threshold_ms: …, max_frac: …}.",
    },
)
_POLICY: Final = Object(Json())  # read and checked where policies are used
SETTINGS: Final = Record(
    {
        "title": may(Text(120)),
        "description": may(Text(10_000)),
        "contract": may(CONTRACT),
        "objectives": may(OBJECTIVES),
        "gate_policy": may(_POLICY),
        "rollout_policy": may(_POLICY),
        "traffic_policy": may(TRAFFIC_POLICY),
        "ownership": may(OWNERSHIP),
    }
)


def read_slug(slug: Any) -> list[Problem]:
    """What is wrong with a model's name."""
    problems: list[Problem] = []
    SLUG.read(slug, "slug", problems)
    if slug in _TAKEN:
        problems.append(Problem("slug", f"{slug!r} is the address of a page.", "Choose another name."))
    return problems


def read_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """(those settings of a model that are given, in normal form; every problem)."""
    problems: list[Problem] = []
    read = SETTINGS.read(settings, "", problems)
    if not isinstance(read, dict):
        return {}, problems
    problems += of_objectives(read.get("objectives", {}))
    problems += contradictions(read.get("traffic_policy", {}))
    for side in ("inputs", "outputs"):
        names = [tensor.get("name") for tensor in read.get("contract", {}).get(side, [])]
        problems += [
            Problem(f"contract.{side}", f"the name {name!r} occurs twice.", "Give every tensor a name of its own.")
            for name in repeated(name for name in names if name)
        ]
    return read, problems
