"""The engine as a process: one leads, a killed leader is replaced once its lease is over, SIGTERM hands over at once."""

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
from serving.targets.actions import notify_routes
from sluicegate.settings import BASE_DIR
from tests.support.rigs.gateway_rig import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]  # engines start while others do
#: No machine is so slow that a lease runs out, or a tick is due, within the time that something is waited for.
TICK_S, LONG_TICK_S, LEASE_S, SOON_S = 0.2, 60.0, 60.0, 45.0
START_S = 170.0


@pytest.fixture
def engines() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(timeout=60)


def start(engines: list[subprocess.Popen[bytes]], *, tick_s: float = TICK_S) -> subprocess.Popen[bytes]:
    database = connection.settings_dict
    url = f"postgresql://{database['USER']}:{database['PASSWORD']}@{database['HOST']}:{database['PORT']}/{database['NAME']}"
    environment = {
        **os.environ, "DATABASE_URL": url, "REDIS_URL": settings.REDIS_URL, "SLUICEGATE_ENGINE_TICK_S": str(tick_s),
        "SLUICEGATE_ENGINE_LEASE_S": str(LEASE_S),
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "manage.py", "engine"], cwd=BASE_DIR, env=environment, stdout=subprocess.DEVNULL
    )
    engines.append(process)
    return process


def leader() -> int:
    """The pid of the engine that leads, or led last; 0 if there is none."""
    lease = Lease.objects.filter(name="engine", owner__gt="").first()
    return 0 if lease is None else int(lease.owner.split(":")[1])


def listeners() -> set[int]:
    """Database sessions that wait for notices: each engine has one, which it opens just before its first turn."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
            " AND (query LIKE 'LISTEN %%' OR (query = 'SELECT 1' AND state = 'idle'))"
        )
        return {pid for (pid,) in cursor.fetchall()}


def test_a_killed_leader_is_replaced_and_a_stopped_one_hands_over(engines: list[subprocess.Popen[bytes]]) -> None:
    one, two = start(engines), start(engines)
    first = wait_until(leader, "a leader", START_S)
    wait_until(lambda: len(listeners()) >= 2, "both run", START_S)
    time.sleep(5 * TICK_S)  # the other has asked by now, and leads not
    assert leader() == first
    leading, other = (one, two) if first == one.pid else (two, one)
    lease = Lease.objects.get(name="engine")
    leading.kill()
    leading.wait()
    wait_until(lambda: leader() == other.pid, "the other leads: it sees that the holder's process has ended", SOON_S)
    assert Lease.objects.get(name="engine").token == lease.token + 1
    third = start(engines)
    wait_until(lambda: len(listeners()) >= 2, "the third runs", START_S)
    other.send_signal(signal.SIGTERM)
    assert other.wait(timeout=SOON_S) == 0
    wait_until(lambda: leader() == third.pid, "the third leads", SOON_S)


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
        for pid in listeners():
            cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


def test_a_change_of_servers_wakes_the_engine_also_after_its_listener_was_cut(
    engines: list[subprocess.Popen[bytes]],
) -> None:
    start(engines, tick_s=LONG_TICK_S)

    def rests() -> bool:
        return not looked_after(lambda: None, within_s=0.7)

    wait_until(leader, "a leader", START_S)
    first = wait_until(listeners, "it listens", START_S)
    wait_until(rests, "it rests", SOON_S)
    assert looked_after(notify_routes, SOON_S)
    cut_listeners()
    wait_until(lambda: listeners() - first, "it listens again", SOON_S)
    wait_until(rests, "it rests again", SOON_S)
    assert looked_after(notify_routes, SOON_S)
