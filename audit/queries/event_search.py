"""Search of the log by actor, verb, model, release, environment, time and words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import BooleanField, Q, QuerySet
from django.db.models.expressions import RawSQL

from accounts.core.access import Actor
from audit.queries.event_visibility import visible_events
from ledger.core.words import INDEXED, query_of
from ledger.models import Event
from ledger.queries import events as all_events
from registry.models import Release, ServedModel
from registry.queries import visible_models
from registry.queries.releases import releases_named

#: Clocks of hosts that write events may differ by so much; beyond it the order of numbers is the order of time.
_CLOCKS_DIFFER = timedelta(minutes=5)
#: Releases of one name, such as r4, that a search without a model looks at.
MOST_RELEASES = 200
#: Events that a search names one by one; words that occur in more are found quickly from the newest event on.
MOST_BY_NUMBER = 500
#: Name of a subject in events and on pages.
SUBJECT_TYPES = (
    "alias", "blob", "deployment", "gate_run", "gateway", "job", "key", "model", "node", "registry", "release", "role",
    "rollout", "route", "server", "team", "token", "upload", "user", "webhook",
)  # fmt: skip


@dataclass(frozen=True)
class Search:
    """Filters of a search; an empty filter matches all events. `words` is free text, also a subject as on a page."""

    actor: str = ""
    verb: str = ""  # rollout.paused, or rollout.* for all of a kind
    subject_type: str = ""
    subject_id: str = ""
    model: str = ""
    environment: str = ""
    since: datetime | None = None
    until: datetime | None = None
    words: str = ""

    @property
    def is_empty(self) -> bool:
        return self == Search()


@dataclass(frozen=True)
class Found:
    """Events, unordered. `read_as`: interpretation of the free text, empty without one."""

    events: QuerySet[Event]
    read_as: str = field(default="")


def search_events(actor: Actor, search: Search) -> Found:
    """Those of the events that the actor may read which are looked for. A few small queries read names and times."""
    events = visible_events(actor)
    exact = {
        "actor": search.actor, "subject_type": search.subject_type, "subject_id": search.subject_id,
        "model": search.model,
    }  # fmt: skip
    events = events.filter(**{name: value for name, value in exact.items() if value})
    if search.verb:
        kind, star, _ = search.verb.partition("*")
        events = events.filter(verb__startswith=kind) if star else events.filter(verb=search.verb)
    if search.environment:
        events = _with_words(events, search.environment).filter(facts__environment=search.environment)
    events = _between(events, search.since, search.until)
    if not search.words:
        return Found(events)
    asked, read_as = _read(actor, search.words)
    return Found(events.filter(asked), read_as)


def about_model(events: QuerySet[Event], model: ServedModel) -> QuerySet[Event]:
    """Those that are about the model: it is their subject, or their facts name it."""
    return events.filter(model=model.slug)


def about_release(release: Release) -> Q:
    """Everything that happened to the release, to its gate runs, replicas and servers, and to the rollouts and aliases
    that name it."""
    name, digest = release.name, release.digest
    named = Q(facts__release=name) | Q(facts__candidate__in=[name, digest]) | Q(facts__digest=digest)
    named |= Q(facts__stable=digest) | Q(subject_type="alias", to_state=name) | Q(subject_type="alias", from_state=name)
    return Q(subject_type="release", subject_id=str(release.pk)) | (Q(model=release.model.slug) & named)


def _between(events: QuerySet[Event], since: datetime | None, until: datetime | None) -> QuerySet[Event]:
    """Those of the time. Bounds on the number come first, so that the newest events need not be read to get to old ones."""
    if since is not None:
        first = _first_seq_at(since - _CLOCKS_DIFFER)
        events = events.filter(at__gte=since, **({} if first is None else {"seq__gte": first}))
        events = events.none() if first is None else events
    if until is not None:
        behind = _first_seq_at(until + _CLOCKS_DIFFER)
        events = events.filter(at__lte=until, **({} if behind is None else {"seq__lt": behind}))
    return events


def _first_seq_at(instant: datetime) -> int | None:
    """The number of the oldest event since then, or None. Uses the index of times."""
    return all_events().filter(at__gte=instant).order_by("at").values_list("seq", flat=True).first()


def _with_words(events: QuerySet[Event], text: str) -> QuerySet[Event]:
    """Those that have all these words, by the index of words; a text without a word narrows nothing."""
    query = query_of(text)
    return events.filter(_words(query)) if query else events


def _words(query: str) -> RawSQL:
    match = f"{INDEXED} @@ to_tsquery('simple'::regconfig, %s)"
    return RawSQL(match, [query], output_field=BooleanField())  # noqa: S611  # INDEXED is a constant


def _read(actor: Actor, text: str) -> tuple[Q | RawSQL, str]:
    """How the text is understood: as a subject in the way in which pages write it, as a release, or as words."""
    if quoted := re.fullmatch('"(.*)"', text):
        asked, read_as = _as_words(quoted[1])
        return _by_index(asked), read_as
    if named := re.fullmatch(r"([a-z_ ]+?)[ #]+#?([\w./-]+)", text.lower()):
        kind, subject = named[1].strip().replace(" ", "_"), named[2]
        if kind in SUBJECT_TYPES:
            return _subject(actor, kind, subject)
    models = visible_models(actor)
    if named := re.fullmatch(r"([a-z0-9-]+)[/ ]r([0-9]{1,9})", text):
        found = releases_named(models.filter(slug=named[1]), int(named[2]))[:1]
        if found:
            return about_release(found[0]), f"everything about release {named[1]}/r{named[2]}"
    if named := re.fullmatch("r([0-9]{1,9})", text):
        found = releases_named(models, int(named[1]))[:MOST_RELEASES]
        ids = [str(one.pk) for one in found]
        return Q(_words(query_of(text))) | Q(subject_type="release", subject_id__in=ids), f"releases named {text}"
    if re.fullmatch("[0-9a-f]{64}", text):
        return Q(hash=text) | Q(_words(query_of(text))), "the event of this hash, and the word"
    asked, read_as = _as_words(text)
    # with every type named, as the index of subjects begins with it: without an index for each part, all events are read
    exact = Q(actor=text) | Q(model=text) | Q(subject_type__in=SUBJECT_TYPES, subject_id=text)
    return _by_index(asked | exact), f"{read_as}, or the actor, model or subject of just this name"


def _by_index(asked: Q) -> Q:
    """The same, by number where it fits few events: from the order that a list asks for, PostgreSQL takes rare words for common ones,
    and reads the whole log backwards to find none."""
    found = list(all_events().filter(asked).order_by().values_list("pk", flat=True)[: MOST_BY_NUMBER + 1])
    return Q(pk__in=found) if len(found) <= MOST_BY_NUMBER else asked


def _subject(actor: Actor, kind: str, subject: str) -> tuple[Q, str]:
    if kind == "release" and (named := re.fullmatch(r"([a-z0-9-]+)/r([0-9]{1,9})", subject)):
        found = releases_named(visible_models(actor).filter(slug=named[1]), int(named[2]))[:1]
        if found:
            return about_release(found[0]), f"everything about release {subject}"
    return Q(subject_type=kind, subject_id=subject), f"{kind.replace('_', ' ')} {subject}"


def _as_words(text: str) -> tuple[Q, str]:
    query = query_of(text)
    if not query:
        return Q(pk__in=[]), "no word at all"
    return Q(_words(query)), f"events with the words {text}"


def search_from(given: Mapping[str, str], since: datetime | None, until: datetime | None) -> Search:
    """The search that names and texts, as of an address, ask for. A zero byte is in no event."""
    named = {name: given.get(name, "").strip() for name in ("actor", "verb", "subject_type", "subject_id", "model")}
    clean = {name: value.replace("\x00", "\ufffd") for name, value in named.items()}
    words = given.get("q", "").replace("\x00", " ").strip()[:300]
    environment = given.get("environment", "").replace("\x00", "\ufffd").strip()
    return Search(**clean, environment=environment, since=since, until=until, words=words)
