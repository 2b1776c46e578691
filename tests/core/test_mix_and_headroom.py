"""Two small judgements by hand: whether both arms get the same kind of requests, and whether a node has room."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest

from rollouts.core import request_mix
from rollouts.core.capacity import shortage
from rollouts.core.freeze import FreezeWindow, frozen
from rollouts.core.request_mix import CHI2_99, LEAST_MIXED, SIZES, Mix, mix_of
from rollouts.core.shadow import CLOSENESS, Allowance, Closeness

# --- mix --------------------------------------------------------------------------------------------------------------


def test_the_index_of_two_classes_by_hand() -> None:
    """Half a request more in each class: 100.5 of 201 beside 60.5 of 201."""
    p, q = 100.5 / 201, 60.5 / 201
    expected = (p - q) * math.log(p / q) + (q - p) * math.log((1 - p) / (1 - q))
    assert Mix((100, 100), (60, 140)).psi == pytest.approx(expected)
    assert Mix((1, 0), ()).psi == Mix((), (1, 0)).psi == 0.0


def test_two_hundred_requests_of_each_arm_in_two_classes_tell() -> None:
    assert LEAST_MIXED == 200
    assert Mix((100, 100), (20, 180)).differs and Mix((20, 180), (100, 100)).differs
    assert not Mix((100, 99), (20, 180)).differs and not Mix((100, 100), (20, 179)).differs
    assert not Mix((100, 100), (75, 125)).differs  # an index of 0.06
    assert not Mix((200, 0, 0), (900, 0, 0)).differs


@pytest.mark.parametrize(("moved", "differs"), [(162, False), (165, True)])
def test_a_difference_of_a_tenth_matters_however_many_requests(moved: int, differs: bool) -> None:
    one, other = (10_000 - 10 * 100, 10 * 100), (10_000 - 10 * moved - 500, 10 * moved + 500)
    found = Mix(one, other)
    assert (found.psi > 0.1) is differs is found.differs


def test_chance_explains_more_where_requests_are_few_and_classes_many() -> None:
    """The quantile of chi-square for one class fewer than are used, times 1/n + 1/m."""
    few = (40,) * 5, (64, 46, 38, 30, 22)  # five classes, 13.28 * (1/200 + 1/200)
    assert 0.1 < Mix(*few).psi < 0.1328 and not Mix(*few).differs
    many = [tuple(10 * one for one in arm) for arm in few]
    assert Mix(*many).differs
    for degrees, quantile in enumerate(CHI2_99[1:], start=1):
        # Wilson and Hilferty's approximation, which is within a hundredth of the table
        exact = degrees * (1 - 2 / (9 * degrees) + 2.3263 * math.sqrt(2 / (9 * degrees))) ** 3
        assert quantile == pytest.approx(exact, rel=0.02)


def test_classes_between_edges_are_never_negative_and_need_a_counter() -> None:
    torn = mix_of({"over_1k": 30, "over_8k": 40}, 20, {"over_8k": 5}, 50, ("over_1k", "over_8k"))
    assert torn == Mix((0, 0, 40), (50, 0, 5))


def test_more_classes_than_the_table_has_are_taken_as_its_last() -> None:
    """Thirteen classes: twelve degrees of freedom, judged by the quantile of ten, 23.21 * (1/260 + 1/260) = 0.1785."""
    few = Mix((20,) * 13, (20, *(28, 12) * 3, *(29, 11) * 3))
    assert 0.167 < few.psi < 0.1785 and not few.differs
    assert Mix((20,) * 13, (20, *(29, 11) * 6)).differs


@pytest.mark.parametrize(("moved", "differs"), [(19, False), (20, True)])
def test_chance_is_that_of_both_arms_and_a_class_of_one_arm_alone_counts(moved: int, differs: bool) -> None:
    """Five classes, 13.28 * (1/200 + 1/300) = 0.11067."""
    more, less = 75 + moved, 75 - moved
    one, other = (46, 50, 50, 52, 2), (more, less, more, less, 0)
    for mix in (Mix(one, other), Mix(other, one)):
        assert mix.psi > 0.1 and (mix.psi > 0.11067) is differs is mix.differs


def test_exactly_what_matters_is_not_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    mix = Mix((10_000, 10_000), (6_000, 14_000))
    assert mix.differs
    monkeypatch.setattr(request_mix, "PSI_MATTERS", mix.psi)
    assert not mix.differs


def test_one_size_for_every_edge_that_gateways_count() -> None:
    assert SIZES == ("bytes_512", "bytes_4096", "bytes_32768", "bytes_262144", "bytes_2000000")
    over = dict.fromkeys(SIZES, 1)
    assert mix_of(over, 1, {}, 1, SIZES) == Mix((0, 0, 0, 0, 0, 1), (1, 0, 0, 0, 0, 0))
    assert mix_of({"bytes_512": 1}, 3, {}, 1, SIZES) == Mix((2, 1, 0, 0, 0, 0), (1, 0, 0, 0, 0, 0))


# --- room on a node ---------------------------------------------------------------------------------------------------

GIB = 2**30


def needs(memory_mib: int = 0, **accelerator: object) -> dict[str, object]:
    return {"host": {"memory_mib_min": memory_mib}, "accelerator": accelerator}


def test_memory_is_short_when_the_sum_is_over_what_the_node_has() -> None:
    both = {"r1": needs(1024), "r2": needs(1024)}
    assert shortage({"memory_bytes": 2 * GIB}, both) == ""
    short = shortage({"memory_bytes": 2 * GIB - 1}, both)
    assert short == "r1, r2 declare 2048 MiB of memory together, and it has 2047 MiB"
    assert shortage({}, both) == "" and shortage({"memory_bytes": 0}, {"r1": {}}) == ""


def test_gpus_are_short_when_more_are_wanted_alone_than_there_are() -> None:
    alone, shared = needs(exclusive=True), needs(count=8)
    assert shortage({"gpus": ["a"]}, {"r1": alone}) == ""  # one, unless it says more
    assert shortage({"gpus": ["a"]}, {"r1": alone, "r2": shared}) == ""
    short = shortage({"gpus": ["a"]}, {"r1": alone, "r2": needs(count=2, exclusive=True)})
    assert short == "r1, r2 want 3 GPUs of their own, and it has 1"
    assert shortage({"gpus": None}, {"r1": alone}) == "" and shortage({"gpus": []}, {"r1": alone}) != ""


# --- freezes ----------------------------------------------------------------------------------------------------------


def test_a_day_is_frozen_from_its_first_to_its_last_minute() -> None:
    monday = FreezeWindow(days=frozenset({0}))
    first = datetime(2026, 11, 23, tzinfo=UTC)
    assert frozen([monday], first) == (monday, first + timedelta(days=1))
    assert frozen([monday], first - timedelta(microseconds=1)) is None
    assert frozen([monday], first + timedelta(days=1)) is None


def test_a_window_whose_end_is_its_start_lasts_a_whole_day() -> None:
    window = FreezeWindow(days=frozenset({0}), from_min=90, to_min=90)
    start = datetime(2026, 11, 23, 1, 30, tzinfo=UTC)
    assert frozen([window], start) == (window, start + timedelta(days=1))
    assert frozen([window], start - timedelta(minutes=1)) is None


def test_of_two_windows_the_one_that_ends_last_holds_and_a_freeze_for_ever_is_cut_off() -> None:
    at = datetime(2026, 11, 23, 12, tzinfo=UTC)
    short, long = FreezeWindow(to_min=13 * 60, days=frozenset({0})), FreezeWindow(to_min=18 * 60, days=frozenset({0}))
    assert frozen([short, long], at) == (long, at.replace(hour=18))
    always = frozen([FreezeWindow()], at)
    assert always is not None and always[1] == at.replace(hour=0) + timedelta(days=400)


# --- comparing ----------------------------------------------------------------------------------------------------------


def test_what_is_alike_is_wider_the_fewer_digits_a_type_has() -> None:
    order = [CLOSENESS[name] for name in ("FP64", "FP32", "FP16", "BF16")]
    assert [one.relative for one in order] == [1e-6, 1e-3, 1e-2, 3e-2]
    assert order == sorted(order, key=lambda one: one.absolute)
    assert order[0] == Closeness(1e-6, 1e-8) and order[-1].absolute == 1e-2


def test_a_quarter_of_a_seconds_worth_may_come_at_once() -> None:
    allowance = Allowance(8.0)
    assert [allowance.take(10.0) for _ in range(3)] == [True, True, False]
    assert not allowance.take(10.12) and allowance.take(10.125)
    assert [allowance.take(99.0) for _ in range(3)] == [True, True, False]
    slow = Allowance(0.5)
    assert [slow.take(at) for at in (0.0, 1.9, 2.0, 1.0)] == [True, False, True, False]
