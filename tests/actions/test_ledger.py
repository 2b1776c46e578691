"""The log of events and its audit, on a real PostgreSQL."""

from __future__ import annotations

import threading
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

import notifications.tasks  # noqa: F401 - registers the handler, as Celery does
from accounts.core.access import Actor
from ledger import actions
from ledger.core.verbs import EventVerb
from ledger.models import ChainHead, Event
from ledger.queries.chain_verification import verify_chain

pytestmark = pytest.mark.django_db


ANNA = Actor(name="anna")


def append(**over: Any) -> Event:
    return actions.append_event(
        **{"verb": "route.set", "subject_type": "route", "subject_id": 7, "actor": ANNA, **over}
    )


def tamper(sql: str, *values: Any) -> None:
    """What somebody with the keys to the database can do: triggers off, change, triggers on."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(sql, values)
        cursor.execute("SET LOCAL session_replication_role = DEFAULT")


class TestEvents:
    def test_an_event_says_who_what_when_and_why(self) -> None:
        event = append(
            reason="users saw errors", from_state="shifting", to_state="rolling_back", facts={"weight_bp": 500}
        )
        event.refresh_from_db()
        assert (event.actor, event.verb, event.subject_id, event.reason) == (
            "anna",
            "route.set",
            "7",
            "users saw errors",
        )
        assert (event.from_state, event.to_state, event.facts) == ("shifting", "rolling_back", {"weight_bp": 500})
        assert abs(event.at - datetime.now(UTC)) < timedelta(seconds=10)

    def test_numbers_have_no_gap_and_each_points_at_the_one_before(self) -> None:
        events = [append(subject_id=n) for n in range(5)]
        assert [e.seq for e in events] == list(range(events[0].seq, events[0].seq + 5))
        assert [e.prev_hash for e in events[1:]] == [e.hash for e in events[:-1]]

    def test_a_transaction_that_rolls_back_leaves_no_trace(self) -> None:
        append()
        with transaction.atomic():
            append(reason="never happened")
            transaction.set_rollback(True)
        append(reason="next")
        assert Event.objects.filter(reason="never happened").count() == 0
        assert verify_chain().is_whole

    def test_one_act_can_be_followed_through_several_events(self) -> None:
        act = uuid.uuid4()
        append(act_id=act)
        append(act_id=act, subject_id=8)
        assert Event.objects.filter(act_id=act).count() == 2

    def test_a_verb_that_is_not_in_the_list_is_refused(self) -> None:
        with pytest.raises(ValueError, match="route.fiddled"):
            append(verb="route.fiddled")

    def test_an_enum_member_is_as_good_as_its_text(self) -> None:
        assert append(verb=EventVerb.RELEASE_SEALED).verb == "release.sealed"

    @pytest.mark.parametrize(
        "sql",
        [
            "UPDATE ledger_event SET reason = 'nicer'",
            "DELETE FROM ledger_event",
            "TRUNCATE ledger_event",
            "DELETE FROM ledger_chainhead",
        ],
    )
    def test_the_database_refuses_to_change_the_log(self, sql: str) -> None:
        append()
        with pytest.raises(IntegrityError, match="never"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(sql)
        assert Event.objects.count() == 1

    @pytest.mark.parametrize(
        "facts",
        [
            {"nan": float("nan"), "inf": float("inf"), "huge": 2**70, "wide": 1e22, "small": 1e-9, "whole": 3.0},
            {
                "when": datetime(2026, 1, 2, tzinfo=UTC),
                "id": uuid.UUID(int=5),
                "set": {"b", "a"},
                "pair": (1, 2),
                5: "number as a name",
            },
            {"zero byte": "a\x00b", "half a pair": "\ud800", "snow": "☃", "quote": '"\\'},
            {"deep": [{"a": [None, True, -0.0]}]},
        ],
    )
    def test_no_event_is_lost_for_the_shape_of_its_facts(self, facts: dict[str, Any]) -> None:
        append(facts=facts)
        report = verify_chain()
        assert (report.is_whole, report.events) == (True, 1)


@pytest.mark.django_db(transaction=True)
class TestEventsAcrossTransactions:
    def test_an_event_outside_of_a_transaction_is_refused(self) -> None:
        with pytest.raises(transaction.TransactionManagementError, match="belongs into the transaction"):
            append()

    def test_writers_at_the_same_time_make_one_line(self) -> None:
        def write() -> None:
            for _ in range(5):
                with transaction.atomic():
                    append()
            connection.close()

        threads = [threading.Thread(target=write) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        report = verify_chain()
        assert (report.events, report.breaks) == (20, ())


class TestAudit:
    @pytest.fixture(autouse=True)
    def log(self) -> list[Event]:
        return [append(subject_id=n, facts={"n": n}) for n in range(6)]

    def found(self) -> list[tuple[str, int]]:
        return [(found.kind, found.seq) for found in verify_chain().breaks]

    def test_an_untouched_log_is_whole_and_names_its_head(self, log: list[Event]) -> None:
        report = verify_chain()
        assert (report.is_whole, report.events, report.head, report.broken_at, report.problem) == (
            True,
            6,
            log[-1].hash,
            None,
            "",
        )

    @pytest.mark.parametrize("column", ["reason", "actor", "verb", "subject_id", "to_state"])
    def test_an_edit_is_found(self, log: list[Event], column: str) -> None:
        tamper(f"UPDATE ledger_event SET {column} = 'other' WHERE seq = %s", log[2].seq)
        assert self.found() == [("edited", log[2].seq)]

    def test_an_edit_of_facts_or_time_is_found(self, log: list[Event]) -> None:
        tamper("UPDATE ledger_event SET facts = '{\"n\": 9}' WHERE seq = %s", log[1].seq)
        tamper("UPDATE ledger_event SET at = at + interval '1 second' WHERE seq = %s", log[4].seq)
        assert self.found() == [("edited", log[1].seq), ("edited", log[4].seq)]

    def test_an_edit_with_its_hash_made_right_breaks_the_next_link(self, log: list[Event]) -> None:
        from dataclasses import replace

        from ledger.queries.chain_verification import link_of

        forged = replace(link_of(log[2]), reason="nothing to see").expected_hash()
        tamper("UPDATE ledger_event SET reason = 'nothing to see', hash = %s WHERE seq = %s", forged, log[2].seq)
        assert self.found() == [("reordered", log[3].seq)]

    def test_a_deletion_is_found(self, log: list[Event]) -> None:
        tamper("DELETE FROM ledger_event WHERE seq = %s", log[3].seq)
        assert self.found() == [("missing", log[4].seq)]

    def test_a_deletion_that_closes_the_gap_is_found(self, log: list[Event]) -> None:
        tamper("DELETE FROM ledger_event WHERE seq = %s", log[3].seq)
        for event in log[4:]:  # one at a time: PostgreSQL may visit them in any order, and numbers are unique all along
            tamper("UPDATE ledger_event SET seq = seq - 1 WHERE seq = %s", event.seq)
        assert ("edited", log[3].seq) in self.found()

    def test_a_swap_is_found(self, log: list[Event]) -> None:
        tamper("UPDATE ledger_event SET seq = -1 WHERE seq = %s", log[1].seq)
        tamper("UPDATE ledger_event SET seq = %s WHERE seq = %s", log[1].seq, log[2].seq)
        tamper("UPDATE ledger_event SET seq = %s WHERE seq = -1", log[2].seq)
        assert {seq for _, seq in self.found()} >= {log[1].seq, log[2].seq}

    def test_a_cut_off_end_is_found(self, log: list[Event]) -> None:
        tamper("DELETE FROM ledger_event WHERE seq >= %s", log[4].seq)
        assert self.found() == [("truncated", log[3].seq)]
        assert "was the last one written" in verify_chain().problem

    def test_an_emptied_log_is_found(self) -> None:
        tamper("DELETE FROM ledger_event")
        assert self.found() == [("truncated", 0)]

    def test_a_rewritten_last_event_is_found(self, log: list[Event]) -> None:
        tamper("UPDATE ledger_chainhead SET hash = %s", "f" * 64)
        assert self.found() == [("edited", log[5].seq)]

    def test_a_log_rewritten_as_a_whole_is_found_by_a_head_that_was_noted(self, log: list[Event]) -> None:
        seq, noted = log[-1].seq, log[-1].hash
        assert verify_chain((seq, noted)).is_whole and verify_chain((log[0].seq, log[0].hash)).is_whole
        rewritten = verify_chain((seq, "0" * 64))  # every hash in the log is right, and it is another log
        assert [(found.kind, found.seq) for found in rewritten.breaks] == [("rewritten", seq)]
        cut = verify_chain((seq + 5, noted))
        assert [found.kind for found in cut.breaks] == ["truncated"] and f"Event {seq + 5} was noted" in cut.problem

    def test_no_more_than_some_breaks_are_listed(self) -> None:
        for _ in range(30):
            append()
        tamper("UPDATE ledger_event SET reason = 'x'")
        assert len(verify_chain().breaks) == 20


def test_an_empty_log_is_whole() -> None:
    report = verify_chain()
    assert (report.is_whole, report.events, ChainHead.objects.count()) == (True, 0, 0)
