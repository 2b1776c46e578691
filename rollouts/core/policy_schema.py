"""A rollout policy read from JSON, with every default filled in. docs/rollouts.md lists all fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ledger.core.canonical import digest_of
from ledger.core.errors import Invalid
from registry.core.schema import (
    INVALID,
    Flag,
    Integer,
    ListOf,
    Number,
    Object,
    Problem,
    Record,
    Text,
    listed,
    may,
    need,
    repeated,
)
from rollouts.core.evidence import Tolerance
from rollouts.core.freeze_schema import WINDOW, built_window
from rollouts.core.indicators import CALLERS, INDICATORS, Source
from rollouts.core.policy import (
    ONE_LOOK,
    Control,
    Guard,
    OnUndecided,
    Policy,
    SecondLook,
    Shadow,
    Step,
    WhenStableIsGone,
)
from rollouts.core.policy_contradictions import blind, contradictions
from rollouts.core.presets import (
    PRESETS,
    PROMOTE_WITHIN,
    REFUSED_ALPHA,
    ROLL_BACK_OVER,
)
from rollouts.core.rules.table import SETTINGS
from serving.traffic.core.buckets import EDGES_US
from serving.traffic.core.promql import mistakes

MOST_FOLLOWED = 256  # policies of rollouts that this process remembers as they are followed
_TIMED = [one.name for one in INDICATORS.values() if one.has_thresholds]
_SECONDS = Number(0, 30 * 86_400, unit="seconds")
_DEADLINE = Number(0, 30 * 86_400, above=True, unit="seconds")
_SHARE = Number(0, 1)
_ALPHA = Number(0, 0.5, above=True)
_MS = Number(0, EDGES_US[-1] / 1000, above=True, unit="milliseconds")
_STAGE = {
    "min_s": need(_SECONDS),
    "min_samples": need(Integer(1, 10**9, unit="attempts")),
    "deadline_s": need(_DEADLINE),
}
_STEP = Record({"weight_pct": need(Number(0, 100, above=True, unit="percent")), **_STAGE})
_BAKE = Record(_STAGE)
_SHADOW = Record({"sample_pct": need(Number(0, 100, unit="percent")), **_STAGE})
_SECOND_LOOK = Record(
    {"looks": may(Integer(1, 3, unit="looks")), "after_s": may(_SECONDS), "alpha_second": may(_ALPHA)}
)
_WATCH = Record(
    {
        "control_pct": may(Number(0, 5, unit="percent")),
        "roll_back": may(Text(one_of=("never", "undo_window"), says="when to roll back")),
    }
)
_TOLERANCE = Record({"ratio": need(Number(1, 100)), "plus_frac": need(_SHARE)})
_QUERY = Text(2000, like='sum(orders_failed_total{release="$release"})', says="a PromQL query")
_LABEL = Text(
    40,
    pattern=r"[a-z][a-z0-9_]*",
    like="checkout",
    says="a label",
    rule="small letters, digits and _, at most 40 and beginning with a letter",
)
_GUARD = Record(
    {
        "indicator": need(Text(one_of=tuple(INDICATORS), says="an indicator")),
        "threshold_ms": may(_MS, None),
        "thresholds_ms": may(ListOf(_MS, least=1, most=8), None),
        "label": may(_LABEL, None),
        "bad_query": may(_QUERY, None),
        "total_query": may(_QUERY, None),
        "max_frac": may(_SHARE, None),
        "roll_back_over": may(_TOLERANCE, None),
        "promote_within": may(_TOLERANCE, None),
        "alpha": may(_ALPHA, None),
        "critical": may(Flag(), True),
        "must_have_data": may(Flag(), True),
        "dry_run": may(Flag(), False),
    }
)
_POLICY = Record(
    {
        "preset": may(Text(one_of=tuple(PRESETS), says="a preset"), "standard"),
        "steps": may(ListOf(_STEP, least=1, most=50)),
        "bake": may(_BAKE),
        "shadow": may(_SHADOW),
        "guards": may(ListOf(_GUARD, least=1, most=20), None),
        "holdback_pct": may(Number(0, 50, above=True, unit="percent")),
        "alpha_roll_back": may(_ALPHA),
        "alpha_promote": may(_ALPHA),
        **{name: may(Text(one_of=("hold", "roll_back"), says="what to do")) for name in ("on_undecided", "on_blind")},
        "when_stable_is_gone": may(Text(one_of=("hold", "replace"), says="what to do")),
        "second_look": may(_SECOND_LOOK),
        "watch": may(_WATCH),
        "all_failing_attempts": may(Integer(5, 10_000, unit="attempts")),
        "budget_bad": may(Integer(1, 10**9, unit="attempts"), None),
        "approvals": may(Object(Integer(1, 20, unit="people"), most=60)),
        "freeze_windows": may(ListOf(WINDOW, most=50)),
        **{
            name: may(_DEADLINE)
            for name in (
                "no_data_s", "stale_s", "blind_limit_s", "ack_deadline_s", "prepare_deadline_s", "deadline_s",
                "dispersion_window_s", "approval_valid_s", "stable_gone_s",
            )
        },
        "instant_window_s": may(_SECONDS),
        "undo_max_s": may(_SECONDS),
        **{one.name: may(one.schema) for one in SETTINGS},
    },
    elsewhere={
        "bake_s": "Write bake: {min_s: …, min_samples: …, deadline_s: …}.",
        "alpha": "Write alpha_roll_back or alpha_promote.",
        "weights": "Write steps: [{weight_pct: …, min_s: …, min_samples: …, deadline_s: …}].",
    },
)  # fmt: skip


def parse_policy(document: Mapping[str, Any], objectives: Mapping[str, Any] | None = None) -> Policy:
    """The policy of a JSON object on top of its preset (`standard` if it names none), from a caller.

    Where `guards` is absent, errors are guarded, and each other indicator that the model's `objectives` name.

    Raises:
        Invalid: `rollout_policy_invalid`, with facts["errors"] = [{field, message, fix}] naming every mistake at once.
    """
    return _read(document, objectives or {}, is_asked=True)


def stored_policy(document: Mapping[str, Any], objectives: Mapping[str, Any] | None = None) -> Policy:
    """The policy as it was stored. What would only be unwise to ask for today does not stop a rollout that runs by it.

    Raises Invalid, as `parse_policy` does.
    """
    return _read(document, objectives or {}, is_asked=False)


def watching_refusals(policy: Policy) -> Policy:
    """The policy with a guard on callers' mistakes, unless it states one. For rollouts that begin.

    Without that guard, a candidate that refuses good requests only has fewer attempts. The guard asks for no more proof than the
    policy's own guards do, and takes its share of the chance to roll back from what these leave: none, if they leave nothing.
    """
    own = [guard.alpha for guard in policy.guards if guard.alpha is not None]
    left = policy.alpha_roll_back - sum(own)
    if any(guard.kind.is_callers for guard in policy.guards) or left <= 1e-9 * policy.alpha_roll_back:
        return policy
    share = REFUSED_ALPHA * (left if len(own) < len(policy.guards) else policy.alpha_roll_back)
    within = max((guard.promote_within for guard in policy.guards), key=lambda one: (one.plus_frac, one.ratio))
    refused = {
        "indicator": CALLERS.name,
        "alpha": min(share, left),
        "promote_within": {"ratio": within.ratio, "plus_frac": within.plus_frac},
    }
    return stored_policy({**policy.document, "guards": [*policy.document["guards"], refused]})


@lru_cache(maxsize=MOST_FOLLOWED)
def followed_policy(text: str, *, has_stable: bool) -> Policy:
    """`stored_policy` of a document's JSON, as it can be followed with or without a stable release: a page asks for it often,
    and reading it takes a millisecond. One that was stored before there were second looks, or undo windows by evidence, has none."""
    document = json.loads(text)
    policy = stored_policy(document).facing(has_stable=has_stable)
    earlier: dict[str, Any] = {
        "second_look": ONE_LOOK,
        "undo_max_s": 0.0,
    }  # the meaning of a stored policy without the field
    return replace(policy, **{name: value for name, value in earlier.items() if name not in document})


def _read(document: Mapping[str, Any], objectives: Mapping[str, Any], *, is_asked: bool) -> Policy:
    problems: list[Problem] = []
    read = _POLICY.read(document, "", problems)
    if not isinstance(read, dict) or "preset" not in read:
        raise _invalid(problems)
    if "budget_bad" not in document:
        read.pop("budget_bad")  # absent is the preset's; null is no limit
    whole = {**deepcopy(PRESETS[read["preset"]]), **read}
    for name in ("second_look", "watch"):
        whole[name] = {**PRESETS[read["preset"]][name], **read.get(name, {})}
    guards = _guards(whole, objectives, problems)
    problems += contradictions(whole, guards) + (blind(guards) if is_asked else [])
    if problems:
        raise _invalid(problems)
    whole["guards"] = guards
    return _built(whole)


def _invalid(problems: list[Problem]) -> Invalid:
    first = problems[0]
    return Invalid(
        "rollout_policy_invalid",
        f"The rollout policy cannot be read: {first.field or 'policy'}: {first.message} {first.fix}",
        errors=[problem.as_json() for problem in listed(problems)],
    )


# --- guards -----------------------------------------------------------------------------------------------------------


def _guards(whole: Mapping[str, Any], objectives: Mapping[str, Any], problems: list[Problem]) -> list[dict[str, Any]]:
    given = whole.get("guards")
    if given is None:
        asked = [one for one in INDICATORS.values() if one.by_default(objectives, whole)]
        given = [{"indicator": one.name} for one in asked if not one.is_callers]
        alpha = whole["alpha_roll_back"]
        given += [{"indicator": one.name, "alpha": REFUSED_ALPHA * alpha} for one in asked if one.is_callers]
    out = []
    for i, guard in enumerate(given):
        if isinstance(guard, dict) and guard.get("indicator", INVALID) is not INVALID:
            out.append(_guard(guard, whole["preset"], objectives, f"guards[{i}]", problems))
    for name in repeated((one["indicator"], one["threshold_ms"], one["label"]) for one in out):
        problems.append(
            Problem(
                "guards", f"{name[0]} is guarded twice.", "Name every indicator, with its threshold or label, once."
            )
        )
    return out


def _guard(
    guard: dict[str, Any], preset: str, objectives: Mapping[str, Any], at: str, problems: list[Problem]
) -> dict[str, Any]:
    indicator = INDICATORS[guard["indicator"]]
    stated = indicator.objective(objectives, indicator.name)
    threshold, points = _thresholds(guard, stated, at, problems)
    _check_queries(guard, at, problems)
    max_frac = guard.get("max_frac")
    if max_frac is None:
        max_frac = stated.get("max_frac")
    return {
        "indicator": indicator.name,
        "threshold_ms": threshold,
        "thresholds_ms": points,
        "label": guard.get("label"),
        "bad_query": guard.get("bad_query"),
        "total_query": guard.get("total_query"),
        "max_frac": indicator.max_frac if max_frac is None else max_frac,
        "roll_back_over": guard.get("roll_back_over") or dict(ROLL_BACK_OVER[preset][indicator.name]),
        "promote_within": guard.get("promote_within") or dict(PROMOTE_WITHIN[preset]),
        "alpha": guard.get("alpha"),
        "critical": guard.get("critical", True),
        "must_have_data": guard.get("must_have_data", True),
        "dry_run": guard.get("dry_run", False),
    }


def _thresholds(
    guard: Mapping[str, Any], stated: Mapping[str, Any], at: str, problems: list[Problem]
) -> tuple[float | None, list[float] | None]:
    """The objective's threshold and the points where slow attempts are counted, in ms; (None, None) for other indicators."""
    threshold, points = guard.get("threshold_ms"), guard.get("thresholds_ms")
    if not INDICATORS[guard["indicator"]].has_thresholds:
        for name, value in (("threshold_ms", threshold), ("thresholds_ms", points)):
            if value is not None:
                problems.append(
                    Problem(
                        f"{at}.{name}",
                        f"{guard['indicator']} have no threshold.",
                        f"Remove it, or write indicator: {' or '.join(_TIMED)}.",
                    )
                )
        return None, None
    threshold = stated.get("threshold_ms") if threshold is None else threshold
    if threshold is None:
        name = guard["indicator"]
        fix = f"Write threshold_ms, or give the model objectives.{name}."
        problems.append(Problem(f"{at}.threshold_ms", f"{name} has no threshold.", fix))
        return None, None
    for name, value in [(f"{at}.threshold_ms", threshold), *((f"{at}.thresholds_ms", one) for one in points or ())]:
        if problem := _no_edge(name, value):
            problems.append(problem)
    return threshold, sorted({threshold, *(_around(threshold) if points is None else points)})


def check_objectives(objectives: Mapping[str, Any], _: Mapping[str, Any]) -> None:
    """Raises Invalid if gateways cannot count at the thresholds of the objectives."""
    for name in _TIMED:
        threshold = (objectives.get(name) or {}).get("threshold_ms")
        if isinstance(threshold, int | float) and (problem := _no_edge(f"{name}.threshold_ms", threshold)):
            raise _invalid([problem])


def _no_edge(at: str, threshold_ms: float) -> Problem | None:
    """That gateways do not count at this threshold, and at which ones they do."""
    if round(threshold_ms * 1000) in EDGES_US:
        return None
    edges = ", ".join(f"{edge / 1000:g}" for edge in EDGES_US)
    return Problem(at, f"{threshold_ms:g} ms is not an edge that gateways count at.", f"Choose one of {edges}.")


def _around(threshold_ms: float) -> list[float]:
    """Two edges below the objective, near a half and a quarter of it: a shift of the whole distribution shows there first.

    Source: averaging over several points finds shifts of all requests and of the tail alike (research: exceedance counts).
    """
    below = [edge / 1000 for edge in EDGES_US if edge / 1000 < threshold_ms]
    return (
        sorted({min(below, key=lambda edge: abs(edge - threshold_ms * part)) for part in (0.25, 0.5)}) if below else []
    )


def _check_queries(guard: Mapping[str, Any], at: str, problems: list[Problem]) -> None:
    is_external = INDICATORS[guard["indicator"]].source is Source.PROMETHEUS
    for name in ("label", "bad_query", "total_query"):
        if is_external and not guard.get(name):
            problems.append(Problem(f"{at}.{name}", f"an external indicator has no {name}.", f"Add {name}."))
        elif not is_external and guard.get(name):
            problems.append(
                Problem(
                    f"{at}.{name}", f"{guard['indicator']} are not queried.", "Remove it, or write indicator: external."
                )
            )
        elif is_external and name != "label":
            problems += mistakes(guard[name], f"{at}.{name}")


# --- built ------------------------------------------------------------------------------------------------------------

_PLAIN = (
    "alpha_roll_back", "alpha_promote", "all_failing_attempts", "no_data_s", "stale_s", "blind_limit_s",
    "ack_deadline_s", "prepare_deadline_s", "deadline_s", "dispersion_window_s", "budget_bad", "approval_valid_s",
    "instant_window_s", "undo_max_s", "stable_gone_s",
)  # fmt: skip


def _built(whole: dict[str, Any]) -> Policy:
    def step(stage: Mapping[str, Any], weight_pct: float) -> Step:
        return Step(round(weight_pct * 100), stage["min_s"], stage["min_samples"], stage["deadline_s"])

    shadow = whole["shadow"]
    sample_bp = round(shadow["sample_pct"] * 100)
    return Policy(
        steps=tuple(step(stage, stage["weight_pct"]) for stage in whole["steps"]),
        bake=step(whole["bake"], 100 - whole["holdback_pct"]),
        guards=tuple(_built_guard(guard) for guard in whole["guards"]),
        shadow=Shadow(sample_bp, shadow["min_s"], shadow["min_samples"], shadow["deadline_s"]) if sample_bp else None,
        holdback_bp=round(whole["holdback_pct"] * 100),
        on_undecided=OnUndecided(whole["on_undecided"]),
        on_blind=OnUndecided(whole["on_blind"]),
        when_stable_is_gone=WhenStableIsGone(whole["when_stable_is_gone"]),
        second_look=SecondLook(**whole["second_look"]),
        control=Control(round(whole["watch"]["control_pct"] * 100), whole["watch"]["roll_back"] == "undo_window"),
        approvals=dict(whole["approvals"]),
        freeze_windows=tuple(built_window(window) for window in whole["freeze_windows"]),
        document=whole,
        digest=digest_of(whole),
        **{name: whole[name] for name in _PLAIN},
    )


def _built_guard(guard: Mapping[str, Any]) -> Guard:
    return Guard(
        guard["indicator"],
        guard["max_frac"],
        Tolerance(**guard["roll_back_over"]),
        Tolerance(**guard["promote_within"]),
        threshold_us=round((guard["threshold_ms"] or 0) * 1000),
        thresholds_us=tuple(round(one * 1000) for one in guard["thresholds_ms"] or ()),
        alpha=guard["alpha"],
        is_critical=guard["critical"],
        must_have_data=guard["must_have_data"],
        is_dry_run=guard["dry_run"],
        label=guard["label"] or "",
        bad_query=guard["bad_query"] or "",
        total_query=guard["total_query"] or "",
    )
