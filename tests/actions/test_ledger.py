"""The log of events, the jobs and the leases, on a real PostgreSQL."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import current_app
from django.conf import settings as django_settings
from django.db import IntegrityError, connection, transaction
from django.db.models.functions import Now
from django.utils import timezone

import notifications.tasks  # noqa: F401 - registers the handler, as Celery does
from accounts.core.access import Actor
from ledger import actions
from ledger.actions import leases
from ledger.actions.job_dispatch import RESEND_AFTER_S
from ledger.actions.jobs import _move as move_job
from ledger.core.errors import Invalid, StateChanged
from ledger.core.lifecycle import MOVES, JobState
from ledger.core.verbs import EventVerb
from ledger.hooks import job_handlers as jobs
from ledger.models import ChainHead, Event, Job
from ledger.queries.chain_verification import verify_chain
from ledger.tasks import run_job
from notifications.actions.deliveries import JOB as NOTIFY

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


def enqueue(**over: Any) -> Job:
    return actions.enqueue(**{"kind": "test", "key": "k", "args": {"n": 1}, **over})


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids that would have gone to Celery."""
    ids: list[str] = []

    class Signature:
        def __init__(self, name: str, args: list[str], **_: Any) -> None:
            assert name == "ledger.run_job"
            self.args = args

        def apply_async(self) -> None:
            ids.extend(self.args)

    monkeypatch.setattr(current_app, "signature", Signature)
    return ids


class TestQueue:
    def test_a_job_waits_until_it_is_claimed(self) -> None:
        job = enqueue()
        assert (job.state, job.attempts, job.owner, job.args) == (JobState.QUEUED, 0, "", {"n": 1})
        assert Job.objects.get(kind="test", key="k") == job

    def test_the_same_work_is_enqueued_once_until_it_ends(self) -> None:
        first = enqueue()
        assert enqueue().pk == first.pk
        assert actions.claim(first.pk, "a", 30)
        assert enqueue().pk == first.pk
        assert actions.finish(first.pk, "a")
        second = enqueue()
        assert second.pk != first.pk
        assert Job.objects.filter(kind="test", key="k").latest("created_at") == second

    def test_its_id_is_sent_when_the_caller_commits(
        self, sent: list[str], django_capture_on_commit_callbacks: Any
    ) -> None:
        with django_capture_on_commit_callbacks(execute=True):
            job = enqueue()
            assert sent == []
        assert sent == [str(job.pk)]

    def test_a_job_for_later_is_not_sent_and_cannot_be_claimed_yet(
        self, sent: list[str], django_capture_on_commit_callbacks: Any
    ) -> None:
        with django_capture_on_commit_callbacks(execute=True):
            job = enqueue(due_at=timezone.now() + timedelta(minutes=5))
        assert sent == []
        assert actions.dispatch_due() == 0
        assert actions.claim(job.pk, "a", 30) is None

    def test_a_broker_that_is_away_does_not_hurt_the_caller(
        self, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        def away(*_: Any, **__: Any) -> None:
            raise ConnectionError("no broker")

        monkeypatch.setattr(current_app, "signature", away)
        with django_capture_on_commit_callbacks(execute=True):
            job = enqueue()
        assert Job.objects.get(pk=job.pk).state == JobState.QUEUED
        Job.objects.update(sent_at=None)
        assert actions.dispatch_due() == 0
        assert "no broker" in caplog.text

    def test_a_broker_that_is_away_is_not_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from celery import Celery
        from kombu.exceptions import OperationalError

        pauses: list[float] = []
        monkeypatch.setattr("kombu.utils.functional.sleep", pauses.append)
        for options, waits in ((django_settings.CELERY_BROKER_TRANSPORT_OPTIONS, False), ({}, True)):
            lonely = Celery("lonely", broker="redis://127.0.0.1:1/0", set_as_current=False)
            lonely.conf.broker_transport_options = options
            monkeypatch.setattr("ledger.actions.jobs.current_app", lonely)
            with pytest.raises(OperationalError):
                actions.send(enqueue())
            assert bool(sum(pauses)) is waits


class TestLeaseOfAJob:
    def test_one_of_two_workers_gets_it(self) -> None:
        job = enqueue()
        assert actions.claim(job.pk, "a", 30)
        assert actions.claim(job.pk, "b", 30) is None

    def test_a_job_whose_worker_fell_silent_is_taken_over(self) -> None:
        job = enqueue()
        actions.claim(job.pk, "a", -1)
        taken = actions.claim(job.pk, "b", 30)
        assert taken is not None
        assert (taken.owner, taken.attempts) == ("b", 2)
        assert not actions.heartbeat(job.pk, "a", 30)
        assert not actions.finish(job.pk, "a")
        assert not actions.release_for_retry(job.pk, "a", delay_s=0, why="late")
        assert actions.finish(job.pk, "b")

    def test_a_heartbeat_extends_the_lease_and_notes_progress(self) -> None:
        job = enqueue()
        actions.claim(job.pk, "a", -1)
        assert actions.heartbeat(job.pk, "a", 30, done=2, total=5, note="cold start")
        assert actions.claim(job.pk, "b", 30) is None
        job.refresh_from_db()
        assert (job.progress_done, job.progress_total, job.progress_note) == (2, 5, "cold start")
        assert actions.heartbeat(job.pk, "a", 30)
        job.refresh_from_db()
        assert job.progress_note == "cold start"

    def test_a_finished_job_is_not_run_again(self) -> None:
        job = enqueue()
        actions.claim(job.pk, "a", 30)
        assert actions.finish(job.pk, "a", error="no server came up")
        assert actions.claim(job.pk, "b", 30) is None
        job.refresh_from_db()
        assert (job.state, job.error, job.finished_at is not None) == (JobState.FAILED, "no server came up", True)

    @pytest.mark.parametrize("seen", list(JobState))
    @pytest.mark.parametrize("to", list(JobState))
    def test_no_move_but_those_in_the_table(self, seen: JobState, to: JobState) -> None:
        job = enqueue()
        Job.objects.filter(pk=job.pk).update(state=seen, owner="a")
        if to in MOVES[seen]:
            assert move_job(job.pk, seen, to, owner="a")
        else:
            with pytest.raises(StateChanged, match="illegal_transition"):
                move_job(job.pk, seen, to, owner="a")


class TestSweep:
    def test_a_waiting_job_is_sent_again_only_after_a_while(self, sent: list[str]) -> None:
        job = enqueue()
        assert actions.dispatch_due() == 1
        assert actions.dispatch_due() == 0
        Job.objects.update(sent_at=timezone.now() - timedelta(seconds=RESEND_AFTER_S + 1))
        assert actions.dispatch_due() == 1
        assert sent == [str(job.pk)] * 2

    def test_a_job_whose_lease_ran_out_is_sent_at_once(self, sent: list[str]) -> None:
        job = enqueue()
        actions.send(job)
        Job.objects.update(sent_at=timezone.now() - timedelta(seconds=1))
        actions.claim(job.pk, "a", -0.01)
        assert actions.dispatch_due() == 1
        assert actions.dispatch_due() == 0

    def test_a_running_and_a_finished_job_are_left_alone(self, sent: list[str]) -> None:
        running, finished = enqueue(), enqueue(key="other")
        actions.claim(running.pk, "a", 30)
        actions.claim(finished.pk, "a", 30)
        actions.finish(finished.pk, "a")
        assert actions.dispatch_due() == 0


@pytest.fixture
def handle() -> Iterator[Callable[..., None]]:
    """Registers a handler of kind `test` for the length of one test."""
    before = dict(jobs._REGISTERED)

    def register(handler: Any, on_failed: Any = None) -> None:
        jobs._REGISTERED.pop("test", None)
        jobs.handler("test", on_failed=on_failed)(handler)

    yield register
    jobs._REGISTERED.clear()
    jobs._REGISTERED.update(before)


def run(job: Job) -> Job:
    """Runs it now, whenever it is due."""
    Job.objects.filter(pk=job.pk).update(due_at=timezone.now() - timedelta(seconds=1))
    run_job(str(job.pk))
    return Job.objects.get(pk=job.pk)


class TestRun:
    def test_a_handler_gets_the_job_and_reports_progress(self, handle: Any) -> None:
        def work(job: Job, beat: jobs.Beat) -> None:
            assert job.args == {"n": 1}
            assert beat(done=1, total=1, note="all of it")

        handle(work)
        job = run(enqueue())
        assert (job.state, job.progress_note, job.error, job.lease_until) == (JobState.DONE, "all of it", "", None)

    def test_a_copy_of_the_message_does_nothing(self, handle: Any) -> None:
        ran = []
        handle(lambda job, beat: ran.append(job))
        job = run(enqueue())
        run_job(str(job.pk))
        run_job(str(uuid.uuid4()))
        assert len(ran) == 1

    def test_an_unknown_kind_fails_and_says_so(self) -> None:
        job = run(enqueue(kind="nobody"))
        assert (job.state, "No handler for jobs of kind 'nobody'" in job.error) == (JobState.FAILED, True)

    @pytest.mark.takes("job: running → queued", "job: running → failed")
    def test_an_error_is_tried_again_and_at_last_told_to_the_owner(self, handle: Any) -> None:
        told: list[str] = []

        def work(job: Job, beat: jobs.Beat) -> None:
            raise OSError("the server hung up")

        handle(work, on_failed=lambda job: told.append(job.error))
        job = enqueue(max_attempts=2)
        waiting = run(job)
        assert (waiting.state, waiting.due_at > timezone.now(), told) == (JobState.QUEUED, True, [])
        failed = run(job)
        assert (failed.state, failed.attempts, failed.error) == (JobState.FAILED, 2, "OSError: the server hung up")
        assert told == ["OSError: the server hung up"]
        event = Event.objects.get(verb="job.failed")
        assert (event.subject_id, event.reason, event.facts["attempts"]) == (str(job.pk), failed.error, 2)

    def test_the_failure_of_a_kind_that_records_none_is_no_event(self) -> None:
        job = enqueue(kind=NOTIFY["kind"], max_attempts=1)
        actions.claim(job.pk, "a", -1)
        assert run(job).state == JobState.FAILED
        assert not Event.objects.filter(verb="job.failed").exists()

    def test_what_can_never_work_is_not_tried_again(self, handle: Any) -> None:
        def work(job: Job, beat: jobs.Beat) -> None:
            raise Invalid("golden_missing", "There is no golden set; add one.")

        handle(work)
        job = run(enqueue())
        assert (job.state, job.attempts, job.error) == (
            JobState.FAILED,
            1,
            "There is no golden set; add one. [golden_missing]",
        )

    def test_again_waits_without_costing_an_attempt(self, handle: Any) -> None:
        def work(job: Job, beat: jobs.Beat) -> None:
            raise jobs.Again(5, "the server is still loading")

        handle(work)
        job = enqueue(max_attempts=1)
        for _ in range(3):
            waiting = run(job)
            assert (waiting.state, waiting.attempts, waiting.progress_note) == (
                JobState.QUEUED,
                0,
                "the server is still loading",
            )

    def test_a_job_that_kills_its_workers_fails_in_the_end(self, handle: Any) -> None:
        told: list[Job] = []
        handle(lambda job, beat: pytest.fail("must not run again"), on_failed=told.append)
        job = enqueue(max_attempts=2)
        actions.claim(job.pk, "a", -1)
        actions.claim(job.pk, "b", -1)
        failed = run(job)
        assert (failed.state, len(told)) == (JobState.FAILED, 1)
        assert "died or was lost 2 times" in failed.error

    def test_two_handlers_for_one_kind_are_refused(self, handle: Any) -> None:
        def one(job: Job, beat: jobs.Beat) -> None: ...
        def two(job: Job, beat: jobs.Beat) -> None: ...

        handle(one)
        with pytest.raises(ValueError, match="two handlers"):
            jobs.handler("test")(two)

    def test_again_says_when(self) -> None:
        assert str(jobs.Again(2.5, "not yet")) == "not yet (again in 2.5 s)"


@pytest.mark.django_db(transaction=True)
class TestHeartbeat:
    @pytest.fixture(autouse=True)
    def short_lease(self, settings: Any) -> None:
        settings.JOB_LEASE_S = (
            6.0  # a beat each 2 s; a stutter of the machine is shorter than what is left of the lease then
        )

    def test_work_longer_than_the_lease_keeps_its_job(self, handle: Any, sent: list[str]) -> None:
        stolen = []

        def work(job: Job, beat: jobs.Beat) -> None:
            mine = Job.objects.filter(pk=job.pk)
            mine.update(lease_until=Now())  # so long it has worked
            deadline = time.monotonic() + 60
            while not mine.filter(lease_until__gt=Now()).exists():
                assert time.monotonic() < deadline, "no heartbeat"
                time.sleep(0.02)
            stolen.append(actions.claim(job.pk, "thief", 30))

        handle(work)
        assert run(enqueue()).state == JobState.DONE
        assert stolen == [None]

    def test_who_lost_the_job_is_told_and_cannot_end_it(self, handle: Any, sent: list[str]) -> None:
        answers = []

        def work(job: Job, beat: jobs.Beat) -> None:
            Job.objects.filter(pk=job.pk).update(owner="another")
            answers.append(beat())

        handle(work)
        job = run(enqueue())
        assert (answers, job.owner, job.state) == ([False], "another", JobState.RUNNING)


class TestLeases:
    def test_one_holds_it_and_the_token_grows_with_every_term(self) -> None:
        first = leases.acquire("engine", "a", 30)
        assert first is not None
        assert leases.acquire("engine", "b", 30) is None
        assert leases.holder("engine") == leases.holder("engine", for_s=25) == "a"
        assert leases.holder("engine", for_s=31) is None
        leases.release("engine", "a", first)
        second = leases.acquire("engine", "b", 30)
        assert second is not None and second > first

    def test_a_term_that_ran_out_goes_on_until_somebody_else_has_one(self) -> None:
        token = leases.acquire("engine", "a", -1)
        assert token is not None and leases.holder("engine") is None
        assert leases.renew("engine", "a", token, -1)
        assert leases.acquire("engine", "b", -1) == token + 1
        assert not leases.renew("engine", "a", token, 30)
        leases.release("engine", "b", token + 1)
        assert not leases.renew("engine", "b", token + 1, 30)

    def test_renewing_and_releasing_take_the_right_owner_and_token(self) -> None:
        token = leases.acquire("engine", "a", 30)
        assert token is not None
        assert leases.renew("engine", "a", token, 30)
        assert not leases.renew("engine", "b", token, 30)
        assert not leases.renew("engine", "a", token + 1, 30)
        leases.release("engine", "b", token)
        leases.release("engine", "a", token - 1)
        assert leases.holder("engine") == "a"

    def test_names_do_not_disturb_each_other(self) -> None:
        assert leases.acquire("engine", "a", 30) == leases.acquire("garbage", "b", 30) == 1


@pytest.mark.django_db(transaction=True)
def test_of_many_who_ask_for_a_lease_at_once_one_gets_it() -> None:
    tokens: list[int | None] = []
    start = threading.Barrier(6)

    def ask(name: str) -> None:
        start.wait()
        tokens.append(leases.acquire("engine", name, 30))
        connection.close()

    threads = [threading.Thread(target=ask, args=(str(n),)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(tokens, key=str) == [1, None, None, None, None, None]
