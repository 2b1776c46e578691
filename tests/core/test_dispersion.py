"""The measured scatter: 1 for independent errors however their share moves, large for clumps, known in the clump's own tick."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.calibration.vectorised import Dispersions, factor_of
from benchmarks.clumps import Clumps, false_rollbacks
from rollouts.core.dispersion import Dispersion, Series, factor

Pairs = dict[str, tuple[int, int]]


def watched(rows, *, at: float = 1000.0, tick_s: float = 1.0, known: Dispersion | None = None) -> Dispersion:
    """After rows of (bad and all of the candidate, bad and all of stable), one a tick."""
    kept = known or Dispersion()
    for i, (xc, nc, xb, nb) in enumerate(rows):
        kept = kept.after(at + i * tick_s, {"errors": (int(xc), int(xb))}, int(nc), int(nb), window_s=5.0)
    return kept


def phi(rows, **more) -> float:
    return watched(rows, **more).phi("errors")


def quiet(seconds: int, nc: int = 10, nb: int = 190):
    return [(0, nc, 0, nb)] * seconds


def test_nothing_known_is_one() -> None:
    assert Dispersion().phi("errors") == 1.0
    assert phi(quiet(50)) == 1.0


def test_independent_errors_stay_at_one_whatever_their_share_and_load() -> None:
    rng = np.random.default_rng(7)
    ends = []
    for share in (0.001, 0.02, 0.3):
        for _ in range(30):
            nb = rng.poisson(400, 120)
            nc = rng.poisson(20, 120)
            ends.append(phi(zip(rng.binomial(nc, share), nc, rng.binomial(nb, share), nb, strict=True)))
    assert np.mean(np.array(ends) == 1.0) > 0.85 and max(ends) < 2.5


def test_clumps_of_stable_show_their_size() -> None:
    rng = np.random.default_rng(8)
    found = [phi([(0, 10, 5 * x, 400) for x in rng.poisson(1.6, 300)]) for _ in range(20)]
    assert (
        6 < np.mean(found) < 12
    )  # the Fano factor is 5, what exceeds 1 counts one and a half times, of three lengths the most


def test_slowness_of_some_seconds_shows_in_the_longer_blocks() -> None:
    rng = np.random.default_rng(9)
    on = np.repeat(rng.random(200) < 0.1, 4)  # four seconds of 30 % slow at a time
    xb = rng.binomial(100, np.where(on, 0.3, 0.005))
    kept = watched([(0, 0, x, 100) for x in xb])
    assert kept.stable[1].phi(0) > 2 * kept.stable[0].phi(0)
    assert kept.phi("errors") > 20


def test_the_candidates_own_clump_is_known_in_the_tick_that_brings_it() -> None:
    kept = watched(quiet(60))
    at_once = watched([(8, 10, 0, 190)], at=1060.0, known=kept)
    assert at_once.phi("errors") > 4
    afterwards = watched([(8, 10, 0, 190), (0, 10, 0, 190)], at=1060.0, known=kept)
    assert afterwards.phi("errors") > 10
    first = watched([(8, 8, 0, 19)])
    assert first.phi("errors") > 4  # and in the very first tick


def test_a_fault_that_stays_is_no_clump() -> None:
    kept = watched(quiet(60))
    found = watched([(2, 10, 1, 190), (3, 10, 0, 190), (2, 10, 1, 190)], at=1060.0, known=kept)
    assert found.phi("errors") == 1.0
    gross = watched([(20, 100, 0, 1900)] * 6, at=1060.0, known=kept)
    assert gross.phi("errors") < 3.0


def test_an_incident_or_a_gap_is_no_clump() -> None:
    rng = np.random.default_rng(10)
    calm = [(0, 10, x, 1000) for x in rng.binomial(1000, 0.005, 300)]
    incident = [(0, 10, x, 1000) for x in rng.binomial(1000, 0.05, 60)]
    assert phi([*calm, *incident]) < 2
    late = [(0, 100, int(rng.binomial(30_000, 0.005)), 30_000)]  # thirty seconds read at once
    assert phi([*calm, *late, *calm[:20]]) < 1.5


def test_two_ticks_of_one_second_are_one_block() -> None:
    whole = watched([(0, 10, 0, 190)] * 5 + [(8, 10, 0, 190)])
    halves = watched([(0, 5, 0, 95)] * 10 + [(4, 5, 0, 95), (4, 5, 0, 95)], tick_s=0.5)
    assert halves.phi("errors") == pytest.approx(whole.phi("errors"), rel=1e-9)


def test_old_clumps_are_forgotten() -> None:
    rng = np.random.default_rng(12)
    clumped = [(0, 10, 5 * x, 400) for x in rng.poisson(1.6, 300)]
    calm = [(0, 10, x, 400) for x in rng.poisson(8, 5000)]
    assert phi(clumped) > 4
    assert phi([*clumped, *calm]) < 1.5


def test_a_counter_that_is_new_or_unknown_begins_at_one() -> None:
    kept = watched([(8, 10, 0, 190)])
    assert kept.phi("slow_250ms") == 1.0
    other = kept.after(2000.0, {"slow_250ms": (0, 0)}, 10, 190, window_s=5.0)
    assert other.names == ("slow_250ms",) and other.phi("errors") == 1.0


def test_json_keeps_six_digits_and_other_shapes_begin_afresh() -> None:
    rng = np.random.default_rng(13)
    kept = watched([(int(rng.poisson(0.2)), 10, int(5 * rng.poisson(1.0)), 190) for _ in range(500)])
    read = Dispersion.from_json(json.loads(json.dumps(kept.to_json())))
    assert read.phi("errors") == pytest.approx(kept.phi("errors"), rel=1e-4)
    assert Dispersion.from_json([0, 0, 0, 0, 0, 0, 0.0]) == Dispersion() == Dispersion.from_json(())
    assert Series.from_json(json.loads(json.dumps(Series().to_json()))) == Series()


@given(
    st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 40), st.integers(0, 30), st.integers(0, 300)),
        min_size=1,
        max_size=60,
    ),
    st.sampled_from([0.3, 1.0, 7.0]),
)
@settings(max_examples=100)
def test_scalars_and_arrays_agree(rows, tick_s) -> None:
    one, many = Dispersion(), Dispersions(2, 5.0)
    for i, (xc, nc, xb, nb) in enumerate(rows):
        xc, xb = min(xc, nc), min(xb, nb)
        at = 1000.0 + i * tick_s
        one = one.after(at, {"errors": (xc, xb)}, nc, nb, window_s=5.0)
        columns = [np.array([count, 3.0]) for count in (xc, nc, xb, nb)]
        many.absorb(at, bad_candidate=columns[0], candidate=columns[1], bad_stable=columns[2], stable=columns[3])
        assert [float(phi[0]) for phi in many.phis] == pytest.approx(
            [one.phi("errors"), one.phi_stable("errors")], abs=1e-9
        )


@given(st.floats(0, 1e4), st.floats(0, 1e4), st.floats(0, 900), st.sampled_from([1.0, 1e9]))
@settings(max_examples=200)
def test_the_factor_is_at_least_one_and_the_same_for_arrays(squares, bad, blocks, most) -> None:
    found = factor(squares, bad, blocks, most)
    assert found >= 1.0
    assert float(factor_of(np.array([squares]), np.array([bad]), blocks, most)[0]) == pytest.approx(found, rel=1e-9)


def test_clumps_roll_no_healthy_release_back_though_independent_counting_would() -> None:
    """The same traffic by the product and by the same test without tempering: eight failures at a time, in both arms alike."""
    rng, runs = np.random.default_rng(21), 150
    clumped = [Clumps(rng, runs, 8.0, is_fixed=True).second for _ in range(2)]
    found, naively = false_rollbacks(*clumped, 10.0, runs, base=0.005, stages=[(30, 0.0), (300, 0.05)])
    assert found <= 0.01 < 0.05 < naively
