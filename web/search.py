"""Search: addresses of models, releases, rollouts, people, codes and pages. It changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from django.urls import NoReverseMatch, reverse

from accounts.core.access import Actor
from accounts.queries import people
from ledger.core.errors import NotFound
from registry.queries.search import find_models, find_releases
from rollouts.queries.rollouts import find_rollout
from serving.environments.queries.inventory import all_environments
from validators.models import GateRun
from validators.queries import visible_gate_run
from web.error_codes import error_codes

MOST_HITS: Final = 20
#: Of one kind, so that one kind does not push the others out.
MOST_OF_A_KIND: Final = 6
LONGEST_TEXT: Final = 100
_ROLLOUT: Final = re.compile(r"(?:rollout ?|#)?(\d{1,9})\Z", re.I)
_GATE_RUN: Final = re.compile(r"(?:gate )?run ?#?(\d{1,9})\Z", re.I)
#: (label, name of the page): those that exist are found by their labels.
PAGES: Final = (
    ("Overview", "overview"), ("Models", "models"), ("New model", "new_model"), ("Drafts", "drafts"),
    ("Rollouts", "rollouts"), ("Approvals", "approvals"), ("Fleet", "fleet"), ("History", "history"), ("Audit", "audit"),
    ("Events", "events"), ("Webhooks", "webhooks"), ("Settings", "settings"), ("People", "people"), ("Teams", "teams"),
    ("Tokens", "tokens"), ("Issuers", "issuers"), ("Environments", "environments"),
    ("Your account", "account"), ("Status", "status"), ("Error codes", "errors"),
)  # fmt: skip


@dataclass(frozen=True)
class Hit:
    """An address: `kind` is the kind of its target, `text` a useful detail."""

    kind: str
    title: str
    text: str
    url: str


def search(actor: Actor, text: str) -> list[Hit]:
    """At most MOST_HITS visible addresses, the most exact first; none for an empty text."""
    wanted = " ".join(text.replace("\0", "").split())[:LONGEST_TEXT]
    return list(_hits(actor, wanted))[:MOST_HITS] if wanted else []


def _hits(actor: Actor, text: str) -> Iterator[Hit]:
    for release in find_releases(actor, text, MOST_OF_A_KIND):
        url = reverse("release", args=[release.model.slug, release.number])
        yield Hit("release", f"{release.model.slug}/{release.name}", (release.digest or "")[:19] + "…", url)
    number = _ROLLOUT.match(text)
    rollout = find_rollout(actor, int(number[1])) if number else None
    if rollout is not None:
        said = f"{rollout.candidate.name} in {rollout.environment.title}, {rollout.outcome.replace('_', ' ')}"
        yield Hit(
            "rollout", f"rollout {rollout.pk} of {rollout.model.slug}", said, reverse("rollout", args=[rollout.pk])
        )
    run = _gate_run(actor, text)
    if run is not None:
        said = f"{run.release.model.slug} {run.release.name}, {run.verdict or run.state}"
        yield Hit("gate run", f"gate run {run.pk}", said, reverse("gate_run", args=[run.pk]))
    for environment in all_environments():
        if text.lower() in (environment.slug, environment.title.lower()):
            url = reverse("settings_environment", args=[environment.slug])
            yield Hit("environment", environment.title, environment.slug, url)
    for model in find_models(actor, text, MOST_OF_A_KIND):
        yield Hit("model", model.slug, model.title or f"team {model.team.slug}", reverse("model", args=[model.slug]))
    yield from _pages(text)
    if actor.is_admin:
        for person in people(text=text)[:MOST_OF_A_KIND]:
            name = f"{person.first_name} {person.last_name}".strip()
            with suppress(NoReverseMatch):  # a name with a slash has no page
                yield Hit("person", person.username, name, reverse("person", args=[person.username]))
    asked = text.lower().replace(" ", "_")
    # By words: “ada” is no part of `secret_unreadable`.
    codes = [one for code, one in error_codes().items() if len(asked) > 2 and f"_{code}".find(f"_{asked}") >= 0]
    for one in codes[:MOST_OF_A_KIND]:
        yield Hit("error code", one.code, one.means.replace("`", ""), reverse("error", args=[one.code]))


def _gate_run(actor: Actor, text: str) -> GateRun | None:
    """The gate run of this number, such as `gate run 3` or `run 3`, if the actor may see it."""
    found = _GATE_RUN.match(text)
    with suppress(NotFound):
        return visible_gate_run(actor, int(found[1])) if found else None
    return None


def _pages(text: str) -> Iterator[Hit]:
    for label, name in PAGES:
        if text.lower() in label.lower():
            with suppress(NoReverseMatch):  # not every page is there in every installation
                yield Hit("page", label, "", reverse(name))
