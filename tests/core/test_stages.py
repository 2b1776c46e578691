"""Where the time went: differences of a server's counters, as Triton writes them."""

from __future__ import annotations

from typing import Any

import pytest

from validators.core.stages import stages_between


def statistics(requests: int, runs: int, *, queue_ms: float, infer_ms: float, size: int) -> dict[str, Any]:
    """Of `requests` single items in `runs` batches of `size`, each of which took `infer_ms`; 64 bits as text, no zero."""

    def stage(count: int, ms: float) -> dict[str, str]:
        return {"count": str(count), "ns": str(int(count * ms * 1e6))} if count and ms else {}

    return {
        "model_stats": [
            {
                "name": "m",
                **({"inference_count": str(requests), "execution_count": str(runs)} if requests else {}),
                "inference_stats": {
                    "success": stage(requests, queue_ms + infer_ms + 0.5),
                    "queue": stage(requests, queue_ms),
                    "compute_infer": stage(requests, infer_ms),
                },
                "batch_stats": [{"batch_size": str(size), "compute_infer": stage(runs, infer_ms)}] if runs else [],
            }
        ]
    }


NOTHING: dict[str, Any] = {"model_stats": [{"name": "m", "inference_stats": {}}]}


def test_the_means_are_of_the_time_between() -> None:
    before = statistics(100, 100, queue_ms=50, infer_ms=10, size=4)
    after = statistics(300, 150, queue_ms=30, infer_ms=10, size=4)
    found = stages_between(before, after, wall_s=2.0, instances=1)
    assert found == {
        "total_ms": 30.5,  # (300 × 40.5 − 100 × 60.5) / 200
        "queue_ms": 20.0,
        "input_ms": 0.0,
        "infer_ms": 10.0,
        "output_ms": 0.0,
        "overhead_ms": 0.5,
        "mean_batch": 4.0,
        "busy_frac": 0.25,  # 50 batches of 10 ms in 2 s, each counted once
    }


def test_instances_share_the_time() -> None:
    after = statistics(100, 100, queue_ms=0, infer_ms=10, size=1)
    found = stages_between(NOTHING, after, wall_s=1.0, instances=2)
    assert found is not None and found["busy_frac"] == 0.5


@pytest.mark.parametrize("before", [{}, NOTHING, statistics(5, 5, queue_ms=1, infer_ms=1, size=1)])
def test_a_server_that_did_nothing_has_no_stages(before: dict[str, Any]) -> None:
    assert stages_between(before, before, wall_s=1.0, instances=1) is None
