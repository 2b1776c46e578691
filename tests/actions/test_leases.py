"""Named leases: one holder at a time, and tokens that grow."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

import notifications.tasks  # noqa: F401 - registers the handler, as Celery does
from ledger.actions import leases
from ledger.actions.leadership import Leadership, LeadershipLost
from ledger.models import Lease
from tests.support.rigs.gateway_rig import wait_until
from tests.support.worlds.lock_races import waiting

pytestmark = pytest.mark.django_db


class TestLeases:
    def test_one_holds_it_and_the_token_grows_with_every_term(self) -> None:
        first = leases.acquire("engine", "a", 30)
        assert first is not None
        assert leases.acquire("engine", "b", 30) is None
        assert leases.holder("engine") == "a"
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


@pytest.mark.django_db(transaction=True)
def test_a_write_under_a_lease_is_done_before_another_can_lead_however_soon_the_term_ends() -> None:
    lead = Leadership("engine", "a", 60)
    assert lead.take()
    told: list[str] = []

    def take_over() -> None:
        while leases.acquire("engine", "b", 30) is None:
            time.sleep(0.02)
        told.append("b leads")
        connection.close()

    other = threading.Thread(target=take_over)
    with lead.locked():
        other.start()
        wait_until(waiting, "the other, waiting for the lease's row", timeout_s=60)
        Lease.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
        told.append("written")
    other.join()
    assert told == ["written", "b leads"]
    with pytest.raises(LeadershipLost), lead.locked():
        raise AssertionError("another leads")
