"""What a step's windows leave: nothing of the counts is lost, and the counts that convinced are known."""

from __future__ import annotations

import pytest

from rollouts.core.evidence import Side, Tolerance, Window, increments, mixed
from rollouts.core.step_evidence import Evidence, Part

WORSE, FINE = Tolerance(1.2, 0.001), Tolerance(2.0, 0.005)


def grown(known: Evidence, *parts: Part) -> Evidence:
    return known.after(parts, worse=WORSE, fine=FINE, name="errors")


def part(candidate: int, bad: int, stable: int, bad_stable: int = 0, gateway: str = "one", **more: object) -> Part:
    return Part(candidate, stable, {"errors": (bad, bad_stable)}, gateway=gateway, **more)  # type: ignore[arg-type]


def test_a_tick_without_counts_changes_no_point() -> None:
    """A gateway that restarted, or whose answers are on their way, is left out. The points were emptied by that."""
    known = grown(Evidence(), part(100, 11, 1000, 3))
    assert known.log_e_worse("errors") > 5
    assert grown(known) == known


def test_a_window_stays_open_until_both_arms_have_an_attempt() -> None:
    one, two, three = part(0, 0, 20, 1), part(0, 0, 15), part(2, 1, 5)
    slow = grown(grown(grown(Evidence(), one), two), three)
    at_once = grown(Evidence(), part(2, 1, 40, 1))
    assert slow.waiting == () and slow.ticks == 1
    assert slow.point("errors").fine == pytest.approx(at_once.point("errors").fine)
    assert slow.point("errors").worse == pytest.approx(at_once.point("errors").worse)
    assert (slow.candidate, slow.stable) == (2, 40)


def test_each_gateway_has_a_window_of_its_own() -> None:
    known = grown(Evidence(), part(0, 0, 50, gateway="one"), part(3, 0, 0, gateway="two"))
    assert known.ticks == 0 and {one.gateway for one in known.waiting} == {"one", "two"}
    again = Evidence.from_json(known.to_json())
    assert again == known
    closed = grown(known, part(1, 0, 0, gateway="one"))
    assert closed.ticks == 1 and [one.gateway for one in closed.waiting] == ["two"]


def test_what_is_held_against_an_arm_is_added_up_beside_all_that_was_bad() -> None:
    known = grown(Evidence(), part(100, 7, 1000, 9, own=(2, 4.5)), part(50, 1, 500, 1, gateway="two", own=(1, 1)))
    assert (known.point("errors").bad_candidate, known.own_bad("errors")) == (8, (3, 5.5))
    assert grown(Evidence(), part(100, 7, 1000, 9)).own_bad("errors") == (7, 9)
    assert Evidence.from_json(known.to_json()).to_json() == known.to_json()


def test_the_counts_that_convince_begin_when_the_candidate_was_last_well() -> None:
    known = Evidence()
    for _ in range(300):
        known = grown(known, part(20, 0, 400, 1))
    assert known.point("errors").convincing.counts.candidate == 0
    for _ in range(20):
        known = grown(known, part(20, 2, 400, 1))
    counts = known.point("errors").convincing.counts
    assert counts == Window(40, 400, 20, 8000)
    assert mixed(increments(counts, WORSE, Side.WORSE)) > known.log_e_worse(
        "errors"
    )  # the printed counts alone convince
