"""Taking traffic back works with nothing but the database: with the broker, the blobs, Prometheus and the prober away."""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import current_app
from django.conf import settings
from django.db import connection
from django.utils import timezone
from rest_framework.test import APIClient

from accounts.models import User
from ledger.models import Job
from registry.storage import store
from rollouts import actions
from rollouts.core.rules import all_failing, mostly_failing
from rollouts.models import DecisionRecord, Rollout
from serving.models import Replica, Server
from sluicegate.scheduler import Scheduler
from tests.support.worlds.factories import make_user
from tests.support.worlds.telemetry_world import EXTERNAL, GUARDS, World

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    pytest.mark.timeout(400),
]  # who waits is told so

#: What is away may not be waited for: from the call, or from the fault's first tick, to weight 0 in the route is far less than
#: what hangs is waited for by whoever does wait. Seconds.
SOON_S, HANGS_S = 90.0, 240.0
EACH = pytest.mark.parametrize(
    "world", ["broker_refuses", "broker_hangs", "blobs", "prometheus", "prober", "all"], indirect=True
)
ALL = pytest.mark.parametrize("world", ["all"], indirect=True)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    for rule in (all_failing, mostly_failing):
        monkeypatch.setattr(rule, "FAILING_OVER_S", 0.0)


class HangingPort:
    """A port that takes every connection, and then says nothing until it hangs up on all of them."""

    def __init__(self) -> None:
        self._kept: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.number = int(self._listener.getsockname()[1])
        self._taker = threading.Thread(target=self._take, daemon=True)
        self._taker.start()

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._kept.append(self._listener.accept()[0])

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._taker.join(60)
        self._listener.close()
        for one in self._kept:
            one.close()


@contextlib.contextmanager
def broker_at(port: int) -> Iterator[None]:
    """Celery sends there, with the settings that every process has, but waits for an answer for as long as HANGS_S."""
    was = current_app.conf.broker_url
    current_app.conf.broker_url = f"redis://127.0.0.1:{port}/0"
    wait_for_the_broker(HANGS_S)
    try:
        yield
    finally:
        current_app.conf.broker_url = was
        wait_for_the_broker(settings.CELERY_BROKER_TRANSPORT_OPTIONS["socket_timeout"])


def wait_for_the_broker(seconds: float) -> None:
    """For its answers, from now on."""
    options = {**settings.CELERY_BROKER_TRANSPORT_OPTIONS, "socket_timeout": seconds}
    current_app.conf.broker_transport_options = options
    current_app.amqp._producer_pool = current_app._pool = None


@contextlib.contextmanager
def scheduled(hang_up: Callable[[], None]) -> Iterator[None]:
    """A scheduler looks meanwhile, as its process does. At the end whatever holds it up hangs up."""
    scheduler = Scheduler(every_s=0.05)

    def run() -> None:
        scheduler.run()
        connection.close()

    thread = threading.Thread(target=run, name="scheduler", daemon=True)
    thread.start()
    try:
        yield
    finally:
        scheduler.stop()
        hang_up()
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture
def broker() -> Iterator[HangingPort]:
    made = HangingPort()
    yield made
    made.hang_up()


@pytest.fixture
def world(request: pytest.FixtureRequest, settings: Any, broker: HangingPort) -> Iterator[World]:
    """A rollout at 25 % of the traffic; what the parameter names is away from then on."""
    is_all = request.param == "all"
    guards = [*GUARDS, {"indicator": "wrong", "max_frac": 0.01}] if request.param == "prober" or is_all else GUARDS
    guards = [*guards, EXTERNAL] if request.param == "prometheus" or is_all else guards
    made = World(guards=guards)
    made.until("shifting")
    made.turn()
    with contextlib.ExitStack() as stack:
        if request.param == "broker_refuses":
            stack.enter_context(broker_at(1))
        if request.param == "broker_hangs" or is_all:
            stack.enter_context(broker_at(broker.number))
        if request.param == "blobs" or is_all:
            settings.BLOB_STORE = "/proc/nobody/can/write/here"
        if request.param == "prometheus" or is_all:
            made.metrics.fail("unreachable")
        # There is no prober in a world. A job that waits to be handed on makes the broker matter.
        Job.objects.create(kind="tests.waiting", key=request.param, args={}, due_at=timezone.now())
        yield made


def person() -> tuple[User, APIClient]:
    user, client = make_user("mara", is_admin=True), APIClient()
    client.force_authenticate(user)
    return user, client


def assert_shut(world: World, since: float) -> None:
    while world.route().candidate_bp and time.monotonic() - since < SOON_S:
        world.turn()
    assert world.route().candidate_bp == 0 and world.route().stable_id == world.stable.pk
    assert time.monotonic() - since < SOON_S


def assert_ended(world: World) -> Rollout:
    # An engine that runs by itself takes as long as the machine does; one that is turned by hand, ten ticks.
    done = world.until("rolled_back", turns=600 if world.is_running else 10)
    assert world.route().candidate_id is None and done.zero_at is not None and done.confirmed_at is not None
    assert not Replica.objects.get(release=world.candidate).is_wanted
    assert Replica.objects.get(release=world.stable).is_wanted
    return done


@pytest.mark.parametrize("world", ["broker_refuses", "all"], indirect=True)
def test_what_is_away_is_really_away(world: World, request: pytest.FixtureRequest) -> None:
    is_all = request.node.callspec.params["world"] == "all"
    wait_for_the_broker(0.3)
    with pytest.raises(Exception, match=r"Timeout" if is_all else r"refused"):
        current_app.signature("ledger.run_job", args=["x"], retry=False).apply_async()
    if is_all:
        with pytest.raises(OSError, match="/proc/nobody"):
            store().put_stream(io.BytesIO(b"bytes"))
        world.reader.read_now()
        assert "unreachable" in str(world.reader.latest(world.rollout.pk))


@EACH
def test_the_engine_takes_a_broken_release_back(
    world: World, request: pytest.FixtureRequest, broker: HangingPort
) -> None:
    away = request.node.callspec.params["world"]
    with world.running(), scheduled(broker.hang_up):
        while "hangs" in away and not Job.objects.get(kind="tests.waiting").sent_at:
            world.turn()  # until the scheduler is held by the broker
        world.break_candidate()
        began = time.monotonic()
        assert_shut(world, began)
        assert_ended(world)
    assert DecisionRecord.objects.get(rollout=world.rollout, action="roll_back").facts["breach"]


@ALL
def test_the_engine_takes_a_release_back_whose_server_is_gone(world: World) -> None:
    Server.objects.filter(replica__release=world.candidate).update(is_serving=False)
    began = time.monotonic()
    with world.running():
        assert_shut(world, began)
        assert_ended(world)


@EACH
def test_a_person_rolls_the_model_back_by_name(world: World) -> None:
    _, client = person()
    began = time.monotonic()
    body = {"environment": "production", "reason": "Orders fail."}
    answer = client.post(f"/api/v1/models/{world.model.slug}/rollback", body, format="json")
    assert answer.status_code == 200, answer.data
    assert_shut(world, began)
    assert "Orders fail." in assert_ended(world).reason


@ALL
def test_a_person_aborts(world: World) -> None:
    began = time.monotonic()
    version = world.rollout.version
    actions.abort(actor=world.admin, rollout=world.rollout, expected_version=version, reason="Orders fail.")
    assert_shut(world, began)
    assert_ended(world)


@pytest.mark.parametrize("world", ["broker_hangs"], indirect=True)
def test_a_promoted_release_is_rolled_back_in_by_name_while_the_one_before_is_warm(world: World) -> None:
    world.until("promoted")
    assert world.route().stable_id == world.candidate.pk
    _, client = person()
    began = time.monotonic()
    body = {"environment": "production", "reason": "Orders fail."}
    answer = client.post(f"/api/v1/models/{world.model.slug}/rollback", body, format="json")
    assert answer.status_code == 200, answer.data
    assert (world.route().stable_id, world.route().candidate_id) == (world.stable.pk, None)
    assert time.monotonic() - began < SOON_S
