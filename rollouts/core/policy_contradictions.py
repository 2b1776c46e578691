"""Contradictions between the fields of a rollout policy, each of which is valid by itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from registry.core.schema import Problem
from rollouts.core.freeze_schema import window_problems
from rollouts.core.indicators import INDICATORS, Source

_STAGE_NAME = re.compile(r"start|bake|promote|step ([2-9]|[1-4]\d|50)")


def contradictions(whole: Mapping[str, Any], guards: list[dict[str, Any]]) -> list[Problem]:
    """Returns what contradicts itself in a policy with every default filled in, each with its fix."""
    problems = []
    weights = [step.get("weight_pct", 0) for step in whole["steps"]]
    if any(later <= earlier for earlier, later in pairwise(weights)):
        fix = "List the steps from the smallest weight to the largest."
        problems.append(Problem("steps", "the weights do not grow from step to step.", fix))
    stages = [*((f"steps[{i}]", step) for i, step in enumerate(whole["steps"]))]
    stages += [(name, whole[name]) for name in ("bake", "shadow")]
    problems += [
        Problem(f"{at}.deadline_s", "the deadline comes before the minimum time is over.", "Make it longer than min_s.")
        for at, stage in stages
        if stage.get("deadline_s", 1) <= stage.get("min_s", 0)
    ]
    is_probed = any(INDICATORS[guard["indicator"]].source is Source.PROBER for guard in guards)
    if whole["shadow"].get("sample_pct") and not is_probed:
        fix = "Add {indicator: wrong} to the guards, or set shadow.sample_pct to 0."
        problems.append(Problem("guards", "shadowing compares answers, and no guard watches wrong ones.", fix))
    return (
        problems
        + _control(whole)
        + _alphas(whole, guards)
        + _stage_names(whole)
        + window_problems(whole["freeze_windows"])
    )


def _control(whole: Mapping[str, Any]) -> list[Problem]:
    """A rollback after a promotion needs a comparison."""
    if whole["watch"]["roll_back"] == "never" or (whole["watch"]["control_pct"] and whole["instant_window_s"]):
        return []
    fix = "Set watch.control_pct to 1 to 5 and instant_window_s above 0, or watch.roll_back to never."
    return [Problem("watch.roll_back", "without a control nothing could show that stable is worse.", fix)]


def blind(guards: list[dict[str, Any]]) -> list[Problem]:
    """A rollout that nothing watches would advance by the clock alone."""
    if not guards or any(guard["must_have_data"] and not guard["dry_run"] for guard in guards):
        return []
    fix = "Take dry_run or must_have_data: false off one of them, or add {indicator: errors}."
    return [Problem("guards", "no guard acts and must have data, so nothing would watch the candidate.", fix)]


def _alphas(whole: Mapping[str, Any], guards: list[dict[str, Any]]) -> list[Problem]:
    own = [guard["alpha"] for guard in guards if guard["alpha"] is not None]
    is_all = len(own) == len(guards)
    if not own or sum(own) < whole["alpha_roll_back"] or (is_all and sum(own) <= whole["alpha_roll_back"] * (1 + 1e-9)):
        return []
    said = f"the guards' own alphas sum to {sum(own):g}, and alpha_roll_back is {whole['alpha_roll_back']:g}."
    return [Problem("guards", said, "Make them smaller, or alpha_roll_back larger, so that every guard has a share.")]


def _stage_names(whole: Mapping[str, Any]) -> list[Problem]:
    last = len(whole["steps"])
    return [
        Problem(
            f"approvals.{name}",
            f"there is no stage {name!r}.",
            f"Name one of start, {', '.join(f'step {i}' for i in range(2, last + 1))}{', ' * (last > 1)}bake, promote.",
        )
        for name in whole["approvals"]
        if not (found := _STAGE_NAME.fullmatch(name)) or (found[1] and int(found[1]) > last)
    ]
