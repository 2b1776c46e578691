"""Which pages an event concerns, and who hears of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.core.audience import Audience
from audit.core.topics import OPEN, Happening, topics_of
from ledger.core.verbs import EventVerb

#: The subject of each verb, as the actions write it, and what the event concerns besides the audit log.
ABOUT = {
    "release.drafted": ("release", ["release:m/r3", "model:m", "drafts"]),
    "release.discarded": ("release", ["release:m/r3", "model:m", "drafts"]),
    "upload.quarantined": ("release", ["release:m/r3", "model:m", "drafts"]),
    "release.sealed": ("release", ["release:m/r3", "model:m", "drafts", "models"]),
    "release.retired": ("release", ["release:m/r3", "model:m", "models"]),
    "release.restored": ("release", ["release:m/r3", "model:m", "models"]),
}
#: Those of the other verbs of a kind.
BY_KIND = {
    "team": ("team", ["people"]),
    **dict.fromkeys(("user", "role", "password", "token", "session", "identity"), ("user", ["people"])),
    **{kind: (kind, ["people"]) for kind in ("issuer", "token_rule", "role_rule")},
    "model": ("model", ["model:7", "models"]),
    **dict.fromkeys(("golden_set", "sleep"), ("model", ["model:7", "models"])),
    **dict.fromkeys(("release", "review"), ("release", ["release:m/r3", "model:m"])),
    "alias": ("alias", ["release:m/r3", "model:m", "models"]),
    "alarm": ("alarm", ["release:m/r3", "model:m", "alarms", "models"]),
    "incident": ("incident", ["release:m/r3", "model:m", "incidents"]),
    "rollout": ("rollout", ["rollout:7", "rollouts", "approvals", "release:m/r3", "model:m"]),
    **dict.fromkeys(("gate_run", "gate", "report"), ("gate_run", ["gate-run:7", "release:m/r3", "model:m"])),
    **dict.fromkeys(("deployment", "server"), ("server", ["release:m/r3", "model:m", "deployments", "nodes"])),
    "route": ("route", ["release:m/r3", "model:m", "models", "deployments"]),
    "webhook": ("webhook", ["webhooks"]),
    "environment": ("environment", ["deployments", "models"]),
    "node": ("node", ["nodes"]),
    "gateway": ("gateway", ["nodes"]),
    **{kind: (kind, []) for kind in ("blob", "registry", "key", "job", "log")},
}
#: Subjects that no model owns.
WITHOUT_MODEL = {
    "environment",
    "issuer", "token_rule", "role_rule", "team", "user", "model", "blob", "registry", "key", "node", "gateway", "job", "log", "webhook",
}  # fmt: skip


def happening(verb: str, subject_type: str, **over: object) -> Happening:
    model = "" if subject_type in WITHOUT_MODEL else "m"
    known = {"model": model, "releases": ("r3",) if model else (), **over}
    return Happening(1, verb, subject_type, "7", **known)  # type: ignore[arg-type]


@pytest.mark.parametrize("verb", list(EventVerb), ids=str)
def test_every_verb_concerns_the_pages_of_its_subject(verb: EventVerb) -> None:
    subject_type, topics = ABOUT.get(verb.value) or BY_KIND[verb.value.partition(".")[0]]
    assert list(topics_of(happening(verb.value, subject_type))) == [*topics, "audit"]


def test_a_rollout_concerns_both_its_releases() -> None:
    found = topics_of(happening("rollout.promoted", "rollout", releases=("r14", "r12")))
    assert {"release:m/r14", "release:m/r12"} <= set(found) and len(found) == len(set(found))


def test_what_is_new_here_is_a_line_of_the_log() -> None:
    assert topics_of(Happening(1, "comet.seen", "comet", "7")) == ("audit",)


words = st.sampled_from(["a", "b", "c", ""])
happenings = st.builds(
    Happening, st.integers(1, 9), st.sampled_from([verb.value for verb in EventVerb]),
    st.sampled_from(["model", "webhook", "rollout", "node", "user"]), words, words, words, words,
)  # fmt: skip


@given(event=happenings, models=st.frozensets(words), teams=st.frozensets(words), name=words)
def test_who_may_not_see_an_event_hears_open_topics_alone(
    event: Happening, models: frozenset[str], teams: frozenset[str], name: str
) -> None:
    audience = Audience(name, models=models, teams=teams)
    if not audience.sees(event):
        assert set(audience.topics(event)) <= OPEN
    else:
        assert audience.topics(event) == topics_of(event)
    assert Audience(name, sees_all=True).topics(event) == topics_of(event)


def test_no_topic_names_another_teams_things() -> None:
    mine = Audience("ann", models=frozenset({"mine"}), teams=frozenset({"search"}))
    theirs = Happening(1, "deployment.ready", "deployment", "7", "system:agent", "theirs", "", ("r3",))
    assert mine.topics(theirs) == ("nodes",)
    assert mine.topics(Happening(1, "model.created", "model", "theirs", "bob", "", "ads")) == ()
    assert mine.topics(Happening(1, "webhook.changed", "webhook", "7", "bob", "", "ads")) == ()
