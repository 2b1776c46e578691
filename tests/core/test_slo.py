"""The objective's test: published sample sizes, its own vectors, and that looking at every request does not fool it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from validators.core import beta
from validators.core.slo import dispersion, judge_slo, least_requests, log_evidence
from validators.core.verdict import Verdict


def run_length(over: int, *, quantile: float, confidence: float) -> int:
    """The run length at which `over` slow queries still pass a single look, fixed in advance. Not valid when looked at twice.

    Source: early stopping of the MLPerf inference rules: the smallest h with I_q(h, over + 1) < 1 - confidence, plus `over`.
    """
    low, high = 1, 2
    while beta.incomplete(quantile, high, over + 1) >= 1 - confidence:
        low, high = high, high * 2
    while low < high:
        middle = (low + high) // 2
        if beta.incomplete(quantile, middle, over + 1) < 1 - confidence:
            high = middle
        else:
            low = middle + 1
    return low + over


@pytest.mark.parametrize(
    ("quantile", "confidence", "over", "queries"),
    [
        *[
            (0.99, 0.99, t, n)
            for t, n in [(0, 459), (1, 662), (2, 838), (5, 1307), (10, 2010), (20, 3304), (50, 6898), (100, 12571)]
        ],
        (0.9, 0.99, 0, 44),
        (0.9, 0.99, 1, 64),
        (0.95, 0.99, 0, 90),
        (0.999, 0.99, 0, 4603),
        (0.99, 0.95, 0, 299),
    ],
)
def test_early_stopping_has_the_published_run_lengths(
    quantile: float, confidence: float, over: int, queries: int
) -> None:
    assert run_length(over, quantile=quantile, confidence=confidence) == queries


@given(a=st.floats(0.1, 500), b=st.floats(0.1, 500), x=st.floats(0.001, 0.999))
def test_the_incomplete_beta_function_is_a_distribution(a: float, b: float, x: float) -> None:
    value = beta.incomplete(x, a, b)
    assert 0 <= value <= 1
    assert value == pytest.approx(1 - beta.incomplete(1 - x, b, a), abs=1e-9)
    assert beta.incomplete(min(0.999, x * 1.1), a, b) >= value - 1e-12


def test_the_incomplete_beta_function_has_known_values() -> None:
    assert beta.incomplete(0.3, 1, 1) == pytest.approx(0.3)
    assert beta.incomplete(0.5, 7, 7) == pytest.approx(0.5)
    assert beta.incomplete(0.2, 2, 3) == pytest.approx(6 * 0.2**2 - 8 * 0.2**3 + 3 * 0.2**4)
    assert beta.log_incomplete(1e-4, 200, 2) == pytest.approx(200 * math.log(1e-4) + math.log(201 - 200e-4))
    assert beta.quantile(0.95, 1, 59) == pytest.approx(1 - 0.05 ** (1 / 59))


@given(n=st.integers(1, 400), share=st.sampled_from([0.001, 0.01, 0.05, 0.1]), passing=st.booleans())
def test_at_the_boundary_the_evidence_is_one_on_average(n: int, share: float, passing: bool) -> None:
    total = sum(
        math.exp(
            math.lgamma(n + 1)
            - math.lgamma(x + 1)
            - math.lgamma(n - x + 1)
            + x * math.log(share)
            + (n - x) * math.log1p(-share)
            + log_evidence(x, n, share, passing=passing)
        )
        for x in range(n + 1)
    )
    assert total == pytest.approx(1.0, abs=1e-6)


def _first_verdict(
    share: float, rng: np.random.Generator, most: int, every: int, confidence: float
) -> tuple[Verdict, int]:
    over = (rng.random(most) < share).cumsum()
    for n in range(every, most + 1, every):
        verdict = judge_slo(int(over[n - 1]), n, quantile=0.99, confidence=confidence).verdict
        if verdict is not Verdict.UNDECIDED:
            return verdict, n
    return Verdict.UNDECIDED, most


@pytest.mark.parametrize(
    ("share", "verdict", "low", "high"),
    [
        (0.001, Verdict.PASSED, 500, 650),
        (0.0025, Verdict.PASSED, 850, 1400),
        (0.03, Verdict.FAILED, 200, 600),
        (0.05, Verdict.FAILED, 70, 180),
        (0.2, Verdict.FAILED, 10, 40),
    ],
)
def test_the_run_length_to_a_verdict_is_the_measured_one(share: float, verdict: Verdict, low: int, high: int) -> None:
    rng = np.random.default_rng(7)
    runs = [_first_verdict(share, rng, 6000, 10, 0.99) for _ in range(40)]
    assert sum(found is verdict for found, _ in runs) >= 38
    assert low <= float(np.median([n for _, n in runs])) <= high


@pytest.mark.slow
def test_looking_at_every_request_stays_within_the_stated_error() -> None:
    rng = np.random.default_rng(11)
    runs = [_first_verdict(0.01, rng, 3000, 20, 0.95)[0] for _ in range(200)]
    assert sum(verdict is Verdict.PASSED for verdict in runs) <= 0.05 * 200 + 6
    assert sum(verdict is Verdict.FAILED for verdict in runs) <= 0.05 * 200 + 6


def test_too_few_requests_are_undecided_and_the_needed_number_is_told() -> None:
    needed = least_requests(quantile=0.99, confidence=0.95)
    assert judge_slo(0, 160, quantile=0.99, confidence=0.95).verdict is Verdict.UNDECIDED
    assert judge_slo(0, needed, quantile=0.99, confidence=0.95).verdict is Verdict.PASSED
    assert judge_slo(0, needed - 1, quantile=0.99, confidence=0.95).verdict is Verdict.UNDECIDED
    assert least_requests(quantile=0.99, confidence=0.95, phi=1.5) == pytest.approx(1.5 * needed, abs=2)


def test_clustered_slow_requests_weigh_less() -> None:
    steady, clustered = [2] * 10, [20] + [0] * 9
    assert dispersion(steady) == 1.5
    assert dispersion(clustered) > 20
    assert dispersion([]) == 1.5
    plain = judge_slo(20, 400, quantile=0.99, confidence=0.95)
    tempered = judge_slo(20, 400, quantile=0.99, confidence=0.95, phi=dispersion(clustered))
    assert plain.verdict is Verdict.FAILED
    assert tempered.verdict is Verdict.UNDECIDED
    assert tempered.log_e_fail < plain.log_e_fail


def test_everything_slow_fails_at_once_even_tempered() -> None:
    assert judge_slo(160, 160, quantile=0.99, confidence=0.95, phi=10).verdict is Verdict.FAILED


def _integral(low: float, high: float, first: float, second: float) -> float:
    """Of p^(first - 1) (1 - p)^(second - 1) over [low, high], by midpoints of sqrt(p), where nothing is infinite."""
    edges = np.linspace(math.sqrt(low), math.sqrt(high), 200_001)
    u = (edges[1:] + edges[:-1]) / 2
    return float(np.sum(2 * u ** (2 * first - 1) * (1 - u * u) ** (second - 1)) * (edges[1] - edges[0]))


@pytest.mark.parametrize(("x", "n"), [(0, 300), (1, 300), (6, 200), (12, 200)])
def test_the_evidence_is_the_mixture_over_the_alternative_against_the_boundary(x: int, n: int) -> None:
    """At p0 = .01 the mixtures are Beta(.5, 60) below it for a pass and Beta(.5, 10) above it for a failure."""
    share = 0.01
    boundary = x * math.log(share) + (n - x) * math.log1p(-share)
    for passing, b, low, high in ((True, 60, 0.0, share), (False, 10, share, 1.0)):
        mixed = _integral(low, high, 0.5 + x, b + n - x) / _integral(low, high, 0.5, b)
        assert log_evidence(x, n, share, passing=passing) == pytest.approx(math.log(mixed) - boundary, abs=1e-4)


def test_two_windows_tell_of_clusters_and_one_does_not() -> None:
    assert dispersion([4, 0]) == pytest.approx(1.5 * 8 / 2)
    assert dispersion([3, 1, 2]) == 1.5  # variance 1 of mean 2
    assert dispersion([9, 1, 2]) == pytest.approx(1.5 * 19 / 4)
    assert dispersion([400]) == dispersion([0, 0, 0]) == 1.5


def test_one_request_is_enough_where_nearly_all_may_be_slow() -> None:
    assert least_requests(quantile=0.0001, confidence=0.5) == 1
    assert least_requests(quantile=0.99, confidence=0.95, phi=1.5) == 547  # as docs/gates.md tells


def test_no_run_is_long_enough_for_a_quantile_that_nothing_can_show() -> None:
    with pytest.raises(ValueError, match="No run is long enough"):
        least_requests(quantile=1 - 1e-15, confidence=0.99)


def test_a_judgement_keeps_what_it_was_asked() -> None:
    found = judge_slo(3, 200, quantile=0.95, confidence=0.9, phi=2.0)
    assert (found.over, found.n, found.confidence, found.phi) == (3, 200, 0.9, 2.0)
    assert found.allowed_share == pytest.approx(0.05)
    assert found.log_e_pass == log_evidence(1.5, 100, found.allowed_share, passing=True)


def test_the_ends_of_a_distribution_are_nothing_and_all() -> None:
    assert (beta.incomplete(0, 2, 3), beta.incomplete(-1, 2, 3)) == (0, 0)
    assert (beta.incomplete(1, 2, 3), beta.incomplete(2, 2, 3)) == (1, 1)
    assert beta.quantile(0.5, 4, 4) == pytest.approx(0.5, abs=1e-12)
