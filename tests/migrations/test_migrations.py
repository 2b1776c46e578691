"""A database with rows of an older state goes forwards to today's tables and back, and today's code reads it.

The rows are those of a demo and of what the demo leaves out; README.md beside this file says how they were made. When the way
back of a new migration cannot restore a value, add the value to LOST.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client
from rest_framework.test import APIClient

from accounts.actions import actor_for
from accounts.models import User
from ledger.queries.chain_verification import verify_chain
from rollouts import actions
from rollouts.core.engine_state import EngineState
from rollouts.engine.loop import Engine
from rollouts.engine.timings import EngineTimings
from rollouts.models import Rollout
from tests.migrations.old_database import (
    Rows,
    broken_references,
    database_of_its_own,
    load,
    migrate_to_newest,
    migrate_to_old_state,
    primary_key,
    read_rows,
)
from tests.support.fakes.gateway import FakeGateway


@dataclass(frozen=True)
class Lost:
    """A value that is another one after the way forwards and back."""

    table: str
    column: str
    before: Any
    after: Any
    why: str


LOST: list[Lost] = []


@dataclass(frozen=True)
class Journey:
    """All rows as they were loaded, after the way forwards, after the way back, and after the way forwards once more."""

    old: Rows
    new: Rows
    back: Rows
    again: Rows


@pytest.fixture(scope="module")
def journey(django_db_blocker: Any) -> Iterator[Journey]:
    """Made once; the tests then find a database of its own, in today's state. None of them changes a row of ours in it."""
    with django_db_blocker.unblock(), database_of_its_own():
        migrate_to_old_state()
        load()
        old = read_rows()
        migrate_to_newest()
        new = read_rows()
        migrate_to_old_state()
        back = read_rows()
        migrate_to_newest()
        yield Journey(old, new, back, read_rows())


@pytest.fixture
def copied(journey: Journey) -> Iterator[Journey]:
    """The test gets a copy of the database, which it may change."""
    with database_of_its_own(template=connection.settings_dict["NAME"]):
        yield journey


def objects(rows: Rows, table: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in rows[table]]


def test_every_table_of_ours_has_rows(journey: Journey) -> None:
    """Or a migration that spoils them would not be noticed."""
    empty = {table for table, rows in journey.old.items() if not rows and not table.startswith(("auth_", "django_"))}
    assert empty == {"accounts_user_groups", "accounts_user_user_permissions"}  # Django's own, unused here


def test_every_row_is_still_there(journey: Journey) -> None:
    for table, rows in journey.old.items():
        if table not in journey.new:
            continue  # a later migration dropped it
        key, kept = primary_key(table), objects(journey.new, table)
        assert len(kept) == len(rows), table
        assert not rows or {row[key] for row in kept} == {row[key] for row in map(json.loads, rows)}, table


def test_the_way_back_restores_every_value(journey: Journey) -> None:
    assert journey.back.keys() == journey.old.keys()
    found = []
    for table, rows in journey.old.items():
        if table not in journey.new:
            assert journey.back[table] == [], table  # its migration dropped the rows
            continue
        key = primary_key(table)
        was, now = ({row[key]: row for row in map(json.loads, one)} for one in (rows, journey.back[table]))
        assert was.keys() == now.keys() and all(was[pk].keys() == now[pk].keys() for pk in was), table
        found += [
            (table, column, value, now[pk][column])
            for pk, row in was.items()
            for column, value in row.items()
            if value != now[pk][column]
        ]
    listed = [(one.table, one.column, one.before, one.after) for one in LOST]
    assert sorted(found, key=str) == sorted(listed, key=str)


def test_the_second_way_forwards_ends_as_the_first(journey: Journey) -> None:
    assert journey.again == journey.new


def test_the_constraints_hold(journey: Journey) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT conname FROM pg_constraint WHERE NOT convalidated")
        assert cursor.fetchall() == []
    assert broken_references() == []


def test_the_models_lack_no_migration(journey: Journey) -> None:
    out = StringIO()
    call_command("makemigrations", check=True, dry_run=True, stdout=out)
    assert out.getvalue() == "No changes detected\n"


def test_the_log_is_still_what_was_written(journey: Journey) -> None:
    (head,) = objects(journey.old, "ledger_chainhead")
    report = verify_chain(pin=(head["seq"], head["hash"]))
    assert report.breaks == () and report.events == len(journey.old["ledger_event"])


def test_the_engine_finds_its_state_of_every_rollout(journey: Journey) -> None:
    observed = {row["rollout_id"] for row in objects(journey.old, "rollouts_observation")}
    assert observed
    for rollout in Rollout.objects.all():
        state = EngineState.from_json(rollout.engine_state)
        assert EngineState.from_json(state.to_json()) == state
        assert (state.total != EngineState().total) == (rollout.pk in observed), rollout.pk
        assert rollout.effective_policy.steps


def test_the_engine_goes_on_with_what_was_under_way(copied: Journey) -> None:
    """One that bakes is promoted, one that is paused counts on, and one that was stuck ends, now that the gateway follows."""
    active = {
        row["state"]: row
        for row in objects(copied.old, "rollouts_rollout")
        if row["state"] in {"baking", "paused", "stuck"}
    }
    assert len(active) == 3
    gateway = FakeGateway("canary-gateway", seed=1)
    gateway.obey()
    engine = Engine(gateway, tick_s=0.05, lease_s=60, timings=EngineTimings(zero_poll_for_s=0.0))
    baking = Rollout.objects.get(pk=active["baking"]["id"])  # long over its deadline, so that it takes a person
    person = actor_for(User.objects.get(username="rita"))
    actions.promote_now(actor=person, rollout=baking, expected_version=baking.version, reason="The bake was long.")
    now: dict[str, Rollout] = {}
    for _ in range(40):  # what does not fit into a tick waits for the next, so a busy machine takes more of them
        for slug in ("double", "quadruple"):
            gateway.traffic(200, slug)
        engine.step()
        gateway.obey()
        now = {state: Rollout.objects.get(pk=row["id"]) for state, row in active.items()}
        if (now["stuck"].state, now["baking"].state) == ("rolled_back", "promoted"):
            break
    assert (now["stuck"].state, now["baking"].state) == ("rolled_back", "promoted"), now["baking"].reason
    assert now["stuck"].zero_at is not None
    before, after = (
        EngineState.from_json(one) for one in (active["paused"]["engine_state"], now["paused"].engine_state)
    )
    assert now["paused"].state == "paused" and now["paused"].tick > active["paused"]["tick"]
    assert after.total.candidate.attempts > before.total.candidate.attempts > 0
    assert verify_chain().breaks == ()


def test_states_are_those_that_were(journey: Journey) -> None:
    states = {row["id"]: row["state"] for row in objects(journey.old, "rollouts_rollout")}
    assert {one.pk: one.state for one in Rollout.objects.all()} == states
    assert set(states.values()) >= {"reverted", "promoted", "rolled_back", "stuck", "paused", "baking", "superseded"}


def addresses_of_the_api(rows: Rows) -> Iterator[str]:
    """What the API shows of these rows, each of them."""
    yield from ("me", "teams", "events", "audit", "keys", "models", "rollouts", "environments", "servers", "runtimes")
    yield from ("webhooks", "registry/collection")
    models = {row["id"]: row["slug"] for row in objects(rows, "registry_servedmodel")}
    for slug in models.values():
        yield from (f"models/{slug}", f"models/{slug}/releases", f"models/{slug}/aliases", f"models/{slug}/golden-sets")
    for row in objects(rows, "registry_release"):
        if row["number"] is None:
            yield f"releases/{row['id']}"
            continue
        release = f"models/{models[row['model_id']]}/releases/r{row['number']}"
        yield from (release, f"{release}/headers", f"{release}/signature", f"{release}/gate-runs", f"{release}/mlbom")
    for row in objects(rows, "registry_alias"):
        yield f"models/{models[row['model_id']]}/aliases/{row['name']}"
    environments = {row["id"]: row["slug"] for row in objects(rows, "serving_environment")}
    yield from (f"environments/{slug}" for slug in environments.values())
    for row in objects(rows, "serving_route"):
        served = f"environments/{environments[row['environment_id']]}/models/{models[row['model_id']]}/served"
        yield from (served, f"{served}/history")
    yield from (f"gate-runs/{row['id']}" for row in objects(rows, "validators_gaterun"))
    yield from (f"reports/{row['digest']}" for row in objects(rows, "validators_report"))
    for row in objects(rows, "rollouts_rollout"):
        yield from (f"rollouts/{row['id']}{part}" for part in ("", "/observations", "/decisions"))
    yield from (f"rollouts/{pk}/replay" for pk in {row["rollout_id"] for row in objects(rows, "rollouts_observation")})
    yield from (
        f"webhooks/{row['id']}{part}" for row in objects(rows, "notifications_webhook") for part in ("", "/deliveries")
    )
    deliveries = {(row["webhook_id"], row["state"]): row["id"] for row in objects(rows, "notifications_delivery")}
    yield from (f"webhooks/{webhook}/deliveries/{pk}" for (webhook, _), pk in deliveries.items())  # one in each state


def addresses_of_pages(rows: Rows) -> Iterator[str]:
    yield from ("/", "/models/", "/rollouts/", "/audit/", "/webhooks/")
    models = {row["id"]: row["slug"] for row in objects(rows, "registry_servedmodel")}
    yield from (f"/models/{slug}/" for slug in models.values())
    for row in objects(rows, "registry_release"):
        if row["number"] is not None:
            yield f"/models/{models[row['model_id']]}/r/{row['number']}/"
    yield from (f"/gate-runs/{row['id']}/" for row in objects(rows, "validators_gaterun"))
    yield from (f"/rollouts/{row['id']}/" for row in objects(rows, "rollouts_rollout"))
    yield from (f"/webhooks/{row['id']}/" for row in objects(rows, "notifications_webhook"))


def administrator() -> User:
    found = User.objects.filter(is_superuser=True).first()
    assert found is not None
    return found


def test_the_api_shows_every_row(journey: Journey) -> None:
    client = APIClient()
    client.force_authenticate(administrator())
    answers = {one: client.get(f"/api/v1/{one}") for one in addresses_of_the_api(journey.old)}
    assert {one: answer.content for one, answer in answers.items() if answer.status_code != 200} == {}
    for row in objects(journey.old, "rollouts_rollout"):
        shown = answers[f"rollouts/{row['id']}"].json()
        assert (shown["id"], shown["state"], shown["reason"]) == (row["id"], row["state"], row["reason"])
    for row in objects(journey.old, "validators_report"):
        assert answers[f"reports/{row['digest']}"].json()["verdict"] == row["verdict"]


def test_the_pages_show_every_row(journey: Journey) -> None:
    client = Client()
    client.force_login(administrator())
    answers = {one: client.get(one) for one in addresses_of_pages(journey.old)}
    assert {one: answer.status_code for one, answer in answers.items() if answer.status_code != 200} == {}
