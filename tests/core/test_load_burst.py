"""What a server does once it is full: how many requests it takes to see that, and which answers are good enough."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from serving.ports import InferenceError, PreparedRequests
from tests.core.test_gate_progress import context
from validators.core.full_server import Burst, burst_of, judge_full
from validators.core.load import Attempt
from validators.core.policy import parse_policy
from validators.core.verdict import Judgement, Verdict
from validators.execution.gates import load
from validators.execution.runners.load import all_at_once

FOUND = Judgement(Verdict.PASSED, "Proven.", {"requests": 5})
FULL = "[request id: <id_unknown>] Exceeds maximum queue size [full]"
TIMED_OUT = "Deadline Exceeded [timeout]"


def judged(attempts: list[Attempt], *, at_once: int = 0, p50_s: float = 0.05, **load: Any) -> Judgement:
    burst = Burst(len(attempts), at_once or len(attempts), 10)
    policy = parse_policy({"load": {"rate_per_s": 22, **load}}).of("load")
    return judge_full(FOUND, attempts, burst, policy, p50_s=p50_s)


def in_turn(count: int, per_s: float) -> list[Attempt]:
    return [Attempt(0, 0, (at + 1) / per_s) for at in range(count)]


def ended(count: int, at_s: float, error: str = "", *, is_refused: bool = False) -> list[Attempt]:
    return [Attempt(0, 0, at_s, error, is_refused)] * count


def test_a_queue_that_never_empties_fails_whatever_was_measured_at_leisure() -> None:
    found = judged(in_turn(32, 20))
    assert found.verdict is Verdict.FAILED
    assert found.reason.startswith("Of 32 requests, 32 at once, it answered 20.0/s, and 22/s is the rate: once a queue")
    assert found.reason.endswith("At leisure: Proven.")
    full = {"full_requests": 32, "full_at_once": 32, "full_refused": 0, "full_errors": 0, "full_per_s": 20}
    assert found.evidence == {"requests": 5, **full}
    enough = judged(in_turn(32, 23))
    assert (enough.verdict, enough.reason) == (Verdict.PASSED, "Proven.")
    assert judged(in_turn(32, 20), at_once=8).reason.startswith("Of 32 requests, 8 at once, it answered 20.0/s")


def test_waiting_at_leisure_excuses_no_slow_burst() -> None:
    """A p50 of seconds is a queue where the first answer of a burst comes at once."""
    assert judged(in_turn(32, 20), p50_s=5).verdict is Verdict.FAILED


def test_what_is_refused_for_being_full_counts_neither_way() -> None:
    sheds = judged(in_turn(12, 23) + ended(20, 0.01, FULL, is_refused=True))
    assert (sheds.verdict, sheds.evidence["full_refused"]) == (Verdict.PASSED, 20)
    assert judged(in_turn(12, 20) + ended(20, 0.01, FULL, is_refused=True)).verdict is Verdict.FAILED
    assert judged(ended(32, 0.01, FULL, is_refused=True)).verdict is Verdict.FAILED  # it answers nobody


@pytest.mark.parametrize(
    ("attempts", "says"),
    [
        (ended(16, 0.5) + ended(48, 10, TIMED_OUT), "48 failed: Deadline Exceeded [timeout]"),
        (ended(1, 0.01) + ended(63, 0.02, "CUDA out of memory [server_error]"), "63 failed: CUDA out of memory"),
        (ended(63, 0.5) + ended(1, 0.6, "failed to connect [unreachable]"), "1 failed: failed to connect"),
        (ended(4, 10, TIMED_OUT) + ended(60, 0.01, FULL, is_refused=True), "4 failed: Deadline Exceeded"),
    ],
)
@pytest.mark.parametrize("rate_per_s", [1, 22])
def test_a_server_that_hangs_or_breaks_once_it_is_full_fails_and_the_reason_says_how(
    attempts: list[Attempt], says: str, rate_per_s: float
) -> None:
    found = judged(attempts, rate_per_s=rate_per_s)
    assert found.verdict is Verdict.FAILED
    assert f"Of 64 requests, 64 at once, {says}" in found.reason


def test_errors_that_the_policy_allows_are_allowed_and_time_outs_last_until_they_end() -> None:
    broken = ended(60, 0.5) + ended(4, 0.5, "bad item [rejected]")
    assert judged(broken, max_error_frac=0.1).verdict is Verdict.PASSED
    assert judged(broken, max_error_frac=0.05).verdict is Verdict.FAILED
    hung = judged(ended(16, 0.5) + ended(48, 10, TIMED_OUT), max_error_frac=1)
    assert (hung.verdict, hung.evidence["full_per_s"]) == (Verdict.FAILED, 6.4)


def test_a_burst_that_the_client_sent_too_late_to_tell_says_nothing() -> None:
    late = [Attempt(0, at * 0.02, at * 0.02 + 0.1) for at in range(32)]  # at 60/s it has half a second
    found = judged(late, rate_per_s=60, p50_s=0.1)
    assert found.verdict is Verdict.ERRORED
    assert found.reason == (
        "generator_limited: Of 32 requests, 32 at once, it sent one 620 ms late, so they say nothing about the server."
    )
    slow = [Attempt(0, at * 0.001, (at + 1) / 20) for at in range(32)]
    assert judged(slow).verdict is Verdict.FAILED
    follows = [
        Attempt(0, (at - at % 8) / 20, (at + 8 - at % 8) / 20) for at in range(32)
    ]  # waiting for a place is not late
    assert judged(follows, at_once=8).verdict is Verdict.FAILED


def burst(rate_per_s: float = 20, p50_s: float = 0.01, batch: int = 1, instances: int = 1, **more: Any) -> Burst:
    policy = parse_policy({"load": {"rate_per_s": rate_per_s, **more.pop("load", {})}}).of("load")
    return burst_of(
        policy, p50_s=p50_s, max_batch_size=batch, instances=instances, max_concurrency=more.get("max_concurrency")
    )


def test_a_burst_fills_every_instance_several_times_and_whatever_is_in_flight_at_the_rate() -> None:
    sizes = [burst(batch=batch, instances=count).requests for batch, count in ((16, 1), (16, 2), (0, 1), (512, 4))]
    assert sizes == [64, 128, 16, 256]
    assert burst(200, 0.1).requests == 80
    assert burst(1000, 1.0).requests == 256
    assert burst(1, batch=64, load={"max_duration_s": 60}).requests == 60  # as many as the rate asks for in that time
    assert burst(1, batch=64, load={"max_duration_s": 5}).requests == 16


def test_a_burst_lets_no_more_in_flight_than_the_envelope_declares_and_gives_time_for_all() -> None:
    assert burst(batch=16) == Burst(64, 64, 10 + 64 / 20)
    assert burst(batch=16, max_concurrency=8) == Burst(64, 8, 10 + 64 / 20)
    assert burst(batch=16, max_concurrency=1000).at_once == 64


class Crowd(PreparedRequests):
    """Answers three at a time, when three are there; refuses, hangs or breaks by the place of the request."""

    def __init__(self) -> None:
        self.lock, self.three = threading.Lock(), threading.Barrier(3)
        self.inside = self.most = 0

    def connect(self) -> None:
        """There is nothing between."""

    def send(self, at: int, *, timeout_s: float) -> None:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.three.wait(30)
        with self.lock:
            self.inside -= 1
        self.three.wait(30)
        if reason := {1: "full", 2: "timeout"}.get(at % 3):
            raise InferenceError(reason, "no")


def test_requests_beyond_the_bound_follow_as_others_are_answered() -> None:
    server = Crowd()
    found = all_at_once(server, Burst(12, 3, 10), beat=lambda: None)
    assert server.most == 3
    assert [(attempt.error, attempt.is_refused) for attempt in found[:3]] == [
        ("", False),
        ("no [full]", True),
        ("no [timeout]", False),
    ]
    assert len(found) == 12
    assert not any("unanswered" in attempt.error for attempt in found)


Server = Callable[[Burst], list[Attempt]]


def many_at_once(latency_s: float) -> Server:
    """However many it is sent, each takes as long; its slowest one in twenty ten times as long."""

    def answers(burst: Burst) -> list[Attempt]:
        waves = [at // burst.at_once for at in range(burst.requests)]
        long = [10 if at % 20 == 19 else 1 for at in range(burst.requests)]
        return [Attempt(0, wave * latency_s, (wave + much) * latency_s) for wave, much in zip(waves, long, strict=True)]

    return answers


def padded(batch_s: float) -> Server:
    """One request first, then full batches of four."""
    return lambda burst: [Attempt(0, 0, 0.02 + (at + 3) // 4 * batch_s) for at in range(burst.requests)]


@pytest.mark.parametrize(
    ("rate_per_s", "latency_s", "server", "limits", "is_good"),
    [
        (200, 0.1, many_at_once(0.1), {}, True),
        (40, 0.5, many_at_once(0.5), {}, True),
        (40, 0.5, many_at_once(0.5), {"max_concurrency": 21}, True),  # 42/s
        (40, 0.5, many_at_once(0.5), {"max_concurrency": 10}, False),  # 20/s is all that a gateway lets through
        (22, 0.02, padded(4 / 23), {}, True),
        (22, 0.02, padded(4 / 20), {}, False),
        (22, 3.0, padded(4 / 20), {}, False),
    ],
)
def test_a_server_is_judged_by_its_work_when_full_and_not_by_how_long_one_request_takes(
    monkeypatch: pytest.MonkeyPatch,
    rate_per_s: float,
    latency_s: float,
    server: Server,
    limits: dict[str, int],
    is_good: bool,
) -> None:
    def drive(*args: Any, **_: Any) -> list[Attempt]:
        return [Attempt(due, due, due + latency_s) for due in args[1].tolist()]

    monkeypatch.setattr(load.load_runner, "drive", drive)
    monkeypatch.setattr(load.load_runner, "all_at_once", lambda _, burst, beat: server(burst))
    policy = parse_policy({"load": {"rate_per_s": rate_per_s, "duration_s": 8}})
    found = load.load_gate(context([], policy=policy, envelope={"limits": limits}))
    assert found.verdict is (Verdict.PASSED if is_good else Verdict.FAILED), found.reason
    assert found.evidence["full_at_once"] <= limits.get("max_concurrency", 256)


def looks(monkeypatch: pytest.MonkeyPatch, *bursts: Callable[[int], list[Attempt]]) -> tuple[Judgement, int]:
    """The gate's judgement of bursts that went so, one after the other, and how many of them it looked at."""
    left = list(bursts)
    monkeypatch.setattr(load.load_runner, "drive", lambda *args, **_: [Attempt(t, t, t + 0.01) for t in args[1]])
    monkeypatch.setattr(load.load_runner, "all_at_once", lambda _, burst, beat: left.pop(0)(burst.requests))
    found = load.load_gate(context([]))
    return found, len(bursts) - len(left)


def test_a_slow_server_is_asked_again_before_it_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stalls once is no release that falls behind."""
    found, count = looks(monkeypatch, lambda n: in_turn(n, 10), lambda n: in_turn(n, 30))
    assert (found.verdict, found.evidence["full_per_s"], count) == (Verdict.UNDECIDED, 30, 2)
    found, count = looks(monkeypatch, lambda n: in_turn(n, 10), lambda n: in_turn(n, 12))
    assert (found.verdict, found.evidence["full_per_s"], count) == (Verdict.FAILED, 12, 2)
    assert "never empties" in found.reason


@pytest.mark.parametrize("error", [TIMED_OUT, "CUDA out of memory [server_error]"])
def test_a_server_that_broke_is_not_asked_again(monkeypatch: pytest.MonkeyPatch, error: str) -> None:
    """No stall of a machine breaks it, and what timed out may still be at work."""
    found, count = looks(monkeypatch, lambda n: ended(n, 5, error), lambda n: in_turn(n, 1000))
    assert (found.verdict, count) == (Verdict.FAILED, 1)
