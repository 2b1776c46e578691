"""Obstacles of a rollout, found by the checks of its next step, so that people see them early."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from registry.models import Release
from rollouts.core.lifecycle import FINAL, WITHOUT_TRAFFIC, RolloutState
from rollouts.models import Rollout
from rollouts.queries.approvals import MOST_NAMES, newest_report, pinned_by
from serving.models import Environment
from validators.core.expiry import Expired
from validators.core.verdict import Verdict
from validators.models import Report
from validators.queries import is_authentic
from validators.queries.entry import verdict_there

S = RolloutState
_END_AND_START = "End this rollout, and start it again."


@dataclass(frozen=True)
class Obstacle:
    """`code` is stable: `report_superseded`, `report_not_valid` or `nobody_may_approve`. Message and next step are sentences.

    `at_stage` is the stage that cannot be entered; up to there the rollout goes on.
    """

    code: str
    message: str
    next_step: str
    at_stage: str


def report_problem(candidate: Release, environment: Environment, report: Report | None) -> str:
    """Why this report does not admit the candidate here, as a sentence; empty when it does."""
    if not environment.needs_passed_report:
        return ""
    if report is None:
        return f"{candidate.name} has no report for its contents under the model's present gate policy. Run its gates first."
    if report.manifest_digest != candidate.digest:
        return f"The report {report.digest[:19]}… is about other contents than {candidate.name}. Run its gates."
    if not is_authentic(report):
        return f"The report {report.digest[:19]}… is not as this installation signed it. Run the gates of {candidate.name} again."
    verdict = verdict_there(report, environment)
    if verdict != Verdict.PASSED:
        return (
            f"The gates of {candidate.name} ended {verdict}. Fix the release and push it again, or run the gates again."
        )
    return ""


def does_not_hold(candidate: Release, environment: Environment, lines: Sequence[Expired]) -> str:
    """What expired of the candidate's evidence, and what to run again, in sentences; `lines` is not empty."""
    told = "; ".join(line.message for line in lines)
    name = f"{candidate.model.slug}/{candidate.name}"
    return (
        f"Evidence of {candidate.name} does not hold in {environment.slug}. {told[0].upper()}{told[1:]}. "
        f"Run only these gates again: sluicegate gates {name} --only-expired."
    )


def superseded_report(rollout: Rollout) -> tuple[str, str] | None:
    """(digest of the newer report, its sentence) if the pinned report is not the newest, else None."""
    newest = newest_report(rollout)
    if newest == pinned_by(rollout).report:
        return None
    return newest, (
        f"{rollout.candidate.name} has a newer report ({newest[:19]}…) than rollout {rollout.pk} uses, so "
        "no further stage can be approved."
    )


def obstacle_of(
    rollout: Rollout,
    *,
    ahead: Sequence[str],
    lacks: tuple[str, int] | None,
    given_by: Collection[str],
    able: Collection[str],
) -> Obstacle | None:
    """A lasting obstacle of the rollout, or None. It stops the rollout now if its stage is the next stage.

    `ahead`: the stages that are yet to be entered; `lacks`: the first of them that lacks approvals, and how many; `given_by`: who
    approved it; `able`: the names of those who may approve, cut off at MOST_NAMES.
    """
    state = S(rollout.state)
    if state in FINAL or state in {S.ROLLING_BACK, S.STUCK}:
        return None
    if state in WITHOUT_TRAFFIC:
        problem = report_problem(rollout.candidate, rollout.environment, rollout.report)
        if problem:
            return Obstacle("report_not_valid", problem, "End this rollout; a new one needs a new report.", ahead[0])
    if lacks is None:
        return None
    stage, count = lacks
    superseded = superseded_report(rollout)
    if superseded is not None:
        return Obstacle("report_superseded", superseded[1], f"Look at the newer report. {_END_AND_START}", stage)
    others = set(able) - set(given_by)
    if len(others) >= count or len(able) >= MOST_NAMES:
        return None
    who = f"only {', '.join(sorted(others))} may still give one" if others else "no person may approve"
    return Obstacle(
        "nobody_may_approve",
        f"{stage.capitalize()} needs {count} more approval{'s' if count > 1 else ''}, and {who}.",
        f"Give the role release_manager in team {rollout.model.team.slug} to a person who neither made the release nor requested "
        "this rollout, or end it.",
        stage,
    )
