"""Jobs on real Celery workers over a real broker: they run, and they outlive a worker that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from ledger import actions
from ledger.core.lifecycle import JobState
from ledger.models import Job

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.real("valkey", "postgres")]
ROOT = Path(__file__).resolve().parents[2]
LEASE_S = 2.0


@pytest.fixture
def queue() -> str:
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
def start_worker(queue: str, tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts one more worker for the queue; all are ended with the test."""
    found = connection.settings_dict
    url = f"postgresql://{found['USER']}:{found['PASSWORD']}@{found['HOST']}:{found['PORT']}/{found['NAME']}"
    env = {**os.environ, "DATABASE_URL": url, "SLUICEGATE_JOB_LEASE_S": str(LEASE_S), "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", "celery", "-A", "sluicegate", "worker", "-Q", queue, "-P", "threads", "-c", "2", "-l", "INFO",
            "-I", "tests.contracts.worker_jobs", "--without-gossip", "--without-mingle"]  # fmt: skip
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        log = tmp_path / f"worker-{len(started)}.log"
        with log.open("wb") as out:
            name = f"{uuid.uuid4().hex}@test"
            started.append(subprocess.Popen([*argv, "-n", name], cwd=ROOT, env=env, stderr=out, stdout=out))
        wait_for(lambda: b"ready." in log.read_bytes(), lambda: log.read_text())
        return started[-1]

    yield start
    for worker in started:
        worker.kill()
        worker.wait()


def wait_for(what: Callable[[], Any], otherwise: Callable[[], str], most_s: float = 60) -> None:
    deadline = time.monotonic() + most_s
    while not what():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.05)


def test_a_job_runs_and_a_killed_worker_costs_a_lease_not_the_job(
    queue: str, start_worker: Callable[[], subprocess.Popen[bytes]]
) -> None:
    start_worker()
    quick = actions.enqueue(kind="test.sleep", key="quick", args={"seconds": 0}, queue=queue)
    wait_for(
        lambda: Job.objects.get(pk=quick.pk).state == JobState.DONE, lambda: str(vars(Job.objects.get(pk=quick.pk)))
    )

    start_worker()
    slow = actions.enqueue(kind="test.sleep", key="slow", args={"seconds": 60}, queue=queue)
    wait_for(lambda: Job.objects.get(pk=slow.pk).progress_note, lambda: str(vars(Job.objects.get(pk=slow.pk))))
    holder = int(Job.objects.get(pk=slow.pk).progress_note.split()[-1])
    ends = Job.objects.get(pk=slow.pk).lease_until
    beyond = ends + timedelta(seconds=LEASE_S)  # the heartbeat holds it beyond one lease
    wait_for(lambda: Job.objects.get(pk=slow.pk).lease_until > beyond, lambda: str(vars(Job.objects.get(pk=slow.pk))))
    assert actions.dispatch_due() == 0
    os.kill(holder, signal.SIGKILL)
    killed_at = time.monotonic()

    def is_done() -> bool:
        actions.dispatch_due()  # what the scheduler does every few seconds
        return Job.objects.get(pk=slow.pk).state == JobState.DONE

    wait_for(is_done, lambda: str(vars(Job.objects.get(pk=slow.pk))))
    job = Job.objects.get(pk=slow.pk)
    assert (job.attempts, int(job.progress_note.split()[-1]) != holder) == (2, True)
    assert time.monotonic() - killed_at < 30  # its first worker would have slept for a minute
