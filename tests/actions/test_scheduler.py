"""The scheduler: one of several looks, whatever fails is tried again, and leadership is handed over."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import OperationalError
from django.utils import timezone

from ledger.models import Job, Lease
from sluicegate import scheduler
from sluicegate.scheduler import LEASE, Scheduler, look

pytestmark = pytest.mark.django_db


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done, in its order."""
    done: list[str] = []

    def wake() -> None:
        done.append("wake")

    def dispatch() -> None:
        done.append("dispatch")

    monkeypatch.setattr(scheduler, "DUTIES", (wake, dispatch))
    monkeypatch.setattr(scheduler, "close_old_connections", lambda: None)  # the test's transaction is on it
    return done


def test_one_of_two_looks_until_its_lease_ends_and_then_the_other(looks: list[str]) -> None:
    first, second = Scheduler(owner="first"), Scheduler(owner="second")
    assert first.turn() and not second.turn()
    assert looks == ["wake", "dispatch"]
    Lease.objects.filter(name=LEASE).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert second.turn() and not first.turn()
    assert looks == ["wake", "dispatch"] * 2
    assert Lease.objects.get(name=LEASE).owner == "second"


def test_it_looks_until_it_is_stopped_and_hands_leadership_over(
    looks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Scheduler(owner="first", every_s=0.0)

    def stop() -> None:
        looks.append("stop")
        first.stop()

    monkeypatch.setattr(scheduler, "DUTIES", (*scheduler.DUTIES, stop))
    first.run()
    assert looks == ["wake", "dispatch", "stop"]
    assert Lease.objects.get(name=LEASE).owner == ""
    assert Scheduler(owner="second").turn()


def test_a_duty_that_fails_keeps_no_other_from_its_turn(looks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        looks.append("broken")
        raise OperationalError("the database is away")

    monkeypatch.setattr(scheduler, "DUTIES", (broken, *scheduler.DUTIES))
    here = Scheduler(owner="first")
    assert here.turn() and here.turn()
    assert looks == ["broken", "wake", "dispatch"] * 2


def test_one_that_cannot_tell_whether_it_leads_does_nothing(looks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    here = Scheduler(owner="first")

    def away() -> bool:
        raise OperationalError("the database is away")

    monkeypatch.setattr(here.lead, "take", away)
    assert not here.turn() and looks == []


def test_a_look_sends_what_is_due_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    monkeypatch.setattr("ledger.actions.job_dispatch.send", lambda job: sent.append(job.key))
    now = timezone.now()
    for key, due_at in {"due": now, "later": now + timedelta(hours=1)}.items():
        Job.objects.create(kind="test", key=key, due_at=due_at)
    look()
    assert sent == ["due"]
