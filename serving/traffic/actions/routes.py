"""The verbs of routes: what an environment's gateways must do with a model's traffic."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from accounts.core.access import Actor, Verb, require
from ledger.actions import append_event
from ledger.core.errors import Invalid, Stale
from ledger.core.verbs import EventVerb
from registry.core.lifecycle import ReleaseState
from registry.models import Release, ServedModel
from serving.environments.actions.locks import lock_open, lock_routes, notify_routes
from serving.models import Environment, Route
from serving.traffic.core.admission import Proof
from serving.traffic.core.routes import WHOLE_BP

NO_PROOFS: Mapping[str, Proof | None] = MappingProxyType({})


def set_route(
    *,
    actor: Actor,
    environment: Environment,
    model: ServedModel,
    stable: Release,
    candidate: Release | None = None,
    candidate_bp: int = 0,
    mirror_bp: int = 0,
    fence: int | None = None,
    proofs: Mapping[str, Proof | None] = NO_PROOFS,
    reason: str,
) -> Route:
    """The route as asked for; `candidate_bp` is the candidate's share in basis points, 0 … 10000.

    `mirror_bp` of the split's requests are copied to the prober, which compares the two releases' answers; who does not
    name it ends the mirroring. `proofs`, by release: what one server is proven for, as far as the caller looked. It is kept from the
    first time that the release is in the route, until it was not for one change: so its bound is the same at each weight.

    Writing what is already there changes nothing, but keeps the highest `fence`. A person's verb has no token of its own
    (None): it writes with the last leader's. Effects: the environment's generation grows, an event is appended, and the
    control plane is told on commit.

    Raises Refused, Invalid (releases or weight make no sense), Stale (another engine has led
    since `fence` was given out), StateChanged (the environment is retired).
    """
    with transaction.atomic():
        _check(model, stable, candidate, candidate_bp, mirror_bp)
        generation = lock_open(environment).generation  # serialized, so that generations are written in order
        route = Route.objects.select_related("stable", "candidate").filter(environment=environment, model=model).first()
        before_bp = (route.candidate_bp, route.mirror_bp) if route is not None else (0, 0)
        is_opening = candidate_bp > before_bp[0] or mirror_bp > before_bp[1]
        require(actor, Verb.START_ROLLOUT if is_opening else Verb.ROLL_BACK, model.team.slug, model.slug)
        fence = (route.fence if route is not None else 0) if fence is None else fence
        _refuse_outdated(route, fence)
        wanted = (stable.pk, candidate.pk if candidate else None, candidate_bp, mirror_bp)
        if route is not None and (route.stable_id, route.candidate_id, *before_bp) == wanted:
            if fence > route.fence:
                Route.objects.filter(pk=route.pk).update(fence=fence)
                route.fence = fence
            return route
        before = _in_words(route)
        route = route or Route(environment=environment, model=model)
        route.proven = _proven(route, stable, candidate, proofs)
        now = timezone.now()
        if route.stable_id != stable.pk or route.stable_since is None:
            route.stable_since = now
        route.stable, route.candidate, route.fence = stable, candidate, fence
        route.candidate_bp, route.mirror_bp = candidate_bp, mirror_bp
        route.generation, route.changes, route.changed_at = generation + 1, route.changes + 1, now
        route.save()
        Environment.objects.filter(pk=environment.pk).update(generation=F("generation") + 1)
        environment.generation = generation + 1
        _record_change(route, before, actor=actor, reason=reason)
        notify_routes()
    return route


def publish_again(route: Route) -> None:
    """A new generation of the route as it is, so that gateways tell when they have taken what else it rests on. For a transaction that
    holds the environment's routes."""
    generation = Environment.objects.values_list("generation", flat=True).get(pk=route.environment_id) + 1
    Environment.objects.filter(pk=route.environment_id).update(generation=generation)
    Route.objects.filter(pk=route.pk).update(generation=generation)
    notify_routes()


def refuse_forced(
    *, actor: Actor, environment: Environment, model: ServedModel, is_refusing: bool, reason: str
) -> Route | None:
    """The route that refuses, or takes again, requests that force a release; weights and slot stay. None if the model has no route."""
    with transaction.atomic():
        lock_routes(environment)
        route = Route.objects.select_related("stable", "candidate").filter(environment=environment, model=model).first()
        if route is None or route.refuses_forced is is_refusing:
            return route
        Route.objects.filter(pk=route.pk).update(refuses_forced=is_refusing)
        publish_again(route)
        route.refresh_from_db()
        _record_change(route, _in_words(route), actor=actor, reason=reason)
    return route


def _proven(
    route: Route, stable: Release, candidate: Release | None, proofs: Mapping[str, Proof | None]
) -> dict[str, Any]:
    """As it is to stand in the route with these arms. Those that leave it are kept for one change, in which they may come back."""
    arms = {stable.pk, candidate.pk if candidate else None, route.stable_id, route.candidate_id}
    looked_for = {key: proof.as_json() if proof else None for key, proof in proofs.items()}
    return {key: value for key, value in (looked_for | route.proven).items() if key in {str(one) for one in arms}}


def _refuse_outdated(route: Route | None, fence: int) -> None:
    """Refuses writes of an engine that lost its leadership, by its fencing token."""
    if route is not None and fence < route.fence:
        raise Stale(
            "fence_outdated",
            f"Another engine (token {route.fence}) has led since token {fence}; stop, and let it write the route.",
            fence=fence,
            current=route.fence,
        )


def _record_change(route: Route, before: str, *, actor: Actor, reason: str) -> None:
    facts = {
        "environment": route.environment.slug,
        "model": route.model.slug,
        "generation": route.generation,
        "before": before,
        "after": _in_words(route),
        "stable": route.stable.digest,
        "candidate": route.candidate.digest if route.candidate else None,
        "candidate_bp": route.candidate_bp,
        "mirror_bp": route.mirror_bp,
        **({"refuses_forced": True} if route.refuses_forced else {}),
    }
    append_event(
        verb=EventVerb.ROUTE_SET, subject_type="route", subject_id=route.pk, actor=actor, reason=reason, facts=facts
    )


def lift_fences(fence: int) -> None:
    """From now on no engine with an older token writes any route. For a new leader, once."""
    Route.objects.filter(fence__lt=fence).update(fence=fence)


def _check(model: ServedModel, stable: Release, candidate: Release | None, candidate_bp: int, mirror_bp: int) -> None:
    for release in (stable, candidate):
        if release is not None and (release.model_id != model.pk or release.state == ReleaseState.DRAFT):
            raise Invalid("route_release", f"{release} is not a sealed release of {model.slug}; name one that is.")
    if candidate is not None and candidate.pk == stable.pk:
        raise Invalid("route_arms", f"{stable.name} cannot be stable and candidate at once; leave out the candidate.")
    if not 0 <= candidate_bp <= WHOLE_BP:
        raise Invalid("route_weight", f"A weight of {candidate_bp} basis points is not between 0 and {WHOLE_BP}.")
    if candidate_bp and candidate is None:
        raise Invalid("route_weight", "A weight needs a candidate; name one or use weight 0.")
    if not 0 <= mirror_bp <= WHOLE_BP:
        raise Invalid("route_mirror", f"A mirrored share of {mirror_bp} basis points is not between 0 and {WHOLE_BP}.")
    if mirror_bp and candidate is None:
        raise Invalid("route_mirror", "Mirroring needs a candidate to compare with; name one or mirror nothing.")


def _in_words(route: Route | None) -> str:
    if route is None:
        return "no route"
    if route.candidate is None:
        return f"{route.stable.name} 100 %"
    shares = (route.candidate_bp / 100, (WHOLE_BP - route.candidate_bp) / 100)
    mirrored = f", {route.mirror_bp / 100:g} % mirrored" if route.mirror_bp else ""
    return f"{route.candidate.name} {shares[0]:g} %, {route.stable.name} {shares[1]:g} %{mirrored}"
