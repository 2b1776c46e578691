"""Reads of the serving history: releases, times, weights and reasons of an environment's routes.

The answer is read from the hash-chained log of events, not from the routes of today, so that it is the same next year.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import BooleanField, CharField, ExpressionWrapper, Q, QuerySet, Subquery
from django.db.models.functions import Cast

from ledger.core.errors import Invalid
from ledger.core.verbs import EventVerb
from ledger.models import Event
from ledger.queries import clock, events
from ledger.queries.chain_verification import link_of
from registry.models import ServedModel
from registry.queries import names_by_digest
from rollouts.models import DecisionRecord, Observation, Rollout
from serving.models import Environment, Route
from serving.traffic.core.routes import WHOLE_BP
from serving.traffic.queries.routes import every_route

#: Nothing is routed in a retired environment; brought back, it routes as it did before.
_TURNS: Mapping[str, str] = {
    EventVerb.ENVIRONMENT_RETIRED: "The environment was taken out of use.",
    EventVerb.ENVIRONMENT_RESTORED: "The environment is in use again.",
}


@dataclass(frozen=True)
class ServedArm:
    """One release with traffic, or with none but there to be compared or gone back to. `weight_pct` is of users' requests."""

    role: str  # stable or candidate
    release: str  # r14, or the digest of an unknown release
    digest: str
    weight_pct: float


@dataclass(frozen=True)
class ServedChange:
    """A change of the serving release, from the log."""

    at: datetime
    arms: tuple[ServedArm, ...]
    mirrored_pct: float
    reason: str
    actor: str
    event: Mapping[str, Any]  # {"seq", "hash", "is_intact"}


@dataclass(frozen=True)
class Served:
    """What served from `since` until `until` (None: still, as far as the log goes at `at`). No arms: nothing was routed, yet
    (`since` is None) or in a retired environment."""

    environment: str
    model: str
    at: datetime
    arms: tuple[ServedArm, ...] = ()
    mirrored_pct: float = 0.0
    since: datetime | None = None
    until: datetime | None = None
    reason: str = ""
    actor: str = ""
    event: Mapping[str, Any] | None = None  # {"seq", "hash", "is_intact"}: where the log says so
    rollout: Mapping[str, Any] | None = None  # the one that was under way, and what it had decided last
    observed: Mapping[str, Any] | None = field(default=None)  # what the gateways counted then, in a rollout


def served_at(model: ServedModel, environment: Environment, at: datetime | None = None) -> Served:
    """The model's releases there at this instant (aware; None: now). Raises Invalid for a future instant."""
    now = clock.now()
    at = at or now
    if at > now:
        raise Invalid("in_the_future", f"{at.isoformat()} is yet to come. Name an instant that has passed.", field="at")
    changes, _, after = changes_between(model, environment, at, at, 1)
    return served_among(model, environment, at, changes, after)


def moves_of(model: ServedModel, environment: Environment) -> QuerySet[Event]:
    """Every change of the model's route there, and of whether the environment is in use since the first of them, by seq."""
    routes = every_route().select_related(None).filter(model=model, environment=environment)
    names = [str(key) for key in routes.values_list("pk", flat=True)]  # a subquery would have the whole log read
    of_route = Q(subject_type="route", subject_id__in=names, verb=EventVerb.ROUTE_SET)
    first = events().filter(of_route).order_by("seq").values("seq")[:1]
    return events().filter(of_route | _turns_of([environment.slug]) & Q(seq__gt=Subquery(first))).order_by("seq")


def _turns_of(environments: Collection[str]) -> Q:
    return Q(subject_type="environment", subject_id__in=environments, verb__in=list(_TURNS))


def changes_of_moves(model: ServedModel, moves: Iterable[Event]) -> list[ServedChange]:
    """These changes, with the names of the releases. One query, and one for each time that the environment was brought back."""
    told = [(move, _routed_by(model, move)) for move in moves]
    names = _release_names(model, [facts for _, facts in told])
    return [_change(move, facts, names) for move, facts in told]


def _routed_by(model: ServedModel, move: Event) -> Mapping[str, Any]:
    """The facts of the route from this event on."""
    if move.verb != EventVerb.ENVIRONMENT_RESTORED:
        return _facts_after(move, move.facts)
    routes = every_route().filter(model=model, environment__slug=move.subject_id)
    names = routes.annotate(name=Cast("pk", CharField())).order_by().values("name")
    sets = events().filter(subject_type="route", subject_id__in=names, verb=EventVerb.ROUTE_SET, seq__lt=move.seq)
    last = sets.order_by("-seq").first()
    return last.facts if last else {}


def _facts_after(move: Event, routed: Mapping[str, Any]) -> Mapping[str, Any]:
    return {} if move.verb == EventVerb.ENVIRONMENT_RETIRED else routed


def _change(move: Event, facts: Mapping[str, Any], names: Mapping[str, str]) -> ServedChange:
    return ServedChange(
        at=move.at,
        arms=_arms_of(facts, names),
        mirrored_pct=facts.get("mirror_bp", 0) / 100,
        reason=move.reason or _TURNS.get(move.verb, ""),
        actor=move.actor,
        event={"seq": move.seq, "hash": move.hash, "is_intact": _is_intact(move)},
    )


def _is_intact(move: Event) -> bool:
    """Whether the event still matches its hash."""
    return link_of(move).expected_hash() == move.hash


def _arms_of(facts: Mapping[str, Any], names: Mapping[str, str]) -> tuple[ServedArm, ...]:
    """The arms named by a `route.set` event, stable first."""
    candidate_bp = facts.get("candidate_bp") or 0
    shares = [
        ("stable", facts.get("stable"), WHOLE_BP - candidate_bp),
        ("candidate", facts.get("candidate"), candidate_bp),
    ]
    return tuple(
        ServedArm(role, names.get(digest, digest), digest, weight_bp / 100)
        for role, digest, weight_bp in shares
        if digest is not None
    )


def _release_names(model: ServedModel | Collection[int], routed: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """r14 by digest, of every release that these facts of routes name."""
    digests = {facts[role] for facts in routed for role in ("stable", "candidate") if facts.get(role)}
    return names_by_digest(model, digests)


def _rollout(model: ServedModel, environment: Environment, at: datetime) -> Rollout | None:
    """The rollout that was under way, or else the last one before."""
    begun = Rollout.objects.filter(model=model, environment=environment, created_at__lte=at)
    rollouts = begun.select_related("candidate", "report").order_by("-pk")
    is_under_way = ExpressionWrapper(Q(ended_at=None) | Q(ended_at__gt=at), output_field=BooleanField())
    return rollouts.annotate(is_under_way=is_under_way).order_by("-is_under_way", "-pk").first()


def _decided(rollout: Rollout | None, at: datetime) -> dict[str, Any] | None:
    if rollout is None:
        return None
    last = DecisionRecord.objects.filter(rollout=rollout, at__lte=at).order_by("-at", "-pk").first()
    return {
        "id": rollout.pk,
        "candidate": rollout.candidate.name,
        "under_way": rollout.ended_at is None or rollout.ended_at > at,
        "policy_digest": rollout.policy_digest,
        "report_digest": rollout.report.digest if rollout.report else None,
        "decision": None
        if last is None
        else {"at": last.at, "action": last.action, "code": last.code, "reason": last.reason, "actor": last.actor},
    }


def _observed(rollout: Rollout | None, at: datetime) -> dict[str, Any] | None:
    """The gateways' counts in the block of ticks around the instant."""
    if rollout is None:
        return None
    block = Observation.objects.filter(rollout=rollout, from_at__lte=at, at__gte=at).order_by("tick").first()
    if block is None:
        return None
    counts = {"candidate": block.candidate.get("routed", 0), "stable": block.stable.get("routed", 0)}
    total = sum(counts.values())
    share = round(100 * counts["candidate"] / total, 2) if total else None
    return {"from": block.from_at, "to": block.at, "requests": counts, "candidate_pct": share}


def changes_between(
    model: ServedModel, environment: Environment, begin: datetime, end: datetime, most: int
) -> tuple[list[ServedChange], bool, datetime | None]:
    """(the release in service at `begin` and every change until `end`, the oldest first; whether older changes were left off; time of
    the first change after `end`).

    Three queries. The first change may be from before `begin`: it holds until the next.
    """
    every = moves_of(model, environment)
    shown, after = every.filter(at__lte=end).order_by("-seq")[: most + 1], every.filter(at__gt=end).order_by("seq")[:1]
    found = sorted(shown.union(after, all=True), key=lambda move: -move.seq)
    moves, following = [move for move in found if move.at <= end], [move.at for move in found if move.at > end]
    inside = [move for move in moves if move.at > begin]
    is_cut = len(inside) > most
    kept = inside[:most] if is_cut else moves[: len(inside) + 1]
    return changes_of_moves(model, kept[::-1]), is_cut, following[0] if following else None


def served_among(
    model: ServedModel, environment: Environment, at: datetime, changes: Sequence[ServedChange], after: datetime | None
) -> Served:
    """`served_at` from the changes around that instant, the oldest first. `after`: time of the next change. At most three queries."""
    known = [change for change in changes if change.at <= at]
    later = [one.at for one in changes if one.at > at]
    until = later[0] if later else after
    if not known:
        return Served(environment.slug, model.slug, at, until=until)
    change = known[-1]
    rollout = _rollout(model, environment, at)
    return Served(
        environment.slug, model.slug, at, arms=change.arms, mirrored_pct=change.mirrored_pct, since=change.at,
        until=until, reason=change.reason, actor=change.actor, event=change.event,
        rollout=_decided(rollout, at), observed=_observed(rollout, at),
    )  # fmt: skip


def served_everywhere(
    models: Iterable[ServedModel], at: datetime, most: int
) -> list[tuple[Route, ServedChange | None]]:
    """What served each of these models in each environment at the instant; None before its first release there. Three queries."""
    named = every_route().select_related(None).select_related("model", "environment")
    named = named.only("model__slug", "environment__slug", "environment__title")
    routes = list(named.filter(model__in=models).order_by("environment__slug", "model__slug")[:most])
    of_routes = Q(subject_type="route", subject_id__in=[str(route.pk) for route in routes], verb=EventVerb.ROUTE_SET)
    of_places = _turns_of({route.environment.slug for route in routes})
    subject = ("subject_type", "subject_id")
    last = events().filter(of_routes | of_places, at__lte=at).order_by(*subject, "-seq").distinct(*subject)
    found = {(move.subject_type, move.subject_id): move for move in last}
    names = _release_names({route.model_id for route in routes}, [move.facts for move in found.values()])

    def change(route: Route) -> ServedChange | None:
        move, turn = found.get(("route", str(route.pk))), found.get(("environment", route.environment.slug))
        if move is None:
            return None
        latest = turn if turn is not None and turn.seq > move.seq else move
        return _change(latest, _facts_after(latest, move.facts), names)

    return [(route, change(route)) for route in routes]
