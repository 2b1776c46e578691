"""Demands of a load section that leaves fields open: the model's objectives, and else the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from validators.core import token_policy
from validators.core.proof import sizing

#: How long errors are counted where there is no objective to prove, and the objective where nobody states one.
ERRORS_ONLY_S = 8.0
_QUANTILE, _MAX_ERROR_FRAC = 0.99, 0.001
LEAST_QUANTILE, MOST_QUANTILE = 0.0001, 0.9999
#: Where a load's rate comes from: the policy, or what the server was measured to do, at most the policy's.
STATED, MEASURED = "stated", "measured"


def inherited(load: Mapping[str, Any], stated: Mapping[str, Any], objectives: Mapping[str, Any]) -> dict[str, Any]:
    """The load section with nothing left open: absent fields follow from the model's objectives.

    A quantile belongs to its threshold: a section with its own `slo_ms` takes none from the model. A rate that is not stated is what
    the server is asked at most.
    """
    if load["rate_from"] is None:
        load = {**load, "rate_from": STATED if "rate_per_s" in stated else MEASURED}
    slow = objectives.get("slow")
    slow = slow if isinstance(slow, Mapping) and load["slo_ms"] is None else {}
    own = {
        "slo_ms": slow.get("threshold_ms"),
        "slo_quantile": _quantile(slow.get("max_frac")),
        "max_error_frac": objectives.get("errors_max_frac", _MAX_ERROR_FRAC),
    }
    out = {**load, **{name: value for name, value in own.items() if load[name] is None}}
    if out["max_duration_s"] is None:
        out["max_duration_s"] = sizing({**out, "duration_s": None}).deadline_s
    if out["slo_ms"] is None and out["duration_s"] is None:
        out["duration_s"] = min(ERRORS_ONLY_S, out["max_duration_s"])
    return token_policy.stated(out)


def _quantile(max_frac: Any) -> float:
    """The quantile of an objective on slow requests, within the range that a load gate can test."""
    return _QUANTILE if max_frac is None else round(min(MOST_QUANTILE, max(LEAST_QUANTILE, 1 - float(max_frac))), 9)
