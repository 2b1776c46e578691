"""The load gate: the objective at a rate, where the time goes, what comes after a burst, and what a full server does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from registry.core.envelope import declared_per_s
from serving.ports import PreparedRequests
from serving.traffic.core.admission import LEAST_PER_INSTANCE
from validators.core.answered import answered_at, ended_at
from validators.core.beside_stable import BLOCK_S, BLOCKS, Arm, judge_beside
from validators.core.full_server import Burst, burst_of, judge_full
from validators.core.load import (
    Attempt,
    Floats,
    LoadSummary,
    generator_limit,
    judge_load,
    max_lag_ms,
    proven_all_the_same,
    summarise,
)
from validators.core.load_defaults import ERRORS_ONLY_S, MEASURED
from validators.core.load_rate import (
    LoadRate,
    RateFrom,
    answered_per_s,
    at_rate,
    probes_of,
    rate_of,
)
from validators.core.proof import sizing
from validators.core.recovery import is_asked, judge_recovery, recovered_after_s, surge
from validators.core.token_times import (
    FIRST_TOKEN,
    OBJECTIVES,
    TokenObjective,
    blamed,
    judge_tokens,
    summarise_seen,
    token_times,
)
from validators.core.verdict import Judgement, Verdict
from validators.execution.gates.context import Baseline, GateContext
from validators.execution.gates.load_looks import is_proven, settled
from validators.execution.gates.load_payloads import Payloads, payloads_of, requests_to
from validators.execution.gates.stage_watch import StageWatch
from validators.execution.runners import load as load_runner
from validators.execution.runners.generators import Generators

#: The objective is measured again when the generator was late: other work on the machine comes and goes.
_LOAD_TRIES = 3
#: So is what follows a burst, and what a full server does, before the release is blamed for it.
_BURST_TRIES = 2
_STOPS = (Verdict.FAILED, Verdict.ERRORED)


def load_gate(context: GateContext) -> Judgement:
    """Does it meet its latency objective and answer without errors at a given rate, get over a burst, and empty a queue?"""
    run = _LoadGate(context)
    run.find_rate()
    found = run.beside_stable(run.at_the_rate())
    if found.verdict is Verdict.UNDECIDED and run.stable is not None:
        found = run.full_beside_stable(found, run.stable)
    for check in (run.after_a_burst, run.when_full):
        if found.verdict in _STOPS or "beside_stable" in found.evidence:
            break  # a machine that may be to blame for one miss may be for the others
        found = check(found)
    return Judgement(found.verdict, f"{found.reason}{run.payloads.caveat}", {**found.evidence, **run.answered()})


class _LoadGate:
    """One gate's measurements, which count their requests together."""

    def __init__(self, context: GateContext) -> None:
        self.context, self.policy = context, context.policy.of("load")
        self.payloads: Payloads = payloads_of(context)
        self.requests = requests_to(context.server, context.serving, self.payloads, context)
        self.generators = Generators.asked(self.policy)
        self.slo_ms = float(self.policy["slo_ms"] or float("inf"))
        self.sent = 0
        self.stable: Baseline | None = None  # once it was asked
        self.rate = LoadRate(float(self.policy["rate_per_s"]), RateFrom.STATED)
        self._ended_at: list[float] = []  # of the release's own requests, by the Unix clock

    def answered(self) -> dict[str, Any]:
        """What the resources gate counts what the server used against."""
        found = answered_at(self._ended_at)
        return {"answered": found.as_evidence()} if found else {}

    def find_rate(self) -> None:
        """Settles the rate. Measuring a server takes some seconds, or one request."""
        policy, envelope = self.policy, self.context.envelope
        declared, measured = declared_per_s(envelope), None
        if policy.get("rate_from") == MEASURED and declared is None:
            measured = self._measured_per_s()
        self.rate = rate_of(policy, declared=declared, measured=measured)
        self.policy = at_rate(policy, self.rate, errors_only_s=ERRORS_ONLY_S) | {"rate_said": self.rate.sentence}
        if self.rate.source is RateFrom.MEASURED:
            self.context.say(self.rate.sentence)

    def _measured_per_s(self) -> float | None:
        """Answers a second with the next request always at hand; None if it answered none."""
        at_once = LEAST_PER_INSTANCE * self.context.instances
        first = self._probed(1, 1)
        more = probes_of(1 / first, at_once=at_once) if first else 0
        return (self._probed(more, at_once) if more else None) or first

    def _probed(self, requests: int, at_once: int) -> float | None:
        burst = Burst(requests, at_once, self.policy["timeout_s"])
        attempts = load_runner.all_at_once(
            self.requests, burst, beat=lambda: self.context.progress(self.sent, self.sent)
        )
        return answered_per_s(attempts)

    def at_the_rate(self) -> Judgement:
        """The objective, measured again where the generator itself was late."""
        if self.policy["slo_ms"] is not None:
            self.context.say(sizing(self.policy).sentence)
        for attempt in range(_LOAD_TRIES):
            summary, seen, more = self._run(seed=self.policy["seed"] + attempt)
            found = judge_tokens(judge_load(summary, self.policy), summary, seen, self.policy)
            is_limited = generator_limit(summary, max_lag_ms=max_lag_ms(self.policy))
            if not is_limited or proven_all_the_same(summary, found, self.policy):
                break
        repeated = f" (measured {attempt + 1} times, as this machine sent too late before)" if attempt else ""
        evidence = {**found.evidence, **more, "tries": attempt + 1, **self.payloads.told}
        evidence |= {"protocol": self.policy["protocol"], "generators": self.generators.used}
        evidence |= {"rate_from": self.rate.source.value, "can_per_s": self.rate.can_per_s}
        return Judgement(found.verdict, f"{found.reason.removesuffix('.')}{repeated}.", evidence)

    def _run(self, *, seed: int) -> tuple[LoadSummary, dict[TokenObjective, LoadSummary], dict[str, Any]]:
        """The numbers of the whole answers, those of their responses, and what else the evidence says."""
        policy, kinds, planned_s = self.policy, self.payloads.kinds, sizing(self.policy).deadline_s
        schedule = self._arrivals(planned_s, seed=seed)
        enough = is_proven(schedule, kinds, policy) if policy["duration_s"] is None else _never
        watch = StageWatch(self.context)
        expected = min(len(schedule), sizing(policy).requests if enough is not _never else len(schedule))
        attempts = self._drive(schedule, expected=expected, is_enough=enough)
        more: dict[str, Any] = {"stages": watch.split()}
        is_whole = len(attempts) == len(schedule)
        lasted_s = planned_s if is_whole else attempts[-1].due_s + 1 / policy["rate_per_s"]
        seen = {one: summarise_seen(attempts, one, duration_s=lasted_s, policy=policy) for one in OBJECTIVES}
        more |= token_times(attempts, seen[FIRST_TOKEN])
        summary = summarise(
            attempts, duration_s=lasted_s, slo_ms=self.slo_ms, kinds=kinds, least_phi=float(policy["least_dispersion"])
        )
        return summary, seen, more

    def _arrivals(self, seconds: float, *, seed: int) -> Floats:
        return self.context.arrivals(self.policy["rate_per_s"], seconds, seed=seed)

    def beside_stable(self, found: Judgement) -> Judgement:
        """What was found; a release that missed its objective is blamed only where stable, in turn with it, is faster."""
        if found.verdict is not Verdict.FAILED or "slo_test" not in found.evidence:
            return found
        stable = self.context.stable()
        if stable is None:
            return found
        if stable.server is None:
            return _alone(found, stable.name, stable.absent_because)
        self.stable = stable
        self.context.say(f"it missed its objective: {stable.name} is asked in turn with it, {2 * BLOCKS * BLOCK_S:g} s")
        own, others, to_stable = Arm((), ()), Arm((), ()), self._requests_to_stable(stable)
        for block in range(BLOCKS):
            schedule = self._arrivals(BLOCK_S, seed=self.policy["seed"] + block)
            own = own.with_block(self._block(schedule, self.requests, blamed(found)))
            others = others.with_block(self._block(schedule, to_stable, blamed(found)))
        if not sum(others.sent):
            return _alone(found, stable.name, "none of its answers had two responses")
        return judge_beside(found, stable.name, own, others, self.policy)

    def _requests_to_stable(self, stable: Baseline) -> PreparedRequests:
        assert stable.server is not None
        return requests_to(stable.server, stable.serving, self.payloads, self.context)

    def _block(self, schedule: Floats, requests: PreparedRequests, seen_by: TokenObjective | None) -> LoadSummary:
        attempts = self._drive(schedule, expected=len(schedule), is_enough=_never, requests=requests)
        if seen_by:
            return summarise_seen(attempts, seen_by, duration_s=BLOCK_S, policy=self.policy)
        return summarise(attempts, duration_s=BLOCK_S, slo_ms=self.slo_ms)

    def after_a_burst(self, found: Judgement) -> Judgement:
        """What was found, unless the objective does not hold again soon after more than the rate. Twice, as a machine may stall."""
        policy, judgement = self.policy, found
        if not is_asked(policy):
            return found
        for attempt in range(_BURST_TRIES):
            schedule = surge(policy, seed=policy["seed"] + attempt)

            def is_back(attempts: Sequence[Attempt], now_s: float, schedule: Floats = schedule) -> bool:
                return recovered_after_s(settled(schedule, attempts, now_s, self.slo_ms), policy) is not None

            most = (self.context.envelope.get("limits") or {}).get("max_concurrency")
            attempts = self._drive(schedule, expected=len(schedule), is_enough=is_back, most_at_once=most)
            judgement = judge_recovery(found, attempts, policy)
            if judgement.verdict not in _STOPS:
                break
        return judgement

    def when_full(self, found: Judgement) -> Judgement:
        """What was found, unless a server with a queue breaks or does less work than it is asked for.

        A stall of this machine can make it slow: twice, then. It makes no errors, and time-outs leave work behind them.
        """
        judgement = found
        for _ in range(_BURST_TRIES):
            judgement = self._full(found, self.requests)
            if judgement.verdict is found.verdict or judgement.evidence["full_errors"]:
                break
        return judgement

    def full_beside_stable(self, found: Judgement, stable: Baseline) -> Judgement:
        """What was found undecided beside stable, unless a full server does less than it is asked for, and a full stable one does not.

        A server that collapses under a queue misses in one piece, as in a stall of the machine; but whenever it is full.
        """
        assert stable.server is not None
        judgement = self.when_full(found)
        if judgement.verdict is not Verdict.FAILED:
            return Judgement(found.verdict, found.reason, judgement.evidence)
        other = self._full(found, self._requests_to_stable(stable))
        evidence = {**judgement.evidence, "stable_full_per_s": other.evidence["full_per_s"]}
        if other.verdict is not found.verdict:
            return Judgement(found.verdict, found.reason, evidence)
        keeps_up = f"{stable.name}, as full on the same machine, answered {other.evidence['full_per_s']:.1f}/s."
        return Judgement(Verdict.FAILED, f"{judgement.reason} {keeps_up}", evidence)

    def _full(self, found: Judgement, requests: PreparedRequests) -> Judgement:
        context, p50_s = self.context, found.evidence["latency_ms"].get("p50", 0.0) / 1000
        burst = burst_of(
            self.policy,
            p50_s=p50_s,
            max_batch_size=int(context.serving["max_batch_size"]),
            instances=context.instances,
            max_concurrency=(context.envelope.get("limits") or {}).get("max_concurrency"),
        )
        attempts = load_runner.all_at_once(requests, burst, beat=lambda: context.progress(self.sent, self.sent))
        if requests is self.requests:
            self._ended_at += ended_at(attempts, time.time())
        return judge_full(found, attempts, burst, self.policy, p50_s=p50_s)

    def _drive(
        self,
        schedule: Floats,
        *,
        expected: int,
        is_enough: load_runner.IsEnough,
        most_at_once: int | None = None,
        requests: PreparedRequests | None = None,
    ) -> list[Attempt]:
        """The attempts, added to what was sent. More than `expected` raises the total, so that what is told never falls."""

        def progress(done: int) -> None:
            self.context.progress(self.sent + done, self.sent + (expected if done <= expected else len(schedule)))

        attempts = load_runner.drive(
            requests or self.requests,
            schedule,
            timeout_s=self.policy["timeout_s"],
            progress=progress,
            is_enough=is_enough,
            most_at_once=most_at_once,
            generators=self.generators,
        )
        if requests is None or requests is self.requests:
            self._ended_at += ended_at(attempts, time.time())
        self.sent += len(attempts)
        self.context.progress(self.sent, self.sent)
        return attempts


def _alone(found: Judgement, stable: str, because: str) -> Judgement:
    """What was found, with nothing of stable's to hold it against."""
    absent = {"stable": stable, "absent_because": because}
    return Judgement(found.verdict, found.reason, {**found.evidence, "beside_stable": absent})


def _never(attempts: Sequence[Attempt], now_s: float) -> bool:
    return False
