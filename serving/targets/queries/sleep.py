"""Named reads of models that may sleep, what keeps them awake, and what is short of room."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from django.db.models import Case, Q, QuerySet, When

from ledger.queries import clock
from registry.models import Release, ServedModel
from registry.queries.releases import LARGE, whole_releases
from serving.environments.core.replicas import What
from serving.environments.core.sleep_lifecycle import SleepState
from serving.environments.queries.inventory import current_servers, environments_by_id, live_replicas, replicas_in
from serving.environments.queries.reporting import on_reporting, reports_since
from serving.models import Environment, Replica, ReplicaTarget, Route, Sleep
from serving.targets.core.placement import claim_of
from serving.targets.core.sleep import Count, Quiet, why_awake
from serving.targets.hooks.needs import awaited_releases, needs_of
from serving.targets.queries.replicas import Key, replica_plans
from serving.traffic.queries.routes import all_routes, routes_of

#: What the names of actors begin with that are parts of Sluicegate itself.
_SYSTEM = "system:"
#: Environment and model.
Place = tuple[int, int]
_RULED = Q(unload_after_s__isnull=False) | Q(yields_after_s__isnull=False)


@dataclass(frozen=True)
class SleepView:
    """A model in an environment in which it is served. `sleep`: not in the database where nothing was said of it. `kept_awake`: why, as
    sentences, where it is. Memory in MiB, of stable's servers there: what their envelopes declare, and what those on nodes that report
    hold by their agents' last measurement, None where none was."""

    sleep: Sleep
    needs: tuple[str, ...]
    kept_awake: str
    declared_mib: int
    measured_mib: int | None


def sleep_views(
    model: ServedModel, environment: Environment | None = None, *, routes: Iterable[Route] | None = None
) -> list[SleepView]:
    """In the order of the environments' names. A handful of queries. `routes`: the model's `routes_of`, if they are known."""
    rows = {one.place: one for one in _rows().filter(model=model)}
    known = routes_of(model) if routes is None else routes
    routes = [one for one in known if environment is None or one.environment_id == environment.pk]
    found = sleepers({(one.environment_id, one.model_id) for one in routes})
    stable = {one.route.stable_id for one in found.values()}
    servers = current_servers().filter(replica__release__in=stable, replica__in=live_replicas())
    held: dict[Key, list[tuple[int, int | None]]] = {}
    size_known = Case(When(on_reporting(reports_since(), "replica__node__"), then="memory_bytes"))
    columns = ("replica__release_id", "replica__environment_id", "replica__claim", size_known)
    for release, where, claim, size in servers.values_list(*columns):
        held.setdefault((release, where), []).append((claim_of(claim).memory_mib, size))
    views = [
        _view(rows.get(place) or Sleep(environment=one.route.environment, model=model, version=0), one, held)
        for place, one in found.items()
    ]
    return sorted(views, key=lambda one: one.sleep.environment.slug)


def _view(sleep: Sleep, one: Sleeper, held: Mapping[Key, list[tuple[int, int | None]]]) -> SleepView:
    of_servers = held.get(one.key, [])
    measured = [size for _, size in of_servers if size is not None]
    total = round(sum(measured) / 2**20) if measured else None
    needs = (*one.needs, *one.by_hand)
    return SleepView(sleep, needs, _kept_awake(sleep, needs), sum(declared for declared, _ in of_servers), total)


def _kept_awake(sleep: Sleep, needs: Sequence[str]) -> str:
    """By what the last look wrote down."""
    if sleep.state != SleepState.AWAKE:
        return ""
    after_s, now = sleep.rule.soonest_s, clock.now().timestamp()
    if sleep.trouble and after_s is not None and not needs:
        return sleep.trouble
    since = sleep.state_since.timestamp() if sleep.state_since is not None else 0.0
    return why_awake(after_s, replace(quiet_of(sleep), read_at=now), awake_since=since, needs=needs, now=now)


def watched_sleeps() -> list[Sleep]:
    """Those that may sleep, or do."""
    return list(_rows().filter(_RULED | ~Q(state=SleepState.AWAKE)).order_by("pk"))


def _rows() -> QuerySet[Sleep]:
    return Sleep.objects.select_related("environment", "model__team")


def sleep_of(environment: int, model: int) -> Sleep | None:
    """By keys. Of a model that sleeps there or is on its way back; None where it is awake."""
    rows = Sleep.objects.filter(environment=environment, model=model).exclude(state=SleepState.AWAKE)
    return rows.first()


def is_by_hand(sleep: Sleep) -> bool:
    """Whether a person had it sleep, or wake."""
    return bool(sleep.state_by) and not sleep.state_by.startswith(_SYSTEM)


def quiet_of(sleep: Sleep) -> Quiet:
    """As it was last written down."""
    since = sleep.quiet_since
    counts = {gateway: Count(*counted) for gateway, counted in sleep.counts.items()}
    return Quiet(since.timestamp() if since is not None else None, counts=counts)


@dataclass(frozen=True)
class Sleeper:
    """A model's route with what keeps its stable release loaded. `needs`: as sentences without an end; `by_hand`: what a person said of
    its replicas, which keeps it only from falling asleep by itself. `is_loaded`: servers of it are wanted."""

    route: Route
    needs: tuple[str, ...] = ()
    by_hand: tuple[str, ...] = ()
    is_loaded: bool = False

    @property
    def key(self) -> Key:
        return self.route.stable_id, self.route.environment_id


def sleepers(places: Collection[Place]) -> dict[Place, Sleeper]:
    """Of each of these places in which the model has a route. A handful of queries, however many there are."""
    if not places:
        return {}
    environments, models = ({place[at] for place in places} for at in (0, 1))
    rows = all_routes().filter(environment__in=environments, model__in=models).select_related("stable__model__team")
    routes = rows.defer(*(f"{arm}__{column}" for arm in ("stable", "candidate") for column in LARGE))
    found = {key: one for one in routes if (key := (one.environment_id, one.model_id)) in places}
    loaded: dict[Place, set[UUID]] = {}
    wanted = live_replicas().filter(environment__in=environments, release__model__in=models, is_wanted=True)
    for environment, model, release in wanted.values_list("environment_id", "release__model_id", "release_id"):
        loaded.setdefault((environment, model), set()).add(release)
    every = {one for releases in loaded.values() for one in releases} | {one.stable_id for one in found.values()}
    uses = needs_of(every)
    scales = ReplicaTarget.objects.filter(release__in=every).exclude(changed_by__startswith=_SYSTEM)
    said = {(one.release_id, one.environment_id): f"{one.changed_by} said {one.replicas} replicas" for one in scales}
    return {place: _sleeper(one, loaded.get(place, set()), uses, said) for place, one in found.items()}


def _sleeper(route: Route, loaded: set[UUID], uses: dict[Key, list[str]], said: dict[Key, str]) -> Sleeper:
    needs = {what for release in {*loaded, route.stable_id} for what in uses.get((release, route.environment_id), [])}
    if route.candidate is not None:
        needs.add(f"{route.candidate.name} is its candidate")
    by_hand = said.get((route.stable_id, route.environment_id))
    return Sleeper(route, tuple(sorted(needs)), (by_hand,) if by_hand else (), route.stable_id in loaded)


def last_timings(release: Release, environment: Environment) -> dict[str, float]:
    """The measured cold start of the newest server of the release there; empty where none was timed."""
    rows = Replica.objects.filter(release=release, environment=environment, timings__has_key="warmup_s")
    return rows.order_by("-pk").values_list("timings", flat=True).first() or {}


def unplaced() -> list[tuple[Release, Environment]]:
    """Releases without a node in environments with a gateway: of waking models, of missing replicas, then awaited ones."""
    waking = {one.place for one in _rows().filter(state=SleepState.WAKING)}
    found = [
        (one.route.stable, one.route.environment)
        for one in sleepers(waking).values()
        if not replicas_in(one.route.stable, one.route.environment).exists()
    ]
    plans = [plan for plan in replica_plans() if any(step.what is What.PLACE for step in plan.steps)]
    awaited = [key for key in awaited_releases() if not replicas_in(*key).exists()]
    releases, environments = (
        whole_releases({one for one, _ in awaited}),
        environments_by_id({one for _, one in awaited}),
    )
    return [
        *found,
        *((plan.release, plan.environment) for plan in plans),
        *((releases[release], environments[environment]) for release, environment in awaited),
    ]
