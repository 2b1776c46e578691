"""Kept series: recorded by minute, packed by hour, read back; with restarts, other leaders and late writes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from accounts.core.access import Actor
from ledger.actions.leadership import Leadership, LeadershipLost
from ledger.models import Job, Lease
from rollouts.engine.loop import LEASE
from rollouts.watch.stable_watch import StableWatch
from serving.models import Gateway, SeriesBlock, SeriesHour, SeriesMinute
from serving.traffic.actions import keeping
from serving.traffic.actions.keeping import PartitionMissing, keep_series, pack_hour
from serving.traffic.actions.partitions import MINUTES, drop_partitions, make_partitions, partitions
from serving.traffic.actions.recorder import Key, Recorder, _Sum
from serving.traffic.actions.routes import set_route
from serving.traffic.queries.series import KeptSeries, Line, series_of
from tests.support.fakes.gateway import FakeGateway
from tests.support.rigs.engine_rig import leading
from tests.support.worlds.factories import make_environment, make_model, make_release

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
BEGIN = datetime(2026, 1, 1, 8, tzinfo=UTC)


class World:
    """One model with one gateway, and an engine that reads it each 10 s of its own clock."""

    def __init__(self) -> None:
        self.at, self.lead = BEGIN, leading()
        self.environment, self.model = make_environment("production"), make_model()
        self.row = Gateway.objects.create(
            environment=self.environment, name="gateway-1", admin_url="http://127.0.0.1:1"
        )
        self.gateway = FakeGateway("gateway-1", seed=3, now=lambda: self.at)
        self.release = make_release(self.model)
        set_route(
            actor=Actor.system("test"), environment=self.environment, model=self.model, stable=self.release,
            reason="It serves.",
        )  # fmt: skip
        self.recorder = Recorder(self.lead)
        self.turn()

    def turn(self) -> None:
        pages = {} if self.gateway.silent else {"gateway-1": self.read()}
        routed = {self.environment.pk: {self.model.slug: self.model.pk}}
        self.recorder.take(routed, {self.environment.pk: [self.row]}, pages, self.at.timestamp())

    def read(self) -> Any:
        return self.gateway.read(gateway="gateway-1", admin_url="", timeout_s=1)

    def turns(self, count: int, requests: int = 20, errors: int = 0) -> None:
        for _ in range(count):
            if requests:
                self.gateway.count(self.model.slug, str(self.release.digest), attempts=requests, errors=errors)
            self.at += timedelta(seconds=10)
            self.turn()

    def view(self, hours: float = 1, step_s: int = 60, by: str = "release") -> KeptSeries:
        return series_of(
            self.model, self.environment, since=BEGIN, until=BEGIN + hours * HOUR, step_s=step_s, by=by, now=self.at
        )

    @property
    def users(self) -> Line:
        return self.view().whole


@pytest.fixture
def world() -> World:
    return World()


def test_minutes_are_written_when_they_have_ended_and_read_back(world: World) -> None:
    world.turns(13, errors=1)
    found = world.view()
    assert [one.name for one in found.lines] == [world.release.name]
    first, second = found.lines[0].points
    assert (first.counts["decided"], first.counts["failed"], first.unknown_s) == (120, 6, 0.0)
    assert (second.counts["decided"], second.rate_per_s, second.error_frac) == (120, 2.0, 0.05)
    assert first.p50_ms is not None and 20.0 <= first.p50_ms.value <= 30.0
    assert (first.p50_ms.low, first.p50_ms.high) == (20.0, 30.0)
    assert found.whole.points[0].counts["requests"] == 120


def test_a_minute_without_requests_is_known_and_one_without_a_reading_is_not(world: World) -> None:
    world.turns(7, requests=0)
    world.at += timedelta(seconds=60)
    first, second = world.users.points
    assert (first.counts["requests"], first.rate_per_s, first.unknown_s) == (0, 0.0, 0.0)
    assert (second.counts, second.rate_per_s, second.unknown_s) == ({}, None, 60.0)


def test_a_gateway_that_began_anew_makes_seconds_unknown_and_never_a_negative_count(world: World) -> None:
    world.turns(3)
    world.gateway.restart()
    world.turns(10, requests=5)
    first = world.users.points[0]
    assert (first.counts["requests"], first.unknown_s) == (20 * 3 + 5 * 2, 10.0)
    assert first.rate_per_s == pytest.approx(70 / 50)


def test_counts_that_fall_without_a_restart_are_unknown_too(world: World) -> None:
    world.turns(3)
    world.gateway._counts.clear()
    world.gateway._users.clear()
    world.turns(4, requests=5)
    assert (world.users.points[0].counts["requests"], world.users.points[0].unknown_s) == (20 * 3 + 5 * 2, 10.0)


def test_what_was_counted_while_a_gateway_could_not_be_read_comes_late_with_its_seconds(world: World) -> None:
    world.turns(6)
    world.gateway.silent = {"gateway-1"}
    world.turns(6)
    world.gateway.silent = set()
    world.turns(7)
    first, second, third = world.users.points[:3]
    assert (second.counts, second.unknown_s) == ({}, 60.0)
    assert (third.counts["requests"], third.rate_per_s, third.unknown_s) == (240, 2.0, 0.0)
    assert sum(one.counts.get("requests", 0) for one in (first, second, third)) == 20 * 18


def test_of_two_gateways_each_makes_its_share_known(world: World) -> None:
    other = Gateway.objects.create(environment=world.environment, name="gateway-2", admin_url="http://127.0.0.1:2")
    routed, here = {world.environment.pk: {world.model.slug: world.model.pk}}, [world.row, other]
    for _ in range(8):
        world.gateway.count(world.model.slug, str(world.release.digest), attempts=10)
        world.recorder.take(routed, {world.environment.pk: here}, {"gateway-1": world.read()}, world.at.timestamp())
        world.at += timedelta(seconds=10)
    assert world.users.points[0].unknown_s == 30.0


def test_two_leaders_of_one_minute_add_up_and_a_write_that_is_repeated_does_not(world: World) -> None:
    world.turns(3)
    world.turns(4)  # the first leader writes its minute
    SeriesMinute.objects.update(known_s=30.0)
    world.recorder._waiting = {}
    row = SeriesMinute.objects.filter(series__release="").get()
    SeriesMinute.objects.create(
        series_id=row.series_id, at=row.at, fence=row.fence + 1, known_s=20.0, counts=[7, 1, 0, 0, 0]
    )
    merged = world.users.points[0]
    assert (merged.counts["requests"], merged.counts["errors"], merged.unknown_s) == (127, 1, 10.0)
    names = dict.fromkeys(("errors", "shed", "forced", "asleep"), 0)
    again = {Key(world.environment.pk, world.model.pk): _Sum(30.0, {"requests": 120, **names})}
    world.recorder._write(int(BEGIN.timestamp() // 60), again)
    assert world.users.points[0] == merged
    pack_hour(BEGIN)
    assert world.users.points[0] == merged


def test_a_leader_that_lost_the_lease_writes_nothing(world: World) -> None:
    world.turns(5)
    Lease.objects.filter(name=LEASE).update(owner="another-engine")
    with pytest.raises(LeadershipLost):
        world.turns(2)
    assert not SeriesMinute.objects.exists()
    world.recorder.forget()
    Lease.objects.filter(name=LEASE).update(owner=world.lead.owner)
    world.turns(8)
    assert world.users.points[0].unknown_s == 60.0
    assert world.users.points[1].unknown_s == 20.0, "its first reading, at 80 s, only begins"


def test_a_database_that_refuses_delays_the_minute(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Leadership, "locked", lambda self: (_ for _ in ()).throw(OSError("away")))
        with pytest.raises(OSError, match="away"):
            world.turns(7)
    world.turns(1)
    assert world.users.points[0].counts["requests"] == 120


def test_a_packed_hour_reads_as_its_minutes_did_and_late_minutes_join_it(world: World) -> None:
    world.turns(361, errors=1)
    before = world.view()
    world.at += timedelta(minutes=5)
    assert keep_series(world.at).startswith("1 hours packed")
    assert SeriesBlock.objects.count() == SeriesHour.objects.count() == 2
    SeriesMinute.objects.all().delete()
    assert world.view() == before
    hour = SeriesHour.objects.get(series__release="")
    assert (hour.counts[0], hour.known_s) == (360 * 20, 3600.0)
    series = SeriesHour.objects.get(series__release="").series_id
    SeriesMinute.objects.create(series_id=series, at=BEGIN, fence=9, known_s=60, counts=[5, 0, 0, 0, 0])
    keep_series(world.at)
    assert SeriesHour.objects.get(series__release="").counts[0] == 5


def test_a_long_step_sums_what_its_minutes_have(world: World) -> None:
    world.turns(1100)
    keep_series(world.at)
    fine, coarse = world.view(4), world.view(4, step_s=3600)
    assert len(coarse.whole.points) == 4
    for name in ("requests", "errors"):
        assert sum(one.counts.get(name, 0) for one in fine.whole.points) == sum(
            one.counts.get(name, 0) for one in coarse.whole.points
        )
    assert coarse.whole.points[0].counts["requests"] == 7200
    assert [one.unknown_s for one in coarse.whole.points] == [0.0] * 4


def test_old_partitions_are_dropped_and_new_ones_are_there_three_days_ahead(world: World) -> None:
    make_partitions(BEGIN, BEGIN + timedelta(days=40))
    names = {name for name, _ in partitions(MINUTES)}
    assert f"{MINUTES.name}_20260209" in names
    dropped = drop_partitions(BEGIN + timedelta(days=33))
    assert f"{MINUTES.name}_20260131" in dropped and f"{MINUTES.name}_20260201" not in dropped
    assert [one for one in dropped if "block" in one] == []
    keep_series(world.at)
    assert make_partitions(world.at) == 0


def test_a_missing_partition_of_tomorrow_fails_the_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "make_partitions", lambda now: 0)
    with pytest.raises(PartitionMissing, match="2026-01-02"):
        keep_series(world.at)


def test_the_recorder_asks_for_the_job(world: World) -> None:
    world.turns(7)
    assert Job.objects.filter(kind=keeping.KEEP).count() == 1


def test_the_watch_hands_its_readings_to_the_recorder(world: World) -> None:
    world.gateway.set_route(world.model.slug, stable=str(world.release.digest))
    watch = StableWatch(world.gateway, world.lead, lambda: world.at, Recorder(world.lead))
    for _ in range(8):
        watch.turn()
        world.gateway.traffic(10)
        world.at += timedelta(seconds=10)
    assert world.users.points[0].counts["requests"] == 60
