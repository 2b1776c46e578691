"""Everything that a page can show, once or two hundred times, and the address of every page for it."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import models
from django.urls import URLPattern, reverse
from django.utils import timezone

import web.urls
from accounts.actions import actor_for, issue_token
from accounts.actions.issuers import create_issuer
from accounts.core.access import Actor, Role
from accounts.models import Issuer, User
from audit.actions import check_log
from insights.models import Incident
from ledger.actions import append_event
from ledger.models import Event
from notifications.actions.webhooks import create_webhook
from notifications.models import Webhook
from registry.actions.aliases import set_alias
from registry.models import Release, ServedModel
from rollouts.core.counter_deltas import Arms, Counts
from rollouts.core.tick_history import OpenSegment, TickContext, TickRecord
from rollouts.models import Alarm, Observation, Rollout
from serving.models import Gateway, Route
from tests.support.worlds.alarm_setup import burning, counted, paged
from tests.support.worlds.factories import make_model, make_release, make_replica, make_server, make_user
from tests.support.worlds.rollout_setup import (
    OBJECTIVES,
    awaiting,
    production,
    put,
    report_for,
    serves,
    slow_request,
    started,
    with_stable,
)
from validators.actions.gate_runs import add_golden_set
from validators.models import GateResult, GateRun, GoldenSet

#: They lead to an issuer, or come from one.
_AWAY = frozenset({"issuer_sign_in", "issuer_return"})
SYSTEM = Actor.system("tests")
_LINES = b'{"id": "1", "inputs": {"TEXT": "fine"}, "label": 1}\n{"id": "2", "inputs": {"TEXT": "bad"}, "label": 0}\n'


@dataclass(frozen=True)
class PageWorld:
    """One of each; `admin` may see and do everything."""

    admin: User
    model: ServedModel
    release: Release
    rollout: Rollout  # shifting
    ended: Rollout  # rolled back
    waiting: Rollout  # for an approval
    gate_run: GateRun
    webhook: Webhook
    golden_set: GoldenSet
    issuer: Issuer
    event: Event
    alarm: Alarm
    incident: Incident


def page_world(rows: int) -> PageWorld:
    """A world in which each list has at least `rows` rows."""
    admin = make_user("root", is_admin=True, password="tests-only-secret")
    issue_token(user=admin, name="laptop", actor=actor_for(admin))
    member = make_user("ada", team="search", role=Role.RELEASE_MANAGER)
    model = make_model("sentiment", objectives=OBJECTIVES)
    environment = production()
    Gateway.objects.create(
        environment=environment, name="gateway-1", admin_url="http://127.0.0.1:1", http_url="http://127.0.0.1:2",
        grpc_address="127.0.0.1:3", seen_at=timezone.now(),
    )  # fmt: skip
    stable, candidate = make_release(model, author=member), make_release(model, author=member)
    report = report_for(stable)
    GateResult.objects.create(
        gate_run=report.gate_run, gate="contract", position=0, verdict="passed", reason="It fits."
    )
    serves(stable)
    make_server(make_replica(stable, environment, state="ready"))
    golden_set, _ = add_golden_set(actor=SYSTEM, model=model, data=_LINES)
    set_alias(actor=SYSTEM, model=model, name="champion", release=stable, expected_version=None)
    webhook, _ = create_webhook(
        actor=SYSTEM, team="search", target="https://hooks.example.com/one", verbs=["rollout.*"]
    )
    issuer = create_issuer(actor=SYSTEM, url="https://login.example.com")
    rollout = put(started(candidate=candidate), "shifting", step_index=0, weight_bp=2500)
    waiting, *_ = awaiting(approvals={"start": 1})
    over, _ = with_stable()
    ended = put(over, "rolled_back", weight_bp=0, ended_at=timezone.now())
    watched(rollout, rows), watched(ended, rows)
    for one in (rollout, ended):
        for number in range(min(rows, 40)):  # as many as are kept of an arm
            slow_request(one, request_id=f"5f1c2f0e-1111-4f64-9d2b-{number:012}")
    make_release(model, author=member, state="draft")  # type: ignore[arg-type]
    for number in range(rows):
        event = append_event(
            verb="rollout.held", subject_type="rollout", subject_id=rollout.pk, actor=SYSTEM, reason=f"Tick {number}.",
            facts={"model": model.slug, "environment": "production"},
        )  # fmt: skip
    counted(model, bad=48, attempts=1200)
    alarm = burning(model)
    world = PageWorld(
        admin,
        model,
        stable,
        rollout,
        ended,
        waiting,
        report.gate_run,
        webhook,
        golden_set,
        issuer,
        event,
        alarm,
        paged(),
    )
    _many(world, rows - 1)
    check_log(asked_by=admin.username)
    return world


def watched(rollout: Rollout, ticks: int) -> None:
    """So many ticks of the rollout, a second each, as the engine stores them: one bad attempt of the candidate's ten."""
    began, history = rollout.created_at.timestamp(), OpenSegment()
    mark = TickContext("shifting", 0, 500, step_started_at=began)
    for tick in range(1, ticks + 1):
        arms = Arms(Counts(10, 10, {"errors": 1}), Counts(190, 190, {"errors": 0}))
        history = history.after(TickRecord(mark, tick, began + tick, began + tick, arms))
    block = history.block()
    from_at, at = (datetime.fromtimestamp(seconds, UTC) for seconds in (block.from_at, block.at))
    Observation.objects.create(
        rollout=rollout, first_tick=1, tick=ticks, from_at=from_at, at=at, state="shifting", weight_bp=500, evidence={},
        ticks=list(block.ticks), candidate=block.arms.candidate.to_json(), stable=block.arms.stable.to_json(),
    )  # fmt: skip


def _many(world: PageWorld, count: int) -> None:
    """So many more of each, written without their stories."""
    others = copies(world.model, count, lambda i: {"slug": f"model-{i:04}"})
    releases = copies(
        world.release, count, lambda i: {"id": uuid.uuid4(), "model": others[i], "number": 1, "digest": _digest(i)}
    )
    copies(world.release, count, lambda i: {"id": uuid.uuid4(), "number": 1000 + i, "digest": _digest(count + i)})
    ServedModel.objects.filter(pk=world.model.pk).update(last_number=1000 + count)
    route = Route.objects.get(model=world.model, environment=world.rollout.environment)
    copies(route, count, lambda i: {"model": others[i], "stable": releases[i], "candidate": None, "candidate_bp": 0})
    ended = {"state": "rolled_back", "ended_at": timezone.now(), "weight_bp": 0}
    copies(world.rollout, count, lambda i: ended)
    copies(world.rollout, count, lambda i: {"model": others[i], "candidate": releases[i], "stable": None})
    copies(world.waiting, count, lambda i: {"model": others[i], "candidate": releases[i], **_elsewhere(i)})
    closed = {"state": "closed", "closed_at": timezone.now()}
    copies(world.alarm, count, lambda i: {"model": others[i], **(closed if i % 2 else {})})
    copies(world.incident, count, lambda i: {"model": others[i], **(closed if i % 2 else {})})
    copies(world.gate_run, count, lambda i: {"created_at": timezone.now() - timedelta(minutes=i)})
    copies(world.webhook, count, lambda i: {"target": f"https://hooks.example.com/{i}"})
    copies(world.admin, count, lambda i: {"username": f"person-{i:04}", "is_superuser": False})


def _elsewhere(number: int) -> dict[str, Any]:
    return (
        {"state": "rejected", "ended_at": timezone.now()}
        if number % 2
        else {"state": "cancelled", "ended_at": timezone.now()}
    )


def _digest(number: int) -> str:
    return f"sha256:{number:064x}"


def copies(row: models.Model, count: int, changes: Callable[[int], dict[str, Any]]) -> list[Any]:
    """So many more rows like this one, each with its changes, written without their stories."""
    made = []
    for number in range(count):
        one = copy.copy(row)
        one._state = copy.copy(row._state)
        one._state.adding, one._state.fields_cache = True, dict(row._state.fields_cache)
        one.pk = None
        for name, value in changes(number).items():
            setattr(one, name, value)
        made.append(one)
    return list(type(row)._default_manager.bulk_create(made))


def addresses(world: PageWorld) -> Iterator[tuple[str, str]]:
    """(name, address) of every page and fragment, but not of what only takes a form, or leads to another server.

    Raises KeyError for one whose arguments this world does not know.
    """
    values: dict[str, Any] = {
        "slug": world.model.slug, "number": world.release.number, "path": "artifact/model.onnx", "username": "ada",
        "verb": "pause", "delivery": uuid.UUID(int=0), "release": world.release.pk, "code": "not_found", "seq": world.event.seq,
        "name": "production", "environment": "production", "digest": world.golden_set.digest,
    }  # fmt: skip
    keys = {
        "rollout": world.rollout.pk, "gate": world.gate_run.pk, "gates": world.gate_run.pk, "webhook": world.webhook.pk,
        "issuer": world.issuer.pk, "post": world.ended.pk, "alarm": world.alarm.pk,
        "incident": world.incident.pk,
    }  # fmt: skip
    for pattern in web.urls.urlpatterns:
        assert isinstance(pattern, URLPattern)
        if pattern.name is None:  # an old address, which leads to the new one
            continue
        if pattern.callback.__qualname__.startswith("posted.") or pattern.name in _AWAY:
            continue
        named = {
            name: keys[pattern.name.partition("_")[0]] if name == "pk" else values[name]
            for name in pattern.pattern.converters
        }
        if pattern.name == "settings_environment":
            named["slug"] = "production"
        yield pattern.name, reverse(pattern.name, kwargs=named)


def asked_for_more(world: PageWorld) -> Iterator[tuple[str, str]]:
    """(name, address) of pages that cost more where their address asks for more, and of rollouts in other states."""
    slug, candidate = world.model.slug, world.rollout.candidate.number
    here = reverse("release_rollout", args=[slug, candidate])
    yield "release_rollout with a preset", f"{here}?preset=careful"
    against = reverse("release_diff", args=[slug, candidate])
    yield "release_diff against another", f"{against}?against={world.release.name}"
    yield "search for a model", f"{reverse('search')}?q={slug}"
    yield "search_fragment for a rollout", f"{reverse('search_fragment')}?q={world.rollout.pk}"
    yield "rollouts of a model", f"{reverse('rollouts')}?model={slug}&state=ended&since=2+h"
    yield "rollout_replay under a preset", f"{reverse('rollout_replay', args=[world.rollout.pk])}?preset=careful"
    waiting = world.waiting
    yield "release_diff that waits", reverse("release_diff", args=[waiting.model.slug, waiting.candidate.number])
    for name, rollout in (("ended", world.ended), ("waiting", world.waiting)):
        yield f"rollout that is {name}", reverse("rollout", args=[rollout.pk])
