"""The engine as a process: one leads, a killed leader is replaced within its lease, SIGTERM hands over at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from django.conf import settings
from django.db import connection

from ledger.models import Lease
from serving.actions import notify_routes
from sluicegate.settings import BASE_DIR

pytestmark = pytest.mark.django_db(transaction=True)
LEASE_S = 1.0


@pytest.fixture
def engines() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(timeout=10)


def start(
    engines: list[subprocess.Popen[bytes]], *, tick_s: float = 0.2, lease_s: float = LEASE_S
) -> subprocess.Popen[bytes]:
    database = connection.settings_dict
    url = f"postgresql://{database['USER']}:{database['PASSWORD']}@{database['HOST']}:{database['PORT']}/{database['NAME']}"
    environment = {
        **os.environ, "DATABASE_URL": url, "REDIS_URL": settings.REDIS_URL, "SLUICEGATE_ENGINE_TICK_S": str(tick_s),
        "SLUICEGATE_ENGINE_LEASE_S": str(lease_s),
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "manage.py", "engine"], cwd=BASE_DIR, env=environment, stdout=subprocess.DEVNULL
    )
    engines.append(process)
    return process


def holder(within_s: float, *, not_pid: int = 0) -> int:
    """The pid of the engine that leads, once it is another than `not_pid`."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        lease = Lease.objects.filter(name="engine", owner__gt="").first()
        if lease is not None:
            pid = int(lease.owner.split(":")[1])
            if pid != not_pid:
                return pid
        time.sleep(0.05)
    raise AssertionError("no engine leads")


def test_a_killed_leader_is_replaced_and_a_stopped_one_hands_over(engines: list[subprocess.Popen[bytes]]) -> None:
    one, two = start(engines), start(engines)
    first = holder(30)
    time.sleep(2 * LEASE_S)  # the other has asked by now, and leads not
    assert holder(1) == first
    leader, other = (one, two) if first == one.pid else (two, one)
    token = Lease.objects.get(name="engine").token
    leader.kill()
    assert holder(LEASE_S + 3, not_pid=first) == other.pid
    assert Lease.objects.get(name="engine").token == token + 1
    third = start(engines)
    time.sleep(0.5)
    other.send_signal(signal.SIGTERM)
    assert other.wait(timeout=10) == 0
    assert holder(30, not_pid=other.pid) == third.pid


def looked_after(change: Callable[[], None], within_s: float) -> bool:
    """Whether the leader ticks soon after the change: each tick extends its lease."""
    before = Lease.objects.get(name="engine").expires_at
    change()
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if Lease.objects.get(name="engine").expires_at > before:
            return True
        time.sleep(0.02)
    return False


def cut_listeners() -> None:
    """Ends the database sessions that wait for notices, as a restart of the database would."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query LIKE 'LISTEN %%'"
        )
        assert cursor.fetchall()


def test_a_change_of_servers_wakes_the_engine_also_after_its_listener_was_cut(
    engines: list[subprocess.Popen[bytes]],
) -> None:
    start(engines, tick_s=20, lease_s=60)
    holder(30)
    time.sleep(1.5)  # it listens by now, and rests
    assert not looked_after(lambda: None, within_s=0.7)
    assert looked_after(notify_routes, within_s=0.7)
    cut_listeners()
    time.sleep(1.5)
    assert looked_after(notify_routes, within_s=0.7)
