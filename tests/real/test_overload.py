"""A real Triton behind a real Envoy is asked for three times what it can, and afterwards for what it always did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from serving.traffic.core.request_limits import Limits
from serving.traffic.core.routes import Arm
from tests.support.rigs.gateway_rig import Rig, rig
from tests.support.rigs.overload_rig import METASTABLE, Call, closed_loop, open_loop, triton

pytestmark = [pytest.mark.real("envoy", "triton"), pytest.mark.timeout(150)]
#: Generous: an answer takes 17 ms, and a queue that never empties makes everybody wait until they give up.
GOOD_S = 1.0
BURST_S = BACK_WITHIN_S = 10.0


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Rig]:
    """A stable release on a server that gets slower the more it batches: once it has a queue, it keeps it under the same load."""
    with triton(tmp_path / "triton", METASTABLE) as at, rig(tmp_path) as built:
        built.apply(None, stable=Arm("r1", Rig.STABLE, (at,)), limits=Limits(10.0, 10.0))
        yield built


def good(calls: Sequence[Call]) -> list[Call]:
    return [one for one in calls if one.status == 200 and one.took_s <= GOOD_S]


def test_a_server_pushed_over_its_capacity_sheds_and_serves_its_normal_load_within_ten_seconds(parts: Rig) -> None:
    closed_loop(parts.envoy.port, 1, 0.5)
    capacity = len(good(closed_loop(parts.envoy.port, 2, 2.0))) / 2.0
    burst, after = open_loop(parts.envoy.port, [(3 * capacity, BURST_S), (capacity / 3, BACK_WITHIN_S)])

    assert len(good(burst)) >= 0.5 * capacity * BURST_S  # more load is not less work done
    refused = [one.took_s for one in burst if one.status == 429]
    assert len(refused) >= 0.3 * len(burst)  # two thirds are too many
    assert sorted(refused)[len(refused) // 2] < GOOD_S
    assert set(Counter(one.status for one in burst)) == {200, 429}  # nobody waits in vain

    late = [one for one in after if one.at_s >= BURST_S + BACK_WITHIN_S - 3.0]
    assert len(good(late)) >= 0.9 * len(late) > 0
    seconds = [[one for one in after if int(one.at_s) == second] for second in range(int(BURST_S), int(2 * BURST_S))]
    assert any(calls and len(good(calls)) == len(calls) for calls in seconds)
