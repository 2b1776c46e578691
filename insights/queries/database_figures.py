"""The figures that the database holds. Each is read anew whenever Prometheus asks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from django.db import connection
from django.db.models import Count, Max, Min

from insights.core.figures import Buckets, Figure, FigureType, Values
from ledger.models import Job
from ledger.queries.clock import now as database_now
from rollouts.core.lifecycle import ACTIVE
from rollouts.core.recent_traffic import MINUTES, RecentTraffic
from rollouts.models import DecisionRecord, Observation, Rollout, TrafficRecord
from rollouts.queries.alarms import every_watched_route, loud_alarms, objectives_now
from serving.models import Gateway, Node, Replica, Route
from serving.targets.core.gpu import Gpu, reading_of
from serving.targets.queries.fleet import why_unread
from serving.traffic.queries.endpoints import answering
from serving.traffic.queries.routes import acknowledgements
from validators.models import GateResult

_GAUGE, _COUNTER, _HISTOGRAM = FigureType.GAUGE, FigureType.COUNTER, FigureType.HISTOGRAM
_BASIS_POINTS: Final = 10_000
#: Seconds. Promised are 2 s for a kill or failed answers, and 5 s when an engine is killed too.
ROLLBACK_EDGES: Final = (1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0)
GATE_EDGES: Final = (1.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1800.0, 7200.0)
#: A decision is counted so long after it was made: a transaction that began before it may commit later.
SETTLED_S: Final = 10.0

_PLACE: Final = ("environment", "model")
Reader = Callable[[], Values]
_READERS: list[tuple[Figure, Reader]] = []


def _figure(name: str, kind: FigureType, about: str, *labels: str) -> Callable[[Reader], Reader]:
    """Exports what the function reads under this name."""

    def added(read: Reader) -> Reader:
        _READERS.append((Figure(name, kind, about, labels), read))
        return read

    return added


def _active() -> list[Rollout]:
    found = Rollout.objects.filter(state__in=sorted(one.value for one in ACTIVE))
    return list(found.select_related("environment", "model").defer("engine_state", "policy"))


@_figure("sluicegate_rollout_state", _GAUGE, "1 for the state of each active rollout.", *_PLACE, "state")
def rollout_state() -> Values:
    return {(one.environment.slug, one.model.slug, one.state): 1.0 for one in _active()}


@_figure(
    "sluicegate_rollout_stage_start_timestamp_seconds",
    _GAUGE,
    "When the present stage of each active rollout began, Unix time.",
    *_PLACE,
)
def rollout_stage_start() -> Values:
    return {
        (one.environment.slug, one.model.slug): at.timestamp()
        for one in _active()
        if (at := one.step_started_at or one.started_at or one.created_at) is not None
    }


@_figure(
    "sluicegate_rollout_weight_ratio",
    _GAUGE,
    "Candidate's share of traffic in each active rollout: desired, acknowledged by every gateway, observed in counts.",
    *_PLACE,
    "kind",
)
def rollout_weight() -> Values:
    """`acknowledged` and `observed` are absent while they are not known."""
    active = _active()
    pairs = {(one.model_id, one.environment_id) for one in active}
    routes = [
        one
        for one in Route.objects.filter(model__in={pair[0] for pair in pairs}).only(
            "model", "environment", "generation", "candidate_bp"
        )
        if (one.model_id, one.environment_id) in pairs
    ]
    acks = acknowledgements(routes, database_now())
    followed = {(one.model_id, one.environment_id): one.candidate_bp for one in routes if acks[one.pk].all_acked}
    found: dict[tuple[str, ...], float | Buckets] = {}
    for one in active:
        place = (one.environment.slug, one.model.slug)
        found[(*place, "desired")] = one.weight_bp / _BASIS_POINTS
        if (weight_bp := followed.get((one.model_id, one.environment_id))) is not None:
            found[(*place, "acknowledged")] = weight_bp / _BASIS_POINTS
        if one.observed_bp is not None:
            found[(*place, "observed")] = one.observed_bp / _BASIS_POINTS
    return found


@_figure(
    "sluicegate_rollout_evidence_log",
    _GAUGE,
    "Natural logarithm of the evidence that the candidate is worse, or fine, by guard of each active rollout.",
    *_PLACE,
    "guard",
    "side",
)
def rollout_evidence() -> Values:
    """Of each active rollout's newest observation."""
    active = {one.pk: one for one in _active()}
    newest = (
        Observation.objects.filter(rollout__in=active).values("rollout").annotate(newest=Max("pk")).values("newest")
    )
    found: dict[tuple[str, ...], float | Buckets] = {}
    for rollout, evidence in Observation.objects.filter(pk__in=newest).values_list("rollout", "evidence"):
        one = active[rollout]
        for guard, told in evidence.items():
            for side in ("worse", "fine"):
                if (value := told.get(f"log_e_{side}")) is not None:
                    found[one.environment.slug, one.model.slug, guard, side] = float(value)
    return found


@_figure("sluicegate_rollouts", _GAUGE, "All rollouts, by their state now.", "environment", "state")
def rollouts() -> Values:
    rows = Rollout.objects.values_list("environment__slug", "state").annotate(count=Count("pk")).order_by()
    return {(environment, state): float(count) for environment, state, count in rows}


@_figure(
    "sluicegate_rollback_fault_to_zero_seconds",
    _HISTOGRAM,
    "Time from the first broken request to acknowledged weight 0.",
    "environment",
)
def fault_to_zero() -> Values:
    found: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
    rows = Rollout.objects.filter(first_bad_at__isnull=False, zero_at__isnull=False)
    for environment, bad_at, zero_at in rows.values_list("environment__slug", "first_bad_at", "zero_at"):
        if bad_at and zero_at:
            found[(environment,)].append((zero_at - bad_at).total_seconds())
    return {labels: Buckets.of(values, ROLLBACK_EDGES) for labels, values in found.items()}


class Decisions:
    """Counts decisions as they are added, so that a long record is read once."""

    def __init__(self) -> None:
        self._last, self._counts = 0, Counter[tuple[str, ...]]()

    def __call__(self) -> Values:
        settled = database_now() - timedelta(seconds=SETTLED_S)
        new = DecisionRecord.objects.filter(pk__gt=self._last, at__lt=settled)
        newest = new.aggregate(pk=Max("pk"))["pk"]
        if newest is not None:
            rows = new.filter(pk__lte=newest).values_list("rollout__environment__slug", "action", "code")
            for *labels, count in rows.annotate(count=Count("pk")).order_by():
                self._counts[tuple(labels)] += count
            self._last = newest
        return {labels: float(count) for labels, count in self._counts.items()}


@_figure("sluicegate_gate_results", _COUNTER, "Gates that were judged, by verdict.", "gate", "verdict")
def gate_results() -> Values:
    rows = GateResult.objects.exclude(verdict="").values_list("gate", "verdict").annotate(count=Count("pk")).order_by()
    return {(gate, verdict): float(count) for gate, verdict, count in rows}


@_figure("sluicegate_gate_duration_seconds", _HISTOGRAM, "Time that each gate took, without reused results.", "gate")
def gate_durations() -> Values:
    found: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
    ended = GateResult.objects.filter(started_at__isnull=False, ended_at__isnull=False, reused_from=None)
    for gate, began_at, ended_at in ended.values_list("gate", "started_at", "ended_at"):
        if began_at and ended_at:
            found[(gate,)].append((ended_at - began_at).total_seconds())
    return {labels: Buckets.of(values, GATE_EDGES) for labels, values in found.items()}


@_figure("sluicegate_objective_ratio", _GAUGE, "Largest share that the objective allows.", *_PLACE, "indicator")
def objectives() -> Values:
    """The largest share that a routed model allows, by indicator."""
    found: dict[tuple[str, ...], float | Buckets] = {}
    for environment, model, told in Route.objects.values_list("environment__slug", "model__slug", "model__objectives"):
        shares = {name: one.get("max_frac") for name, one in told.items() if isinstance(one, dict)}
        for indicator, share in {"errors": told.get("errors_max_frac"), **shares}.items():
            if share is not None:
                found[environment, model, indicator] = float(share)
    return found


@_figure(
    "sluicegate_error_burn_ratio",
    _GAUGE,
    "Error share of the model's users in the last hour, divided by its objective.",
    *_PLACE,
)
def error_burn() -> Values:
    """Absent without requests in the last hour, and without an objective."""
    limits, found = objectives(), dict[tuple[str, ...], float | Buckets]()
    oldest = int(database_now().timestamp() // 60) - MINUTES
    for environment, model, told in TrafficRecord.objects.values_list("environment__slug", "model__slug", "traffic"):
        limit = limits.get((environment, model, "errors"))
        minutes = [one for one in RecentTraffic.from_json(told).minutes if one.at > oldest]
        requests = sum(one.requests for one in minutes)
        if isinstance(limit, float) and limit > 0 and requests:
            found[environment, model] = sum(one.errors for one in minutes) / requests / limit
    return found


@_figure("sluicegate_alarms", _GAUGE, "1 for each live alarm that is not muted.", *_PLACE, "objective", "tier", "state")
def alarms() -> Values:
    columns = ("environment__slug", "model__slug", "objective", "tier", "state")
    return dict.fromkeys(loud_alarms().values_list(*columns), 1.0)


@_figure(
    "sluicegate_objective_burn_ratio",
    _GAUGE,
    "Share of bad requests of the stable release, divided by its objective.",
    *_PLACE,
    "objective",
    "window",
)
def objective_burn() -> Values:
    """By the watch. Absent without requests in the window, and if the watch has not counted lately."""
    now = database_now()
    return {
        (route.environment.slug, route.model.slug, one.name, window): burn
        for route in every_watched_route()
        for one in objectives_now(route, now)
        for window, burn in (("5m", one.burn_5m), ("1h", one.burn_1h))
        if burn is not None
    }


@_figure("sluicegate_replicas", _GAUGE, "Replicas by release and state.", *_PLACE, "release", "state")
def replicas() -> Values:
    rows = Replica.objects.filter(gone_at=None).values_list(
        "environment__slug", "release__model__slug", "release__number", "state"
    )
    return {
        (environment, model, f"r{number}", state): float(count)
        for environment, model, number, state, count in rows.annotate(count=Count("pk")).order_by()
    }


@_figure("sluicegate_endpoints", _GAUGE, "Servers that answer, by their platform's last word.", *_PLACE, "release")
def endpoints() -> Values:
    rows = answering().order_by().values_list("environment__slug", "release__model__slug", "release__number")
    return {
        (environment, model, f"r{number}"): float(count)
        for environment, model, number, count in rows.annotate(count=Count("pk"))
    }


@_figure(
    "sluicegate_cold_start_seconds",
    _GAUGE,
    "Longest last start of the release's replicas: fetch, load and warm-up.",
    *_PLACE,
    "release",
)
def cold_starts() -> Values:
    found: dict[tuple[str, ...], float | Buckets] = {}
    rows = Replica.objects.filter(ready_at__isnull=False, gone_at=None).exclude(timings={})
    columns = ("environment__slug", "release__model__slug", "release__number", "timings")
    for environment, model, number, timings in rows.values_list(*columns):
        labels, took_s = (environment, model, f"r{number}"), sum(float(value) for value in timings.values())
        before = found.get(labels)
        found[labels] = max(took_s, before) if isinstance(before, float) else took_s
    return found


@_figure(
    "sluicegate_gateway_last_seen_seconds",
    _GAUGE,
    "Time since each gateway spoke to the control plane.",
    "environment",
    "gateway",
)
def gateways() -> Values:
    now = database_now()
    return {
        (one.environment.slug, one.name): (now - one.seen_at).total_seconds()
        for one in Gateway.objects.select_related("environment")
        if one.seen_at is not None
    }


@_figure("sluicegate_jobs", _GAUGE, "Jobs that wait or run.", "queue", "kind", "state")
def jobs() -> Values:
    rows = Job.objects.filter(state__in=("queued", "running")).values_list("queue", "kind", "state")
    return {tuple(labels): float(count) for *labels, count in rows.annotate(count=Count("pk")).order_by()}


@_figure("sluicegate_job_lag_seconds", _GAUGE, "Time by which the oldest waiting job is late.", "queue")
def job_lag() -> Values:
    now = database_now()
    rows = (
        Job.objects.filter(state="queued", due_at__lt=now)
        .values_list("queue")
        .annotate(due_at=Min("due_at"))
        .order_by()
    )
    return {(queue,): (now - due_at).total_seconds() for queue, due_at in rows}


@_figure("sluicegate_node_last_seen_seconds", _GAUGE, "Time since each node's agent reported.", "node")
def nodes() -> Values:
    now = database_now()
    seen = Node.objects.filter(removed_at=None, seen_at__isnull=False).values_list("name", "seen_at")
    return {(name,): (now - seen_at).total_seconds() for name, seen_at in seen if seen_at}


_OF_GPUS: Final[tuple[tuple[str, FigureType, str, Callable[[Gpu], float | None]], ...]] = (
    ("sluicegate_gpu_busy_ratio", _GAUGE, "Share of time in which a kernel ran.", lambda one: one.busy_frac),
    ("sluicegate_gpu_memory_used_bytes", _GAUGE, "Memory in use.", lambda one: one.memory_used_bytes),
    ("sluicegate_gpu_memory_total_bytes", _GAUGE, "Memory of the GPU.", lambda one: one.memory_total_bytes),
    ("sluicegate_gpu_temperature_celsius", _GAUGE, "Temperature.", lambda one: one.temperature_c),
    ("sluicegate_gpu_power_watts", _GAUGE, "Power draw.", lambda one: one.power_w),
    (
        "sluicegate_gpu_throttled_seconds",
        _COUNTER,
        "Time slowed by heat since the driver loaded.",
        lambda one: one.thermal_throttled_s,
    ),
    ("sluicegate_gpu_ecc_uncorrected_errors", _COUNTER, "Uncorrected memory errors.", lambda one: one.ecc_uncorrected),
)


def _of_gpus(read: Callable[[Gpu], float | None]) -> Reader:
    """Facts of readings that still hold. A GPU that cannot be read, or was read long ago, is left out."""

    def values() -> Values:
        found: dict[tuple[str, ...], float | Buckets] = {}
        now = database_now()
        for name, told in Node.objects.filter(removed_at=None).values_list("name", "gpus"):
            reading = reading_of(told)
            for gpu in reading.gpus if reading is not None and not why_unread(reading, now) else ():
                if (value := read(gpu)) is not None:
                    found[name, gpu.uuid] = float(value)
        return found

    return values


@_figure("sluicegate_database_size_bytes", _GAUGE, "Size of the database.")
def database_size() -> Values:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_database_size(current_database())")
        return {(): float(cursor.fetchone()[0])}


def figures() -> list[tuple[Figure, Reader]]:
    """Every figure with what reads it. One list for a process: it remembers how many decisions it has counted."""
    counted = Figure(
        "sluicegate_rollout_decisions",
        _COUNTER,
        "Decisions of the engine and of people.",
        ("environment", "action", "code"),
    )
    of_gpus = [(Figure(name, kind, about, ("node", "gpu")), _of_gpus(read)) for name, kind, about, read in _OF_GPUS]
    return [*_READERS, (counted, Decisions()), *of_gpus]
