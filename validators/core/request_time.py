"""How long gates wait for a request, beside the limits of the model's users.

A gate that gives a request up earlier than a gateway does would call a sound release bad. So a time that the policy does
not state follows from the limits that gateways keep, and one that it states must not contradict the objectives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from registry.core.schema import Problem
from serving.traffic.core.request_limits import USUAL_LIMITS, Limits, limits_stated
from validators.core.gates import GATES

#: Sections with a time-out for one request.
ASKING: Final = tuple(name for name, gate in GATES.items() if "timeout_s" in gate.section.members)
#: A request of this length or less needs no more than a policy's defaults, in seconds.
_USUAL_S: Final = 10.0
#: A gate may take as long as this many requests, one after the other, that take their whole time.
REQUESTS_OF_A_GATE: Final = 60
_LONGEST_GATE_S: Final = 86_400.0


def with_request_time(
    read: Mapping[str, Any], stated: Mapping[str, Any], objectives: Mapping[str, Any], default: Limits
) -> dict[str, Any]:
    """The policy, with room for the model's requests wherever the policy states no time of its own."""
    request_s = _request_s(objectives, default)
    if request_s <= _USUAL_S:
        return dict(read)
    out = dict(read)
    for name in ASKING:
        own = stated.get(name) or {}
        derived = {} if "timeout_s" in own else {"timeout_s": max(read[name]["timeout_s"], request_s)}
        if GATES[name].judges_start and "max_s" not in own:  # a start ends with a real inference
            derived["max_s"] = read[name]["max_s"] + request_s - _USUAL_S
        out[name] = {**read[name], **derived}
    if "gate_timeout_s" not in stated:
        out["gate_timeout_s"] = min(_LONGEST_GATE_S, max(read["gate_timeout_s"], REQUESTS_OF_A_GATE * request_s))
    return out


def contradictions(stated: Mapping[str, Any], objectives: Mapping[str, Any]) -> list[Problem]:
    """Times in a policy that contradict the model's objectives or each other. Times that it does not state cannot."""
    limits = [objectives[name] for name in ("attempt_timeout_s", "timeout_s") if objectives.get(name) is not None]
    gate_s, problems = stated.get("gate_timeout_s"), []
    for name in ASKING:
        own_s = (stated.get(name) or {}).get("timeout_s")
        if own_s is None:
            continue
        if limits and own_s < min(limits):
            said = (
                f"the gate gives a request up after {own_s:g} s, and the model's objectives give it {min(limits):g} s."
            )
            fix = "Leave it out, so that it follows from the objectives, or give the objectives less time."
            problems.append(Problem(f"{name}.timeout_s", said, fix))
        if gate_s is not None and own_s > gate_s:
            said = f"one request may take {own_s:g} s, and the whole gate {gate_s:g} s (gate_timeout_s)."
            problems.append(Problem(f"{name}.timeout_s", said, "Raise gate_timeout_s, or shorten it."))
    request_s = _request_s(objectives, USUAL_LIMITS)
    if gate_s is not None and limits and gate_s < request_s:
        said = (
            f"a whole gate may take {gate_s:g} s, and by the model's objectives one request may take {request_s:g} s."
        )
        problems.append(Problem("gate_timeout_s", said, "Leave it out, or give it more time than a request."))
    return problems


def _request_s(objectives: Mapping[str, Any], default: Limits) -> float:
    """Longest request by the objectives, in seconds; the default's if the objectives contradict each other.

    Those have a mistake of their own, which `registry.core.timeouts.of_objectives` reports.
    """
    try:
        return limits_stated(objectives, default).timeout_s
    except (TypeError, ValueError):
        return default.timeout_s
