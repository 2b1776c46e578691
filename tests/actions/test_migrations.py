"""Migrations that change what rows say, on rows, forwards and back."""

from __future__ import annotations

import json

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.migrations.executor import MigrationExecutor

from accounts.actions.issuers import create_issuer
from accounts.core.access import Actor
from accounts.models import Membership, RuleMembership
from ledger.actions import make_due_now
from ledger.models import Job
from notifications.actions import create_webhook, deliveries
from notifications.core.delivery import Outcome
from notifications.models import Webhook
from rollouts import actions
from rollouts.models import DecisionRecord, Rollout
from tests.factories import make_admin, make_team, make_user
from tests.rollout_setup import promoted, put, started

pytestmark = pytest.mark.django_db


def migrate(app: str, name: str | None) -> None:
    """The tables as after this migration (None: as before the first), in the test's transaction, so that everything is undone."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # or what waits to be checked forbids any change of a table
    MigrationExecutor(connection).migrate([(app, name)])


def state_of(rollout: Rollout) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT state FROM rollouts_rollout WHERE id = %s", [rollout.pk])
        return str(cursor.fetchone()[0])


@pytest.mark.slow
def test_a_promotion_that_was_undone_is_reverted_and_promoted_again_on_the_way_back() -> None:
    undone, _ = promoted()
    actions.roll_back_model(actor=make_admin(), model=undone.model, environment=undone.environment, reason="Wrong.")
    decided = DecisionRecord.objects.filter(rollout=undone, code="by_hand").last()
    assert decided is not None
    decided.pk, decided.code = None, "instant"  # as a version of that time wrote it
    decided.save(force_insert=True)
    kept, _ = promoted()
    odd = put(started(), "promoted", weight_bp=0)  # nobody went back from it
    migrate("rollouts", "0005_refuse_retired")
    assert [state_of(one) for one in (undone, kept, odd)] == ["promoted"] * 3
    migrate("rollouts", "0006_reverted")
    assert [state_of(one) for one in (undone, kept, odd)] == ["reverted", "promoted", "promoted"]


def verbs_of(row: Webhook) -> tuple[list[str], bool]:
    """As the table says that the ledger had."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT verbs, is_active FROM ledger_subscription WHERE id = %s", [row.pk])
        verbs, is_active = cursor.fetchone()
    return json.loads(verbs), is_active


def set_verbs(row: Webhook, verbs: list[str]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE ledger_subscription SET verbs = %s WHERE id = %s", [json.dumps(verbs), row.pk])


def test_webhooks_follow_verbs_that_were_renamed_and_those_left_with_none_are_off() -> None:
    admin, addresses = make_admin(), iter(f"https://example.com/{number}" for number in range(3))
    moved, kept, idle = (
        create_webhook(actor=admin, team=None, target=one, verbs=["rollout.*"])[0] for one in addresses
    )
    migrate("ledger", "0004_outbox")
    set_verbs(moved, ["validation.moved", "engine.led", "rollout.taken_back"])
    set_verbs(idle, ["environment.*"])
    migrate("ledger", "0005_verbs_and_jobs")
    assert verbs_of(moved) == (["validation.*", "rollout.reverted"], True)
    assert verbs_of(kept) == (["rollout.*"], True) and verbs_of(idle) == ([], False)
    migrate("ledger", "0004_outbox")
    assert verbs_of(moved) == (["validation.*", "rollout.taken_back"], True)


#: What the database calls the parts of these tables.
NAMES = """
SELECT relname FROM pg_class WHERE relkind IN ('r', 'S', 'i') AND relname ~ %s
UNION SELECT conname FROM pg_constraint JOIN pg_class ON pg_class.oid = conrelid WHERE relname ~ %s
"""
OLD, NEW = "^ledger_(subscription|delivery|attempt)", "^notifications_"


def names(pattern: str) -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute(NAMES, [pattern, pattern])
        return {name for (name,) in cursor.fetchall()}


def rows_of(*tables: str) -> list[list[tuple[object, ...]]]:
    with connection.cursor() as cursor:
        found = []
        for table in tables:
            cursor.execute(f"SELECT * FROM {table} ORDER BY id")
            found.append(cursor.fetchall())
    return found


def test_webhooks_leave_the_ledger_with_their_rows_names_and_job_and_come_back() -> None:
    row, _ = create_webhook(actor=make_admin(), team=None, target="https://example.com/a", verbs=["*"])
    other, _ = create_webhook(actor=make_admin("eve"), team=None, target="https://example.com/b", verbs=["*"])
    deliveries.collect()
    claimed = deliveries.claim_delivery(next(pk for _, pk in deliveries.next_due()))
    make_due_now(**deliveries.JOB)
    tables = ("notifications_webhook", "notifications_delivery", "notifications_attempt")
    here, called = rows_of(*tables), names(NEW)
    assert [len(one) for one in here] == [2, 3, 1] and claimed is not None

    migrate("notifications", "0001_from_the_ledger")
    before = rows_of(*tables)
    migrate("notifications", None)
    assert rows_of("ledger_subscription", "ledger_delivery", "ledger_attempt") == before
    assert not names(NEW) and not {name for name in names(OLD) if "webhook" in name}
    assert {"ledger_subscription_pkey", "subscription_kind_known", "ledger_attempt_id_seq"} <= names(OLD)
    with connection.cursor() as cursor:
        cursor.execute("SELECT kind FROM ledger_job")
        assert cursor.fetchall() == [("ledger.notify",)]

    migrate("ledger", "0008_event_search")  # webhooks left at 0007; the code of today needs the rest
    migrate("notifications", "0003_mails_to_people")
    assert rows_of(*tables) == here and names(NEW) == called and not names(OLD)
    assert {"notifications_webhook_pkey", "webhook_kind_known", "notifications_attempt_id_seq"} <= called
    assert Job.objects.get().kind == deliveries.JOB["kind"]
    assert deliveries.record_attempt(claimed.pk, claimed.attempts, Outcome())
    third, _ = create_webhook(actor=make_admin("ann"), team=None, target="https://example.com/c", verbs=["*"])
    assert third.pk == other.pk + 1 == row.pk + 2  # the sequence goes on
    with pytest.raises(IntegrityError), transaction.atomic():
        Webhook.objects.filter(pk=row.pk).update(kind="pigeon")


def given_by() -> set[tuple[int, int]]:
    """(membership, issuer) of each role that a rule gives, as the table says in either state."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT membership_id, issuer_id FROM accounts_rulemembership")
        return set(cursor.fetchall())


def test_roles_of_rules_keep_their_issuer_and_on_the_way_back_the_first_of_several() -> None:
    user, team = make_user("ann"), make_team("search")
    first, second = (
        create_issuer(actor=Actor.system("test"), url=f"https://{name}.example", kind="other") for name in "ab"
    )
    by_both, by_second, _by_hand = (
        Membership.objects.create(user=user, team=team, role=role) for role in ("viewer", "ci", "model_team")
    )
    for membership, issuer in ((by_both, second), (by_both, first), (by_second, second)):
        RuleMembership.objects.create(membership=membership, issuer=issuer)
    migrate("accounts", "0005_issuers")
    assert given_by() == {(by_both.pk, second.pk), (by_second.pk, second.pk)}
    migrate("accounts", "0006_roles_of_several_issuers")
    assert given_by() == {(by_both.pk, second.pk), (by_second.pk, second.pk)}
    RuleMembership.objects.create(membership=by_both, issuer=first)
    assert len(given_by()) == 3
