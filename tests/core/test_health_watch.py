"""An agent's looks at a server, second by second by a simulated clock: frozen servers are found, busy ones stay."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from serving.ports import Inference, InferenceError
from serving.targets.agent import health_check
from serving.targets.core.health import (
    HUNG_AFTER_LAST_STABLE_S,
    HUNG_AFTER_S,
    Health,
    HealthTracker,
    Probe,
    Timeouts,
    verdict,
)

MANIFEST = {
    "envelope": {},
    "serving": {
        "max_batch_size": 1,
        "inputs": [{"name": "x", "data_type": "FP32", "dims": [1]}],
        "outputs": [{"name": "y", "data_type": "FP32", "dims": [1]}],
    },
}
WITHIN_S, LIVE_WITHIN_S, EVERY_S = (1.5, 4.5), 2.0, 1.0  # as `AgentTimings` has them


@dataclass
class Server:
    """One instance, first come, first served; it runs a request although its caller left. By the clock of the test.

    `requests`: (comes at, takes), in seconds. Nothing is answered from `frozen_at` on, and no request from `stuck_at` on.
    """

    requests: list[tuple[float, float]] = field(default_factory=list)
    frozen_at: float = float("inf")
    stuck_at: float = float("inf")
    probe_s: float = 0.01
    counts: bool = True
    now: float = 0.0
    probes: int = 0

    def monotonic(self) -> float:
        return self.now

    def infer(self, model: str, inputs: Any, *, timeout_s: float, outputs: Any = ()) -> Inference:
        self.probes += 1
        asked_at = self.now
        self.requests.append((asked_at, self.probe_s))
        end = self._ends()[sum(came <= asked_at for came, _ in self.requests) - 1]
        if end > asked_at + timeout_s:
            self.now = asked_at + timeout_s
            raise InferenceError("timeout", "Deadline Exceeded")
        self.now = end
        return Inference({"y": np.zeros((1, 1), np.float32)}, end - asked_at)

    def is_live(self, *, timeout_s: float = 1.0) -> bool:
        if self.now < self.frozen_at:
            return True
        self.now += timeout_s
        return False

    def statistics(self, model: str) -> dict[str, Any]:
        if not self.counts:
            raise InferenceError("not_offered", "none")
        times = [takes for _, takes in sorted(self.requests)]
        done = [took for took, end in zip(times, self._ends(), strict=True) if end <= self.now]
        took = {"count": str(len(done)), "ns": str(int(sum(done) * 1e9))}
        return {"model_stats": [{"inference_stats": {"success": took, "compute_infer": took}}]}

    def _ends(self) -> list[float]:
        """When each request ends, in the order in which they came."""
        free, ends, stops = 0.0, [], min(self.frozen_at, self.stuck_at)
        for came, takes in sorted(self.requests):
            free = max(free, came) + takes
            ends.append(free if free < stops else float("inf"))
        return ends


def watched(
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    *,
    timeout_s: float,
    until_s: float,
    is_last: bool = False,
    tells_live: bool = True,
) -> float | None:
    """When the agent takes the server away; None if it does not before `until_s`."""
    monkeypatch.setattr(health_check, "time", server)
    silent_s = HUNG_AFTER_LAST_STABLE_S if is_last else HUNG_AFTER_S
    timeouts, seen = Timeouts.of(silent_s=silent_s, request_s=timeout_s, tells_live=tells_live), HealthTracker()
    while server.now < until_s:
        began = server.now
        look, _ = health_check.look_at(
            server,  # type: ignore[arg-type]
            "m",
            MANIFEST,
            seen=seen,
            timeouts=timeouts,
            within_s=WITHIN_S,
            live_within_s=LIVE_WITHIN_S,
            tells_live=tells_live,
        )
        seen = seen.after(look)
        if verdict(seen, look, timeouts) is Health.HUNG:
            return server.now
        server.now = max(began + EVERY_S, server.now + 0.05)
    return None


@pytest.mark.parametrize("is_last", [False, True], ids=["one of several", "the last of stable"])
@pytest.mark.parametrize("timeout_s", [1, 10, 120, 600])
@pytest.mark.parametrize("is_busy", [False, True])
def test_a_frozen_process_is_found_within_30_s(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float, is_last: bool, is_busy: bool
) -> None:
    for frozen_at in (100.0, 100.3, 100.99):
        server = Server([(90.0, 590.0)] if is_busy else [], frozen_at=frozen_at)
        found = watched(server, monkeypatch, timeout_s=timeout_s, until_s=2000, is_last=is_last)
        assert found is not None and found - frozen_at <= (31 if is_last else 12)
        assert is_busy or found - frozen_at <= (30.1 if is_last else 10.1)


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("timeout_s", [12, 60, 120, 600])
@pytest.mark.parametrize("has_counts", [True, False])
def test_a_request_that_takes_nearly_its_whole_time_survives(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float, is_last: bool, has_counts: bool
) -> None:
    """Also when two follow each other, and without the server's own counts."""
    long_s = timeout_s - min(10, timeout_s / 5)
    one_after_the_other = [(50.0, long_s), (50.0 + timeout_s + 30, long_s)]
    server = Server(one_after_the_other, counts=has_counts)
    assert watched(server, monkeypatch, timeout_s=timeout_s, until_s=4 * timeout_s + 200, is_last=is_last) is None


def test_long_requests_in_a_queue_survive_as_long_as_each_keeps_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server([(50.0 + n, 590.0) for n in range(4)])
    assert watched(server, monkeypatch, timeout_s=600, until_s=3000) is None


@pytest.mark.parametrize(
    ("timeout_s", "is_last", "at_most_s"), [(5, False, 17), (5, True, 37), (120, False, 127), (600, True, 607)]
)
def test_a_server_that_is_live_and_finishes_nothing_is_found_when_every_deadline_has_passed(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float, is_last: bool, at_most_s: float
) -> None:
    server = Server(stuck_at=100.0)
    found = watched(server, monkeypatch, timeout_s=timeout_s, until_s=2000, is_last=is_last)
    assert found is not None and timeout_s <= found - 100 <= at_most_s


def test_a_busy_server_is_asked_few_inferences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would wait behind the long request, and is run after it although the agent left."""
    server = Server([(50.0, 590.0)])
    watched(server, monkeypatch, timeout_s=600, until_s=55)
    before = server.probes
    watched(server, monkeypatch, timeout_s=600, until_s=630)
    assert server.probes - before <= 14


def test_probes_of_a_slow_model_leave_nine_tenths_of_it_to_users(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(probe_s=1.2)
    watched(server, monkeypatch, timeout_s=600, until_s=1000)
    assert 0.05 < server.probes * server.probe_s / 1000 <= 0.11


@pytest.mark.parametrize("probe_s", [5.0, 6.0, 10.0, 25.0])
@pytest.mark.parametrize("timeout_s", [30, 120])
def test_so_do_probes_of_a_model_that_is_slower_than_each_probe_may_take(
    monkeypatch: pytest.MonkeyPatch, probe_s: float, timeout_s: float
) -> None:
    """Each probe is late, and no other request finishes. The first one is the warm-up, from which the cost is known."""
    server = Server([(0.0, probe_s)], probe_s=probe_s, now=probe_s)
    assert watched(server, monkeypatch, timeout_s=timeout_s, until_s=2000) is None
    assert 2 <= server.probes <= 1 + 0.11 * 2000 / probe_s


def test_users_who_finish_between_the_probes_of_a_slow_model_bring_no_more_probes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server([(0.0, 6.0), *((at, 6.0) for at in range(10, 2000, 9))], probe_s=6.0, now=6.0)
    assert watched(server, monkeypatch, timeout_s=30, until_s=2000) is None
    assert 1 < server.probes <= 0.11 * 2000 / 6


def test_a_slow_model_that_hangs_is_found_by_its_next_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    for stuck_at in (100.0, 130.0, 160.0):
        server = Server([(0.0, 6.0)], probe_s=6.0, now=6.0, stuck_at=stuck_at)
        found = watched(server, monkeypatch, timeout_s=30, until_s=2000)
        assert found is not None and 0 < found - stuck_at <= 9 * 6 + 30 + 10


def test_a_busy_event_loop_is_kept_and_a_frozen_one_found_when_every_deadline_has_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its liveness call waits behind the model: before the deadline the two look alike."""
    busy = Server([(50.0, 110.0), (155.0, 110.0)], counts=False)  # the second comes before the first has ended
    assert watched(busy, monkeypatch, timeout_s=120, until_s=400, tells_live=False) is None
    frozen = Server(frozen_at=50.0, counts=False)
    found = watched(frozen, monkeypatch, timeout_s=120, until_s=400, tells_live=False)
    assert found is not None and 240 <= found - 50 <= 250


def test_a_look_at_a_process_that_ended_asks_nothing() -> None:
    assert health_check.gone().probe is Probe.GONE
