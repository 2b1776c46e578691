"""How many requests had been answered at an instant."""

from __future__ import annotations

import pytest

from validators.core.answered import Answered, answered_at, answered_of, joined


def test_instants_are_counted_by_second_and_read_between() -> None:
    found = answered_at([100.5, 101.2, 101.4, 103.9])
    assert found is not None and (found.began_s, found.per_s) == (100.5, (3, 0, 0, 1))
    assert (found.requests, found.ended_s) == (4, 104.5)
    assert found.until([99.0, 100.5, 101.0, 101.5, 103.5, 104.0, 104.5, 999.0]) == [0, 0, 1.5, 3, 3, 3.5, 4, 4]


def test_it_is_read_again_as_it_was_told() -> None:
    found = answered_at([5.0, 7.0])
    assert found is not None
    assert answered_of({"answered": found.as_evidence()}) == found
    assert answered_of({}) is None and answered_at([]) is None


def test_a_second_run_goes_on_where_the_first_ended() -> None:
    first, second = Answered(10.0, (2, 3)), Answered(15.2, (4,))
    both = joined(first, second)
    assert both == Answered(10.0, (2, 3, 0, 0, 0, 4))
    assert joined(first, None) == first and joined(None, second) == second and joined(None, None) is None
    assert both.until([12.0, 14.9, 16.0]) == pytest.approx([5, 5, 9])
