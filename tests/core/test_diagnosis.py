"""The explanation of a shift: when, who, which stage, what changed. Simulated series with seeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.diagnosis import PAIRS, TWELVE, UNLISTED, Cause, is_right, is_right_or_unknown, names_both, world
from insights.core.diagnosis.contribution import Without, growth_of, parts_of
from insights.core.diagnosis.report import diagnose
from insights.core.diagnosis.series import Change, Counts, Window
from insights.core.diagnosis.shift import Shape, find_shift
from insights.core.diagnosis.split import near

BEFORE, NOW = np.arange(120) < 60, np.arange(120) >= 60


def counts(before: tuple[float, float], now: tuple[float, float]) -> Counts:
    """(requests, slow ones) of each minute before and after."""
    total, slow = (np.where(NOW, b, a) for a, b in zip(before, now, strict=True))
    return Counts(total.astype(float), {"slow": slow.astype(float)})


@pytest.mark.parametrize("cause", TWELVE, ids=lambda cause: cause.name)
def test_each_cause_is_first(cause: Cause) -> None:
    for minutes in (60, 360):
        window, onset = world(cause, minutes, seed=3)
        found = diagnose(window)
        assert is_right(found, cause), (minutes, found.shift, found.hypotheses)
        assert found.shift.low - 10 <= onset <= found.shift.high + 10


@pytest.mark.parametrize("seed", range(5))
def test_healthy_windows_have_no_shift(seed: int) -> None:
    assert diagnose(world(None, 360, 40 + seed)[0]).shift.shape is Shape.NONE


def test_an_unlisted_cause_names_no_wrong_dimension_and_a_pair_names_both() -> None:
    for cause in UNLISTED[:4]:
        assert is_right_or_unknown(diagnose(world(cause, 360, 5)[0]), cause), cause.name
    for cause in PAIRS[:3]:
        assert names_both(diagnose(world(cause, 360, 5)[0]), cause), cause.name


def test_a_ramp_over_days_under_a_daily_season_is_rising() -> None:
    random, at = np.random.default_rng(2), np.arange(14 * 1440)
    total = random.poisson(600 * (1 + 0.7 * np.sin(2 * np.pi * at / 1440))).astype(float)
    season = 0.01 * np.exp(0.5 * np.sin(2 * np.pi * at / 1440))
    rising = season * np.exp(np.maximum(0, at - 9 * 1440) / (5 * 1440) * np.log(4))
    quiet = find_shift(random.binomial(total.astype(int), season).astype(float), total)
    found = find_shift(random.binomial(total.astype(int), rising).astype(float), total)
    assert quiet.shape is Shape.NONE
    assert found.shape is Shape.RISING and abs(found.at - 9 * 1440) < 600 and found.season_known


@pytest.mark.parametrize(
    ("total", "why"),
    [(np.full(60, np.nan), "no reading"), (np.where(np.arange(60) < 30, np.nan, 50.0), "50%"), (np.ones(60), "fewer than 100")],
)  # fmt: skip
def test_missing_counts_cannot_tell(total: np.ndarray, why: str) -> None:
    found = find_shift(total * 0, total)
    assert found.shape is Shape.UNKNOWN and why in found.why


def test_a_fall_is_no_shift() -> None:
    own = counts((100, 20), (100, 2))
    assert find_shift(own.bad["slow"], own.total).shape is Shape.NONE


def test_parts_add_up_to_the_shift() -> None:
    values = {"n1": counts((100, 1), (100, 1)), "n2": counts((100, 1), (200, 20))}
    found = parts_of("node", values, "slow", BEFORE, NOW)
    assert found is not None
    assert sum(part.mix + part.rate for part in found.parts) == pytest.approx(1)
    assert found.parts[0].value == "n2" and found.parts[0].explains and found.parts[0].without is Without.GONE


def test_an_equal_factor_is_nobodys() -> None:
    """The value that was worse before carries more of the shift; its rate rose as all others did."""
    found = parts_of("size", {"a": counts((800, 4), (800, 16)), "b": counts((200, 6), (200, 24))}, "slow", BEFORE, NOW)
    assert found is not None and not any(part.explains for part in found.parts)


def test_a_change_of_mix_is_no_change_of_rate() -> None:
    values = {"a": counts((900, 9), (500, 5)), "b": counts((100, 20), (500, 100))}
    found = parts_of("size", values, "slow", BEFORE, NOW)
    assert found is not None and found.mix == pytest.approx(1)
    whole = counts((1000, 29), (1000, 105))
    told = diagnose(Window(0, whole, {"size": values}))
    assert (told.hypotheses[0].kind, told.hypotheses[0].subject) == ("mix", "size b")


def test_the_tenant_that_sends_more_is_named() -> None:
    grown = growth_of("tenant", {"a": counts((100, 0), (110, 0)), "b": counts((100, 0), (300, 0))}, BEFORE, NOW)
    assert grown is not None and (grown.value, round(grown.ratio, 1)) == ("b", 3.0)
    alike = growth_of("tenant", {"a": counts((100, 0), (200, 0)), "b": counts((100, 0), (200, 0))}, BEFORE, NOW)
    assert alike is not None and alike.value == ""


def test_one_level_below_shows_what_carries_it_within_a_value() -> None:
    window = replace(
        Window(0, counts((300, 3), (300, 13))),
        by={
            "node": {"n1": counts((200, 2), (200, 2)), "n2": counts((100, 1), (100, 11))},
            "size": {"small": counts((250, 2), (250, 3)), "large": counts((50, 1), (50, 10))},
        },
        crossed={("node", "size"): {("n2", "small"): counts((80, 1), (80, 1)), ("n2", "large"): counts((20, 0), (20, 10))}},
    )  # fmt: skip
    (node,) = (one for one in diagnose(window).hypotheses if one.subject == "node n2")
    assert "within it, size large carries it" in node.evidence_for and node.unknown == ()


def test_changes_rank_by_their_distance_to_the_interval() -> None:
    shift = find_shift(*(lambda own: (own.bad["slow"], own.total))(counts((100, 1), (100, 30))))
    events = [
        Change(60 * at, "deployment.scaled", name) for at, name in ((10, "early"), (59.5, "inside"), (100, "late"))
    ]
    assert [one.change.subject for one in near(events, shift, 0.0)] == ["inside", "early"]
