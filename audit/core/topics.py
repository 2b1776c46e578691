"""What an event changes on pages: its topics, as an open page names them in `data-live`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Happening:
    """What of an event decides who hears of it, and on which pages. Everything else of it never leaves the log this way.

    `model` and `team` are slugs, `releases` names such as `r14`, from the event's facts; "" if absent.
    """

    seq: int
    verb: str
    subject_type: str
    subject_id: str
    actor: str = ""
    model: str = ""
    team: str = ""
    releases: tuple[str, ...] = ()


#: Every event is a line of the audit log.
AUDIT: Final = "audit"
#: What everybody who is signed in may hear: that something about a machine changed, and not what.
OPEN: Final = frozenset({"nodes"})
#: The pages of a kind of subject, besides those of its model and of its releases.
_BY_SUBJECT: Final[dict[str, tuple[str, ...]]] = {
    "model": ("models",),
    "alias": ("models",),
    "alarm": ("alarms", "models"),
    "incident": ("incidents",),
    "route": ("models", "deployments"),
    "deployment": ("deployments", "nodes"),
    "server": ("deployments", "nodes"),
    "node": ("nodes",),
    "gateway": ("nodes",),
    "webhook": ("webhooks",),
    "user": ("people",),
    "team": ("people",),
    "environment": ("deployments", "models"),
    "issuer": ("people",),
    "token_rule": ("people",),
    "role_rule": ("people",),
}
#: Verbs of a release before it has a number, and the verb that gives it one.
_OF_DRAFTS: Final = frozenset({"release.drafted", "release.discarded", "release.sealed", "upload.quarantined"})
#: What changes a model's newest release, which the list of models shows.
_OF_RELEASES: Final = frozenset({"release.sealed", "release.retired", "release.restored"})


def topics_of(event: Happening) -> tuple[str, ...]:
    """The topics, each once, the most special first. Total: a verb or a subject that is new here is at least a line of the log."""
    return tuple(dict.fromkeys(_topics(event)))


def _topics(event: Happening) -> Iterator[str]:
    if event.subject_type == "rollout":
        yield from (f"rollout:{event.subject_id}", "rollouts", "approvals")
    elif event.subject_type == "gate_run":
        yield f"gate-run:{event.subject_id}"
    model = event.subject_id if event.subject_type == "model" else event.model
    if model:
        yield from (f"release:{model}/{name}" for name in event.releases)
        yield f"model:{model}"
    if event.verb in _OF_DRAFTS:
        yield "drafts"
    if event.verb in _OF_RELEASES:
        yield "models"
    yield from _BY_SUBJECT.get(event.subject_type, ())
    yield AUDIT
