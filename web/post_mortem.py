"""The record of an ended rollout: facts, times, users, deliveries and next steps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ledger.core.errors import StateChanged
from notifications.queries.webhooks import deliveries_of_rollout
from rollouts.core.lifecycle import FINAL, RolloutState
from rollouts.models import Rollout
from rollouts.queries import view_of
from rollouts.queries.request_examples import examples_by_arm
from web.pages.rollout_log import after, counted_at_zero, log_of
from web.pages.rollout_plots import began_at

S = RolloutState
_BACK = frozenset({S.ROLLED_BACK, S.REVERTED})


def post_mortem_of(rollout: Rollout) -> dict[str, Any]:
    """Everything as JSON: instants ISO 8601 in UTC, durations in seconds. Raises StateChanged("not_ended")."""
    if rollout.state not in FINAL:
        raise StateChanged(
            "not_ended",
            f"Rollout {rollout.pk} has not ended. Its page shows it live; come back once it has.",
            rollout=rollout.pk,
        )
    view, began = view_of(rollout), began_at(rollout)
    log = [entry for group in log_of(view["decisions"], began) if not group.is_folded for entry in group.entries]
    ended = rollout.ended_at or rollout.confirmed_at
    return {
        "rollout": rollout.pk, "title": title_of(rollout), "outcome": rollout.outcome, "reason": rollout.reason,
        "model": rollout.model.slug, "environment": rollout.environment.slug, "candidate": rollout.candidate.name,
        "candidate_digest": rollout.candidate.digest, "stable": rollout.stable.name if rollout.stable else None,
        "policy_digest": rollout.policy_digest, "requested_by": view["requested_by"], "began_at": began.isoformat(),
        "ended_at": ended.isoformat() if ended else None,
        "lasted_s": round((ended - began).total_seconds(), 1) if ended else None,
        "clock": view["clock"], "users": view["users"], "at_decision": counted_at_zero(view),
        "attempts": view["arms"]["total"], "examples": examples_by_arm(rollout),
        "log": [
            {"after": one.after, "at": one.at.isoformat(), "action": one.action, "reason": one.reason, "actor": one.actor}
            for one in reversed(log)
        ],
        "told": [
            {**one, "after": after_text(one["at"], rollout)} for one in deliveries_of_rollout(rollout.pk, rollout.model.team.slug)
        ],
        "next": next_steps(rollout),
    }  # fmt: skip


def title_of(rollout: Rollout) -> str:
    over = f" over {rollout.stable.name}" if rollout.stable else ""
    what = f"{rollout.model.slug} {rollout.candidate.name}{over} in {rollout.environment.title}"
    return f"{what}: {rollout.outcome.replace('_', ' ')}"


def after_text(at: str, rollout: Rollout) -> str:
    return after(datetime.fromisoformat(at), began_at(rollout))


def next_steps(rollout: Rollout) -> list[str]:
    """What to do next, in sentences."""
    candidate, stable = rollout.candidate.name, rollout.stable.name if rollout.stable else ""
    if rollout.state in _BACK and stable:
        return [
            f"{stable} serves again: nothing has to be done for users now.",
            f"Compare {candidate} with {stable}: their configuration, metrics and golden answers.",
            f"A release never changes: fix the cause, push a new release, and let its gates prove it. {candidate} stays as it is.",
            "Give the golden set or the load gate a case of what went wrong, so that the next release meets it before users do.",
        ]
    if rollout.state == S.PROMOTED:
        return [f"{candidate} serves everything. While its undo window is open, one step goes back."]
    if rollout.state in _BACK:
        return [f"{candidate} keeps its traffic until another release takes it: roll out a working release."]
    return ["Nothing was moved: users saw no difference. Start another rollout when its cause is settled."]


# --- as markdown ------------------------------------------------------------------------------------------------------


def markdown_of(found: Mapping[str, Any], address: str = "") -> str:
    """The post-mortem as markdown, for a ticket or a chat. Whatever people typed stands there as text."""
    clock, users, decided = found["clock"], found["users"], found["at_decision"]
    lines = [f"# {_plain(found['title'])}", "", _plain(found["reason"]), ""]
    lines += _table(
        ("Fact", "Value"),
        [
            ("Rollout", f"{found['rollout']}{f' ({address})' if address else ''}"),
            ("Candidate", f"{found['candidate']} {found['candidate_digest'] or ''}"),
            ("Began", found["began_at"]), ("Ended", found["ended_at"] or "–"), ("Asked for by", found["requested_by"] or "–"),
            ("Fault to weight 0", _seconds(clock["fault_to_zero_s"])), ("Decision to weight 0", _seconds(clock["decision_to_zero_s"])),
            ("Users", f"{users['requests']} requests, {users['errors']} of them failed"),
            ("Bad attempts of the candidate", _counts(clock["bad_candidate_attempts_by_guard"])),
            ("Counted when it was decided", f"{decided['counter']}: {decided['bad']} of {decided['attempts']}" if decided else "–"),
        ],
    )  # fmt: skip
    lines += ["", "## What happened", ""]
    lines += _table(
        ("After", "What", "Why", "Who"),
        [(one["after"], one["action"], one["reason"], one["actor"]) for one in found["log"]],
    )
    lines += ["", "## Requests to look at", ""]
    lines += _examples(found["examples"]) or ["No gateway has reported a failed or slow request."]
    lines += ["", "## Notifications", ""]
    told = [(one["after"], one["webhook"], one["verb"], one["state"]) for one in found["told"]]
    lines += _table(("After", "Who", "Of", "Delivery"), told) if told else ["No webhook received its events."]
    lines += ["", "## What to do next", "", *[f"- {_plain(one)}" for one in found["next"]], ""]
    return "\n".join(lines)


def _examples(arms: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        (arm["release"], one["at"], one["what"], f"{one['took_ms']:g} ms", _where(one), one["request_id"] or "–")
        for arm in arms
        for one in arm["requests"]
    ]
    return _table(("Release", "Began", "What", "Took", "Server", "Request id"), rows) if rows else []


def _where(one: Mapping[str, Any]) -> str:
    return " ".join(part for part in (one["node"], one["address"]) if part) or "none"


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *[f"| {' | '.join(_plain(cell) for cell in row)} |" for row in rows],
    ]


def _plain(text: object) -> str:
    """Text that markdown shows as it is: one line, without markup, links or control characters."""
    line = re.sub(r"[\x00-\x1f\x7f\u200e\u200f\u2028-\u202e\u2066-\u2069]+", " ", str(text))
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#!~])", r"\\\1", line).strip()


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:g} s"


def _counts(bad: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in bad.items()) or "0"
