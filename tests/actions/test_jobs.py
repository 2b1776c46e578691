"""Jobs: queued, leased, sent again, run under a heartbeat."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import current_app
from django.conf import settings as django_settings
from django.db.models.functions import Now
from django.utils import timezone

import notifications.tasks  # noqa: F401 - registers the handler, as Celery does
from ledger import actions
from ledger.actions.job_dispatch import RESEND_AFTER_S
from ledger.actions.jobs import _move as move_job
from ledger.core.errors import Invalid, StateChanged
from ledger.core.lifecycle import MOVES, JobState
from ledger.hooks import job_handlers as jobs
from ledger.models import Event, Job
from ledger.tasks import run_job
from notifications.actions.deliveries import JOB as NOTIFY

pytestmark = pytest.mark.django_db


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

    @pytest.mark.slow  # hundreds of attempts, so that a wait would show
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
        before = timezone.now()
        waiting = run(job)
        assert (waiting.state, waiting.due_at > before, told) == (JobState.QUEUED, True, [])
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

    @pytest.mark.slow  # a lease's time
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
