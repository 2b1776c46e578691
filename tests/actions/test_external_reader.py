"""The background reader of external counters: what it hands on, what it leaves out, and that nobody ever waits for it."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from registry.models import Release, ServedModel
from rollouts.core.counter_deltas import Reading
from rollouts.core.policy_schema import parse_policy
from rollouts.engine import prometheus_reader
from rollouts.engine.prometheus_reader import PrometheusReader
from rollouts.models import Rollout
from rollouts.queries.prometheus_guards import query_problems
from serving.models import Environment
from serving.ports import CounterQuery, CounterSample, MetricsError
from tests.support.fakes.ports import FakeMetrics

BAD, TOTAL = "orders_failed_total", "orders_total"
GUARD: dict[str, Any] = {
    "indicator": "external",
    "label": "checkout",
    "bad_query": f'sum({BAD}{{release="$release"}}) or vector(0)',
    "total_query": f'sum({TOTAL}{{release="$release"}})',
}
NAME = "external_checkout"
ARMS = [("candidate", "bad"), ("candidate", "total"), ("stable", "bad"), ("stable", "total")]


def rollout(pk: int = 7, *, with_stable: bool = True, guards: Sequence[dict[str, Any]] = (GUARD,)) -> Rollout:
    """Not in any database."""
    model = ServedModel(slug="sentiment")
    stable, candidate = (
        Release(id=uuid.uuid4(), model=model, number=number, digest=f"sha256:{number:064x}") for number in (1, 2)
    )
    policy = parse_policy({"preset": "demo", "guards": list(guards)}, {}).document
    return Rollout(
        id=pk,
        model=model,
        environment=Environment(slug="production"),
        candidate=candidate,
        stable=stable if with_stable else None,
        policy=policy,
    )


class Counting:
    """FakeMetrics with two pods of each release, and a reader that reads when it is told."""

    def __init__(self) -> None:
        self.metrics = FakeMetrics()
        self.reader = PrometheusReader(self.metrics, every_s=3600)
        for release in ("r1", "r2"):
            for pod in ("a", "b"):
                self.metrics.set(TOTAL, 1000, release=release, pod=pod)
                self.metrics.set(BAD, 100, release=release, pod=pod)
        self.rollout = rollout()
        self.follow()

    def follow(self, fence: int = 1) -> None:
        self.reader.follow([self.rollout], fence=fence)

    def count(self, release: str = "r2", *, total: int = 10, bad: int = 0, pod: str = "a") -> None:
        self.metrics.add(TOTAL, total, release=release, pod=pod)
        self.metrics.add(BAD, bad, release=release, pod=pod)

    def read(self) -> Reading | str:
        self.reader.read_now()
        return self.reader.latest(self.rollout.pk)[NAME]

    def counts(self) -> tuple[int, int, int, int]:
        """(bad, all) of the candidate, then of stable, since the reader began."""
        found = self.read()
        assert isinstance(found, Reading), found
        arms = (found.candidate, found.stable)
        bad, total, stable_bad, stable_total = (n for arm in arms for n in (arm.bad[NAME], arm.attempts))
        return bad, total, stable_bad, stable_total


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    monkeypatch.setattr(PrometheusReader, "_run", lambda self: None)  # reads when it is told
    made = Counting()
    yield made
    made.reader.stop()


def test_the_past_is_not_counted_and_what_follows_is_counted_once(here: Counting) -> None:
    assert here.counts() == (0, 0, 0, 0)
    here.count("r2", total=10, bad=2)
    here.count("r1", total=100, bad=1)
    assert here.counts() == (2, 10, 1, 100)
    assert here.counts() == (2, 10, 1, 100)
    here.count("r2", total=5, bad=5, pod="b")
    assert here.counts() == (7, 15, 1, 100)


def test_a_reading_is_as_old_as_its_sample(here: Counting) -> None:
    here.metrics.freeze(40.0)
    before, found, after = time.time(), here.read(), time.time()
    assert isinstance(found, Reading) and before - 40.1 < found.at < after - 39.9


@pytest.mark.parametrize("why", sorted(MetricsError.REASONS))
def test_a_source_that_is_away_is_named_and_its_gap_is_counted_once(here: Counting, why: str) -> None:
    here.counts()
    here.metrics.fail(why)
    here.count(total=10, bad=2)
    found = here.read()
    assert isinstance(found, str) and why in found and "checkout" in found and not found.endswith(".")
    here.count(total=10, bad=2)
    here.metrics.fail(None)
    assert here.counts() == (4, 20, 0, 0)
    assert here.counts() == (4, 20, 0, 0)


def test_a_fall_counts_nothing_and_counting_goes_on_from_there(here: Counting) -> None:
    here.counts()
    for pod in ("a", "b"):
        here.metrics.set(TOTAL, 3, release="r2", pod=pod)
        here.metrics.set(BAD, 0, release="r2", pod=pod)
    here.count("r1", total=50)
    assert here.counts() == (0, 0, 0, 0)  # stable's share of the interval is left out too: arms stay comparable
    here.count("r2", total=4, bad=1)
    here.count("r1", total=5)
    assert here.counts() == (1, 4, 0, 5)


def test_a_reset_that_another_counter_hides_counts_nothing(here: Counting) -> None:
    here.counts()
    here.metrics.set(TOTAL, 0, release="r2", pod="a")
    here.metrics.set(BAD, 100, release="r2", pod="a")
    here.count(total=2000, bad=100, pod="b")  # the sums grew by 1000 and 100: ten per cent where five were
    assert here.counts() == (0, 0, 0, 0)
    here.count(total=20, bad=1, pod="b")
    assert here.counts() == (1, 20, 0, 0)


def test_a_counter_whose_end_another_hides_counts_nothing(here: Counting) -> None:
    here.counts()
    for metric in (TOTAL, BAD):
        here.metrics.drop(metric, release="r2", pod="a")
    here.count(total=2000, bad=300, pod="b")
    assert here.counts() == (0, 0, 0, 0)
    here.count(total=20, bad=1, pod="b")
    assert here.counts() == (1, 20, 0, 0)


def test_a_fall_that_no_counter_explains_counts_nothing() -> None:
    """As where a query subtracts, or a recording rule hides what it adds up."""

    class Falling(FakeMetrics):
        value = 100.0

        def read(self, queries: Sequence[CounterQuery], *, timeout_s: float) -> dict[str, Any]:
            return {one.name: CounterSample(self.value * (1 + ("total" in one.name)), 0.0) for one in queries}

    metrics, reader = Falling(), PrometheusReader(None)
    reader.follow([rollout()], fence=1)
    reader.metrics = metrics
    seen = []
    for value in (100, 60, 65):
        metrics.value = value
        reader.read_now()
        found = reader.latest(7)[NAME]
        assert isinstance(found, Reading)
        seen.append((found.candidate.bad[NAME], found.candidate.attempts))
    assert seen == [(0, 0), (0, 0), (5, 10)]


def test_a_counter_that_vanishes_and_comes_back_brings_its_past_to_nobody(here: Counting) -> None:
    here.counts()
    for metric in (TOTAL, BAD):
        here.metrics.drop(metric, release="r2", pod="a")
    assert here.counts() == (0, 0, 0, 0)
    here.count(total=10, bad=1, pod="b")
    assert here.counts() == (1, 10, 0, 0)
    here.metrics.set(TOTAL, 1010, release="r2", pod="a")
    here.metrics.set(BAD, 101, release="r2", pod="a")
    assert here.counts() == (1, 10, 0, 0)
    here.count(total=10, bad=1, pod="a")
    assert here.counts() == (2, 20, 0, 0)


def test_a_counter_that_is_born_counts_from_its_birth(here: Counting) -> None:
    """A new pod, or a label's value that came with its first event: nothing of it happened before."""
    here.counts()
    here.metrics.set(TOTAL, 8, release="r2", pod="c")
    here.metrics.set(BAD, 3, release="r2", pod="c")
    assert here.counts() == (3, 8, 0, 0)


def test_a_bad_counter_that_is_not_there_is_zero_only_where_the_query_says_so(here: Counting) -> None:
    for pod in ("a", "b"):
        here.metrics.drop(BAD, release="r2", pod=pod)
    here.counts()
    here.count(total=10)
    for pod in ("a", "b"):
        here.metrics.drop(BAD, release="r2", pod=pod)
    assert here.counts()[:2] == (0, 10)
    for pod in ("a", "b"):
        here.metrics.drop(TOTAL, release="r2", pod=pod)
    found = here.read()
    assert isinstance(found, str) and "no_data" in found and "of the candidate" in found


def test_more_bad_ones_than_all_is_no_reading_and_is_made_good_when_the_rest_arrives(here: Counting) -> None:
    here.counts()
    here.metrics.add(BAD, 4, release="r2", pod="a")
    found = here.read()
    assert isinstance(found, str) and "more bad ones than all: 4 of 0" in found
    here.metrics.add(TOTAL, 10, release="r2", pod="a")
    assert here.counts() == (4, 10, 0, 0)
    here.metrics.set(BAD, 5000, release="r2", pod="a")
    found = here.read()
    assert isinstance(found, str) and "do not count the same thing" in found


def test_after_a_long_silence_nothing_is_known_to_be_comparable(
    here: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.counts()
    here.count(total=10)
    monkeypatch.setattr(prometheus_reader, "COMPARABLE_OVER_S", -1.0)
    assert here.counts() == (0, 0, 0, 0)
    monkeypatch.undo()
    here.count(total=7)
    assert here.counts() == (0, 7, 0, 0)


def test_another_leader_is_another_epoch_that_begins_with_nothing(here: Counting) -> None:
    here.counts()
    here.count(total=10, bad=1)
    first = here.read()
    here.follow(fence=2)
    assert here.reader.latest(7)[NAME] == "its counters have not been read yet"
    second = here.read()
    assert isinstance(first, Reading) and isinstance(second, Reading)
    assert first.epoch != second.epoch and second.candidate.attempts == 0
    here.follow(fence=2)
    here.count(total=3)
    third = here.read()
    assert isinstance(third, Reading) and (third.epoch, third.candidate.attempts) == (second.epoch, 3)


def test_what_is_no_longer_followed_is_forgotten(here: Counting) -> None:
    here.counts()
    here.reader.follow([], fence=1)
    assert here.reader.latest(7) == {}


def test_a_rollout_without_stable_asks_for_the_candidate_alone(here: Counting) -> None:
    here.reader.follow([rollout(8, with_stable=False)], fence=1)
    here.reader.read_now()
    here.metrics.add(TOTAL, 5, release="r2", pod="a")
    here.reader.read_now()
    found = here.reader.latest(8)[NAME]
    assert isinstance(found, Reading) and (found.candidate.attempts, found.stable.attempts) == (5, 0)


def test_a_rollout_without_external_guards_costs_nothing() -> None:
    reader = PrometheusReader(FakeMetrics())
    reader.follow([rollout(9, guards=[{"indicator": "errors"}])], fence=1)
    assert reader.latest(9) == {} and reader._thread is None


def test_one_policy_that_cannot_be_read_keeps_no_other_from_being_read() -> None:
    odd = rollout(8)
    odd.policy = {"guards": [{"indicator": "external"}]}
    reader = PrometheusReader(None)
    reader.follow([odd, rollout(9)], fence=1)
    assert reader.latest(8) == {} and list(reader.latest(9)) == [NAME]


def test_without_a_metrics_server_every_external_guard_says_so() -> None:
    reader = PrometheusReader(None)
    reader.follow([rollout()], fence=1)
    assert "PROMETHEUS_URL" in str(reader.latest(7)[NAME])
    assert ["PROMETHEUS_URL" in one for one in query_problems(rollout(), None, timeout_s=5)] == [True]


class Hanging:
    """A metrics server that answers nobody until it is let go, however long it is asked to take."""

    def __init__(self) -> None:
        self.go, self.asked = threading.Event(), threading.Event()

    def read(self, queries: Sequence[CounterQuery], *, timeout_s: float) -> Mapping[str, CounterSample | MetricsError]:
        self.asked.set()
        self.go.wait(120)
        return {one.name: CounterSample(100.0, 0.0) for one in queries}


def test_nobody_waits_for_a_metrics_server_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus_reader, "OLD_AFTER_S", 0.2)
    metrics = Hanging()
    reader = PrometheusReader(metrics, every_s=0.05)
    mine = rollout()
    reader.follow([mine], fence=1)
    assert metrics.asked.wait(60)
    began = time.monotonic()
    for _ in range(100):
        reader.follow([mine], fence=1)
        assert isinstance(reader.latest(7)[NAME], str)
    assert time.monotonic() - began < 60  # a single wait would be 120 s
    metrics.go.set()
    until(lambda: isinstance(reader.latest(7)[NAME], Reading))
    metrics.go.clear()
    until(lambda: isinstance(said := reader.latest(7)[NAME], str) and "last read" in said)
    metrics.go.set()
    until(lambda: isinstance(reader.latest(7)[NAME], Reading))
    reader.stop()


def test_an_adapter_that_breaks_does_not_end_the_reader() -> None:
    class Broken(FakeMetrics):
        is_broken = True

        def read(self, queries: Sequence[CounterQuery], *, timeout_s: float) -> dict[str, Any]:
            if self.is_broken:
                raise RuntimeError("a bug")
            return {one.name: CounterSample(100.0, 0.0) for one in queries}

    metrics = Broken()
    reader = PrometheusReader(metrics, every_s=0.02)
    reader.follow([rollout()], fence=1)
    until(lambda: "a bug" in str(reader.latest(7)[NAME]))
    metrics.is_broken = False
    until(lambda: isinstance(reader.latest(7)[NAME], Reading))
    reader.stop()


def test_check_warns_of_queries_that_give_nothing() -> None:
    metrics = FakeMetrics()
    said = query_problems(rollout(), metrics, timeout_s=5)
    assert len(said) == 1 and "guard on checkout" in said[0] and "the stable total (no_data" in said[0]
    assert 'release="r1"' in said[0]
    metrics.set(TOTAL, 10, release="r1")
    assert query_problems(rollout(), metrics, timeout_s=5) == []  # a candidate without users has no counters yet
    assert "the candidate total (no_data" in query_problems(rollout(with_stable=False), metrics, timeout_s=5)[0]
    metrics.fail("refused")
    assert [
        f"the {arm} {which} (refused" in one
        for one, (arm, which) in zip(query_problems(rollout(), metrics, timeout_s=5), ARMS, strict=True)
    ]


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)
