"""What the benchmark of overload takes for held and for missed."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.overload import Row, misses
from serving.ports import ArmCounters
from tests.support.rigs.overload_rig import Call

#: Ten seconds at twice a capacity of ten a second: half is answered, half is shed; then seven a second, all answered.
BURST = [Call(at / 20, 0.1, 200) if at % 2 else Call(at / 20, 0.002, 429, True) for at in range(200)]
AFTER = [Call(10 + at / 7, 0.1, 200) for at in range(70)]
HELD = Row("bound", 10.0, 10.0, BURST, AFTER, ArmCounters(shed=100), {1.0: 99, 2.0: 1})


def test_a_bound_that_holds_misses_nothing() -> None:
    assert misses(HELD) == []
    assert (HELD.goodput, HELD.gateway_p99_s, HELD.normal_after_s) == (1.0, 0.001, 0.0)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"capacity": 12.6}, "goodput 79 %"),
        ({"burst": [*BURST, Call(9.9, 3.0, 0)]}, "1 requests were neither answered nor shed"),
        ({"burst": [*BURST[1:], Call(9.9, 0.0, 429)]}, "99 were told when to come again"),
        ({"burst": [dataclasses.replace(one, took_s=0.06) for one in BURST]}, "shedding took too long"),
        ({"shed_at_gateway": {1.0: 50, 60.0: 50}}, "shedding took too long"),
        ({"after": [dataclasses.replace(one, took_s=0.3) for one in AFTER]}, "not back to normal"),
        ({"counted": ArmCounters(shed=100, failed=1)}, "charged with 1 failures"),
        ({"counted": ArmCounters(shed=99)}, "99 are counted as shed, 100 were"),
    ],
)
def test_whatever_it_does_not_hold_is_told(changes: dict[str, object], told: str) -> None:
    (said,) = misses(dataclasses.replace(HELD, **changes))
    assert told in said


def test_normal_is_from_when_on_nine_in_ten_are_good() -> None:
    late = [dataclasses.replace(one, took_s=0.3) if one.at_s < 12.2 else one for one in AFTER]
    assert dataclasses.replace(HELD, after=late).normal_after_s == 1.5
