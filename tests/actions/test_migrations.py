"""Migrations that change what rows say, on rows, forwards and back."""

from __future__ import annotations

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from ledger.actions import create_webhook
from ledger.models import Subscription
from rollouts import actions
from rollouts.models import Rollout
from tests.factories import make_admin
from tests.rollout_setup import promoted, put, started

pytestmark = pytest.mark.django_db


def migrate(app: str, name: str) -> None:
    """The tables as they were after this migration. In the test's transaction, so that everything is undone after it."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # or what waits to be checked forbids any change of a table
    MigrationExecutor(connection).migrate([(app, name)])


def state_of(rollout: Rollout) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT state FROM rollouts_rollout WHERE id = %s", [rollout.pk])
        return str(cursor.fetchone()[0])


def test_a_promotion_that_was_undone_is_reverted_and_promoted_again_on_the_way_back() -> None:
    undone, _ = promoted()
    actions.roll_back_model(actor=make_admin(), model=undone.model, environment=undone.environment, reason="Wrong.")
    kept, _ = promoted()
    odd = put(started(), "promoted", weight_bp=0)  # nobody went back from it
    migrate("rollouts", "0005_refuse_retired")
    assert [state_of(one) for one in (undone, kept, odd)] == ["promoted"] * 3
    migrate("rollouts", "0006_reverted")
    assert [state_of(one) for one in (undone, kept, odd)] == ["reverted", "promoted", "promoted"]


def verbs_of(row: Subscription) -> tuple[list[str], bool]:
    row.refresh_from_db()
    return row.verbs, row.is_active


def test_webhooks_follow_verbs_that_were_renamed_and_those_left_with_none_are_off() -> None:
    admin, addresses = make_admin(), iter(f"https://example.com/{number}" for number in range(3))
    moved, kept, idle = (
        create_webhook(actor=admin, team=None, target=one, verbs=["rollout.*"])[0] for one in addresses
    )
    migrate("ledger", "0004_outbox")
    Subscription.objects.filter(pk=moved.pk).update(verbs=["validation.moved", "engine.led", "rollout.taken_back"])
    Subscription.objects.filter(pk=idle.pk).update(verbs=["environment.*"])
    migrate("ledger", "0005_verbs_and_jobs")
    assert verbs_of(moved) == (["validation.*", "rollout.reverted"], True)
    assert verbs_of(kept) == (["rollout.*"], True) and verbs_of(idle) == ([], False)
    migrate("ledger", "0004_outbox")
    assert verbs_of(moved) == (["validation.*", "rollout.taken_back"], True)
    migrate("ledger", "0005_verbs_and_jobs")
