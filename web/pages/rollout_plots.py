"""A rollout's plots, drawn for its page, its fragments and its post-mortem."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from rollouts.core.latency import EDGES_US
from rollouts.core.lifecycle import WITHOUT_TRAFFIC, RolloutState
from rollouts.core.policy import Policy
from rollouts.core.tick_history import Segment
from rollouts.core.timeline import Moment
from rollouts.models import Rollout
from rollouts.queries.replay import Judgement, history_of, judged_by
from rollouts.queries.timeline import bars_of, latency_of, moments_of
from web.pages.rollout_figures import Guard, Story, evidence_plot, latency_cdf, traffic_plot
from web.plots import Mark, Plot, Unit, text_of

#: So many guards are drawn, the loudest first.
MOST_GUARDS = 4
#: More approvals than this are not marked.
MOST_APPROVALS = 3


@dataclass(frozen=True)
class RolloutPlots:
    """`evidence` has the guard with the most evidence first; never empty, as a plot may say that there is nothing to draw yet."""

    traffic: Plot
    evidence: tuple[Plot, ...]
    cdf: Plot

    @property
    def has_latency(self) -> bool:
        return not self.cdf.is_empty


@dataclass(frozen=True)
class Read:
    """What plots are drawn from, read when it is asked for the first time, or by the page before."""

    rollout: Rollout
    given: Sequence[Mapping[str, Any]] | None = None  # the approvals from `view_of`

    @cached_property
    def history(self) -> list[Segment]:
        return history_of(self.rollout)

    @cached_property
    def moments(self) -> list[Moment]:
        return moments_of(self.rollout, self.history)

    @cached_property
    def approvals(self) -> tuple[tuple[datetime, str, str], ...]:
        """(when, who, of which stage) of the first MOST_APPROVALS."""
        if self.given is not None:
            first = self.given[:MOST_APPROVALS]
            return tuple((datetime.fromisoformat(one["at"]), one["approver"], one["stage"]) for one in first)
        rows = self.rollout.approvals.order_by("pk").values_list("at", "approver__username", "stage")
        return tuple(rows[:MOST_APPROVALS])


def began_at(rollout: Rollout) -> datetime:
    """The beginning that a rollout's seconds are counted from."""
    return rollout.started_at or rollout.created_at


def plots_of(rollout: Rollout, read: Read | None = None) -> RolloutPlots:
    """All plots of the rollout as it stands."""
    read = read or Read(rollout)
    moments = read.moments
    spans = [] if rollout.state in WITHOUT_TRAFFIC else latency_of(rollout)  # no candidate requests yet
    story = Story(
        rollout.candidate.name,
        rollout.stable.name if rollout.stable else "",
        began_at(rollout).timestamp(),
        _marks(read),
    )
    guards = sorted(
        (
            Guard(one["name"], one["words"], one["bar_worse"], one["bar_fine"], one["is_dry_run"])
            for one in bars_of(rollout)
        ),
        key=lambda guard: -_loudness(guard, moments),
    )
    edges_s = [edge / 1e6 for edge in EDGES_US]
    limits = [ms / 1000 for one in bars_of(rollout) for ms in one["thresholds_ms"][-1:]]
    limit_s = limits[0] if limits else None
    return RolloutPlots(
        traffic_plot(story, moments, name="traffic"),
        tuple(evidence_plot(story, one, moments, name=f"evidence-{one.name}") for one in guards[:MOST_GUARDS]),
        latency_cdf(story, spans, edges_s, limit_s=limit_s, name="latency"),
    )


def _loudness(guard: Guard, moments: list[Moment]) -> float:
    """The highest evidence against the candidate, as a share of its bar; a guard that counted nothing comes last."""
    found = [one.evidence[guard.name] for one in moments if guard.name in one.evidence]
    return max((max(one.worse, one.over) / guard.bar_worse for one in found), default=float("-inf"))


def _marks(read: Read) -> tuple[Mark, ...]:
    rollout = read.rollout
    began = began_at(rollout).timestamp()
    found: list[Mark] = []

    def mark(at: datetime | None, words: Callable[[], str], look: str) -> None:
        if at is not None:
            found.append(Mark(at.timestamp() - began, words(), look))

    for at, approver, stage in read.approvals:
        found.append(Mark(at.timestamp() - began, f"{approver} approved {stage}", "ok"))
    mark(rollout.first_bad_at, lambda: "first bad attempt", "waiting")
    mark(rollout.decided_at, lambda: f"decided{_zero_after(rollout)}", "bad")
    if rollout.state in {RolloutState.PROMOTED, RolloutState.REVERTED}:
        mark(rollout.ended_at, lambda: "promoted", "ok")
    return tuple(sorted((one for one in found if one.x >= 0), key=lambda one: one.x))


def _zero_after(rollout: Rollout) -> str:
    if rollout.zero_at is None or rollout.decided_at is None:
        return ""
    return f"; weight 0 after {text_of((rollout.zero_at - rollout.decided_at).total_seconds(), Unit.DURATION)}"


def judged_again(read: Read, plan: Policy) -> tuple[dict[str, Any], Plot]:
    """What another policy would have decided, as JSON and drawn. Raises StateChanged("no_history")."""
    judged = judged_by(read.rollout, plan, read.history)
    told = judged.to_json()
    return told, _replay_plot(read, judged, told["roll_back"])


def _replay_plot(read: Read, judged: Judgement, back: Mapping[str, Any] | None) -> Plot:
    """The guard with the most evidence, its rollback under that policy (`back`), and its own rollback."""
    rollout, plan, moments = judged.rollout, judged.plan, judged.moments
    story = Story(
        rollout.candidate.name,
        rollout.stable.name if rollout.stable else "",
        began_at(rollout).timestamp(),
        _marks(read),
    )
    if back is not None:
        at = datetime.fromisoformat(back["at"]).timestamp() - story.began
        story = replace(story, marks=(*story.marks, Mark(at, "this policy rolls back", "bad")))
    guards = [
        Guard(one.name, one.words, plan.bar_worse_of(one), plan.bar_fine, one.is_dry_run)
        for one in plan.facing(has_stable=rollout.stable_id is not None).guards
    ]
    loudest = max(guards, key=lambda guard: _loudness(guard, moments))
    return evidence_plot(story, loudest, moments, name="replayed")
