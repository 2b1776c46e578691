"""Named reads of routes, and of what the gateways say of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import BooleanField, Exists, ExpressionWrapper, F, OuterRef, Prefetch, Q, QuerySet, Subquery
from django.db.models.functions import JSONObject, Now

from ledger.queries import clock
from registry.models import Release, ServedModel
from registry.queries.declared import declared_replicas, learn_declared
from registry.queries.releases import LARGE, these_or_numbered
from serving.environments.core.replicas import desired_replicas
from serving.environments.core.sleep_lifecycle import SleepState
from serving.environments.queries.inventory import among, answering_servers, known_environment
from serving.environments.queries.reporting import reports_since
from serving.models import Environment, Gateway, ReplicaTarget, Route, RouteAck, Sleep
from serving.traffic.core.gateway_standing import SEEN_WITHIN_S
from serving.traffic.queries.readiness import health_columns


@dataclass(frozen=True)
class Ack:
    """What the gateways say of a route's present generation. `acked_at` is when the last of them took it.

    `taken_by`: the keys of the gateways that route by it, whether they speak now or not, and whatever went wrong after they
    had taken it: a cluster that is refused later takes no route back.
    """

    all_acked: bool
    acked_at: datetime | None
    error: str
    taken_by: frozenset[int] = frozenset()


def get_environment_with_routes(slug: str, models: Iterable[ServedModel]) -> Environment:
    """With its gateways and the routes of these models; also one that is retired. Raises NotFound."""
    return known_environment(environments(models, with_retired=True).filter(slug=slug).first(), slug)


def environments(models: Iterable[ServedModel] | None = None, *, with_retired: bool = False) -> QuerySet[Environment]:
    """With their gateways, and the routes of these models (of all). Each route has the `health_columns`."""
    acks = Prefetch("acks", RouteAck.objects.select_related("gateway"))
    routes = (
        Route.objects.select_related("model", "stable__model", "candidate__model")
        .prefetch_related(acks)
        .annotate(**health_columns(reports_since()))
        .order_by("model__slug")
    )
    if models is not None:
        routes = routes.filter(model__in=models)
    rows = Environment.objects.prefetch_related("gateways", Prefetch("routes", routes)).order_by("slug")
    return rows if with_retired else rows.filter(retired_at=None)


def all_routes() -> QuerySet[Route]:
    """Every route that gateways are to follow, with what it names."""
    return every_route().filter(environment__retired_at=None)


def every_route() -> QuerySet[Route]:
    """The same, and those of retired environments, which nobody follows."""
    return Route.objects.select_related("model", "environment", "stable__model", "candidate__model").order_by("pk")


def routes_of(model: ServedModel) -> list[Route]:
    """The model's routes that gateways are to follow, with their environments and releases, without what no list shows of a release.
    Each has `sleep`, asleep or waking, None of a model that is awake there; and `health`, for `readiness_from`."""
    return list(model_routes(model=model.pk, since=reports_since()))


def model_routes(model: int, since: datetime) -> QuerySet[Route]:
    """The query of `routes_of`. `since`: `reports_since`."""
    large = [f"{arm}__{column}" for arm in ("stable", "candidate") for column in LARGE]
    return (
        Route.objects.filter(model=model, environment__retired_at=None)
        .select_related("environment", "stable", "candidate")
        .defer(*large)
        .annotate(**health_columns(since))
        .order_by("pk")
    )


def route_of(model: ServedModel | int, environment: Environment | int) -> Route | None:
    """The model's route there, by rows or keys; None before its first rollout there."""
    keys = (one if isinstance(one, int) else one.pk for one in (model, environment))
    return next(iter(_one(**dict(zip(("model", "environment"), keys, strict=True)))), None)


@dataclass(frozen=True)
class WarmRoute:
    """A model's route in an environment, None before its first rollout there; whether a server answers for its stable release there
    (`answering_servers`), and how many of them are wanted."""

    route: Route | None = None
    is_stable_warm: bool = False
    wanted: int = 1


def warm_route(model: ServedModel, environment: Environment) -> WarmRoute:
    """One query."""
    route = next(iter(_warm(model=model.pk, environment=environment.pk)), None)
    if route is None:
        return WarmRoute()
    learn_declared(route.stable)
    declared = declared_replicas([route.stable_id])[route.stable_id].least
    return WarmRoute(route, bool(route.is_stable_warm), desired_replicas(route.scaled, declared))


def _warm(model: int, environment: int) -> QuerySet[Any, Any]:
    of_stable = {"release": OuterRef("stable"), "environment": OuterRef("environment")}
    servers = answering_servers().order_by().filter(**{f"replica__{name}": one for name, one in of_stable.items()})
    scaled = Subquery(ReplicaTarget.objects.filter(**of_stable).values("replicas")[:1])
    routes = every_route().filter(model=model, environment=environment)
    return routes.annotate(is_stable_warm=Exists(servers), scaled=scaled)


def _one(model: Any, environment: Any) -> QuerySet[Any, Any]:
    return every_route().filter(model=model, environment=environment)


def has_stable(model: int, environment: int) -> bool:
    """Whether the model, by keys as the environment, has a stable release there."""
    return Route.objects.filter(model=model, environment=environment, stable__isnull=False).exists()


def models_routed_in(environment: int, models: QuerySet[ServedModel]) -> list[tuple[str, str]]:
    """The names of those of the models that have a route there, in their order, each with asleep or waking; empty of one that is awake."""
    sleep = Sleep.objects.filter(environment=environment, model=OuterRef("model")).exclude(state=SleepState.AWAKE)
    rows = Route.objects.filter(environment=environment, model__in=models).order_by("model__slug")
    return [(slug, state or "") for slug, state in rows.values_list("model__slug", Subquery(sleep.values("state")[:1]))]


def served_beside(release: Release, *, or_number: int | None) -> Release | None:
    """Another release of the model that serves now, with `serves_in`, the title of the first environment (by slug) that it is stable
    in; where none serves, the one of this number, with None. One query."""
    found = list(_served_beside(release=release.pk, model=release.model_id, number=or_number or 0))
    return next(iter(found), None)


def _served_beside(release: UUID, model: int, number: int) -> QuerySet[Release]:
    routes = Route.objects.filter(model=model, environment__retired_at=None).exclude(stable=release)
    places = routes.filter(stable=OuterRef("pk")).order_by("environment__slug")
    named = these_or_numbered(routes.order_by().values("stable"), model, number).annotate(
        first=Subquery(places.values("environment__slug")[:1]),
        serves_in=Subquery(places.values("environment__title")[:1]),
    )
    return named.order_by(F("first").asc(nulls_last=True), "pk")[:1]


def routes_between(models: Collection[int], environments: Collection[int]) -> list[Route]:
    """The routes of these models in these environments, by keys, with nothing but their own columns."""
    rows = Route.objects.filter(model_id__in=among(models), environment_id__in=environments)
    return list(rows.defer("changed_at"))


def is_routed(release: Release, environment: Environment) -> bool:
    """Whether a route there names the release, as either arm and at whatever weight."""
    arms = Q(stable=release) | Q(candidate=release)
    return Route.objects.filter(arms, environment=environment).exists()


def acknowledged(route: Route) -> Ack:
    """Whether every gateway of the environment that is about has taken the route's present generation."""
    return acknowledgements([route], clock.now())[route.pk]


def acknowledgements(routes: Collection[Route], now: datetime) -> dict[int, Ack]:
    """`acknowledged` for many routes at once, by route. Two queries, however many there are."""
    about: dict[int, list[Gateway]] = {route.environment_id: [] for route in routes}
    since = now - timedelta(seconds=SEEN_WITHIN_S)
    for gateway in Gateway.objects.filter(environment_id__in=list(about), seen_at__gte=since).order_by("name"):
        about[gateway.environment_id].append(gateway)
    said: dict[int, dict[int, _Word]] = {route.pk: {} for route in routes}
    rows = RouteAck.objects.filter(route_id__in=among(said))
    columns = ("route_id", "gateway_id", "generation", "acked_at", "error", "taken")
    for route_id, gateway_id, generation, acked_at, error, taken in rows.values_list(*columns):
        said[route_id][gateway_id] = (generation, acked_at, error, taken if error else generation)
    return {route.pk: _ack(route, about[route.environment_id], said[route.pk]) for route in routes}


_Word = tuple[int, datetime, str, int]  # generation, when, error, the generation that it routes by at least


def _ack(route: Route, gateways: Sequence[Gateway | Follower], said: dict[int, _Word]) -> Ack:
    taken_by = frozenset(pk for pk, (_, _, _, taken) in said.items() if taken >= route.generation)
    if not gateways:
        why = f"No gateway has spoken to the control plane for {SEEN_WITHIN_S:.0f} s; start one, or the control plane."
        return Ack(False, None, why, taken_by)
    words = [(gateway.name, said[gateway.pk]) for gateway in gateways if gateway.pk in said]
    current = [acked_at for _, (generation, acked_at, _, _) in words if generation >= route.generation]
    errors = [f"{name}: {error}" for name, (_, _, error, _) in words if error]
    is_whole = len(current) == len(gateways) and not errors
    return Ack(is_whole, max(current) if is_whole else None, "; ".join(errors), taken_by)


@dataclass(frozen=True)
class Follower:
    """A gateway of a route's environment: whether it is about, and what it last said of the route, if it did."""

    pk: int
    name: str
    is_about: bool
    word: _Word | None


@dataclass(frozen=True)
class Followed:
    """A route with the gateways of its environment, in the order of their names."""

    route: Route
    gateways: tuple[Follower, ...]

    @property
    def ack(self) -> Ack:
        """As `acknowledged`."""
        said = {one.pk: one.word for one in self.gateways if one.word is not None}
        return _ack(self.route, [one for one in self.gateways if one.is_about], said)

    @property
    def acks(self) -> list[dict[str, Any]]:
        """Each gateway that is about or has spoken of the route: whether it follows it as it is written.

        `{"gateway", "is_about", "is_current", "acked_at", "error"}`.
        """
        return [_followed(one, self.route) for one in self.gateways if one.word is not None or one.is_about]


def _followed(one: Follower, route: Route) -> dict[str, Any]:
    generation, acked_at, error, _ = one.word or (-1, None, "", -1)
    is_current = not error and generation >= route.generation
    return {
        "gateway": one.name, "is_about": one.is_about, "acked_at": acked_at, "error": error, "is_current": is_current,
    }  # fmt: skip


def followed_route(model: int, environment: int) -> Followed | None:
    """The model's route there, by keys and with nothing but its own columns, and who follows it; None before its first rollout
    there. One query."""
    for route in _route_with_gateways(model=model, environment=environment):
        said = {row["gateway"]: _word(**row) for row in route.said}
        gateways = [Follower(row["pk"], row["name"], row["is_about"], said.get(row["pk"])) for row in route.gateways]
        return Followed(route, tuple(gateways))
    return None


def _word(gateway: int, generation: int, acked_at: str, error: str, taken: int) -> _Word:
    return generation, datetime.fromisoformat(acked_at), error, taken if error else generation


def _route_with_gateways(model: int, environment: int) -> QuerySet[Any, Any]:
    is_about = ExpressionWrapper(Q(seen_at__gte=Now() - timedelta(seconds=SEEN_WITHIN_S)), BooleanField())
    gateways = Gateway.objects.filter(environment=OuterRef("environment")).order_by("name")
    told = gateways.values(row=JSONObject(pk="pk", name="name", is_about=is_about))
    columns = ("gateway", "generation", "acked_at", "error", "taken")
    said = RouteAck.objects.filter(route=OuterRef("pk")).values(row=JSONObject(**{name: name for name in columns}))
    rows = Route.objects.filter(model=model, environment=environment)
    return rows.annotate(gateways=ArraySubquery(told), said=ArraySubquery(said))
