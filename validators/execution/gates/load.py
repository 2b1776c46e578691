"""The load gate: the objective at a rate, where the time goes, what comes after a burst, and what a full server does."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from serving.ports import InferenceError, InferenceServer
from validators.core.answered import answered_at
from validators.core.beside_stable import BLOCK_S, BLOCKS, Arm, judge_beside
from validators.core.full_server import burst_of, judge_full
from validators.core.load import (
    Attempt,
    Floats,
    LoadSummary,
    arrivals,
    generator_limit,
    judge_load,
    max_lag_ms,
    proven_all_the_same,
    summarise,
)
from validators.core.proof import sizing
from validators.core.recovery import is_asked, judge_recovery, recovered_after_s, surge
from validators.core.stages import stages_between
from validators.core.verdict import Judgement, Verdict
from validators.execution.gates.context import Baseline, GateContext
from validators.execution.gates.load_looks import is_proven, settled
from validators.execution.gates.load_payloads import Payloads, payloads_of
from validators.execution.runners import load as load_runner

#: The objective is measured again when the generator was late: other work on the machine comes and goes.
_LOAD_TRIES = 3
#: So is what follows a burst, and what a full server does, before the release is blamed for it.
_BURST_TRIES = 2
_STOPS = (Verdict.FAILED, Verdict.ERRORED)


def load_gate(context: GateContext) -> Judgement:
    """Does it meet its latency objective and answer without errors at a given rate, get over a burst, and empty a queue?"""
    run = _LoadGate(context)
    found = run.beside_stable(run.at_the_rate())
    if found.verdict is Verdict.UNDECIDED and run.stable is not None:
        found = run.full_beside_stable(found, run.stable)
    for check in (run.after_a_burst, run.when_full):
        if found.verdict in _STOPS or "beside_stable" in found.evidence:
            break  # a machine that may be to blame for one miss may be for the others
        found = check(found)
    return Judgement(found.verdict, found.reason, {**found.evidence, **run.answered()})


class _LoadGate:
    """One gate's measurements, which count their requests together."""

    def __init__(self, context: GateContext) -> None:
        self.context, self.policy = context, context.policy.of("load")
        self.payloads: Payloads = payloads_of(context)
        self.slo_ms = float(self.policy["slo_ms"] or float("inf"))
        self.sent = 0
        self.stable: Baseline | None = None  # once it was asked
        self._ended_at: list[float] = []  # of the release's own requests, by the Unix clock

    def answered(self) -> dict[str, Any]:
        """What the resources gate counts what the server used against."""
        found = answered_at(self._ended_at)
        return {"answered": found.as_evidence()} if found else {}

    def at_the_rate(self) -> Judgement:
        """The objective, measured again where the generator itself was late."""
        if self.policy["slo_ms"] is not None:
            self.context.say(sizing(self.policy).sentence)
        for attempt in range(_LOAD_TRIES):
            summary, stages = self._run(seed=self.policy["seed"] + attempt)
            found = judge_load(summary, self.policy)
            is_limited = generator_limit(summary, max_lag_ms=max_lag_ms(self.policy))
            if not is_limited or proven_all_the_same(summary, found, self.policy):
                break
        repeated = f" (measured {attempt + 1} times, as this machine sent too late before)" if attempt else ""
        evidence = {**found.evidence, "stages": stages, "tries": attempt + 1, **self.payloads.told}
        return Judgement(found.verdict, f"{found.reason.removesuffix('.')}{repeated}.", evidence)

    def _run(self, *, seed: int) -> tuple[LoadSummary, dict[str, float] | None]:
        policy, kinds, planned_s = self.policy, self.payloads.kinds, sizing(self.policy).deadline_s
        schedule = arrivals(policy["rate_per_s"], planned_s, seed=seed, cv=policy["arrivals_cv"])
        enough = is_proven(schedule, kinds, policy) if policy["duration_s"] is None else _never
        before, began = self._statistics(), time.monotonic()
        expected = min(len(schedule), sizing(policy).requests if enough is not _never else len(schedule))
        attempts = self._drive(schedule, expected=expected, is_enough=enough)
        stages = stages_between(
            before, self._statistics(), wall_s=time.monotonic() - began, instances=self.context.instances
        )
        is_whole = len(attempts) == len(schedule)
        lasted_s = planned_s if is_whole else attempts[-1].due_s + 1 / policy["rate_per_s"]
        return summarise(attempts, duration_s=lasted_s, slo_ms=self.slo_ms, kinds=kinds), stages

    def beside_stable(self, found: Judgement) -> Judgement:
        """What was found; a release that missed its objective is blamed only where stable, in turn with it, is faster."""
        if found.verdict is not Verdict.FAILED or "slo_test" not in found.evidence:
            return found
        stable = self.context.stable()
        if stable is None:
            return found
        if stable.server is None:
            absent = {"stable": stable.name, "absent_because": stable.absent_because}
            return Judgement(found.verdict, found.reason, {**found.evidence, "beside_stable": absent})
        self.stable = stable
        self.context.say(f"it missed its objective: {stable.name} is asked in turn with it, {2 * BLOCKS * BLOCK_S:g} s")
        own, others = Arm((), ()), Arm((), ())
        for block in range(BLOCKS):
            schedule = arrivals(self.policy["rate_per_s"], BLOCK_S, seed=self.policy["seed"] + block)
            own = own.with_block(self._block(schedule, self.context.server))
            others = others.with_block(self._block(schedule, stable.server))
        return judge_beside(found, stable.name, own, others, self.policy)

    def _block(self, schedule: Floats, server: InferenceServer) -> LoadSummary:
        attempts = self._drive(schedule, expected=len(schedule), is_enough=_never, server=server)
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
            judgement = self._full(found, self.context.server)
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
        other = self._full(found, stable.server)
        evidence = {**judgement.evidence, "stable_full_per_s": other.evidence["full_per_s"]}
        if other.verdict is not found.verdict:
            return Judgement(found.verdict, found.reason, evidence)
        keeps_up = f"{stable.name}, as full on the same machine, answered {other.evidence['full_per_s']:.1f}/s."
        return Judgement(Verdict.FAILED, f"{judgement.reason} {keeps_up}", evidence)

    def _full(self, found: Judgement, server: InferenceServer) -> Judgement:
        context, p50_s = self.context, found.evidence["latency_ms"].get("p50", 0.0) / 1000
        burst = burst_of(
            self.policy,
            p50_s=p50_s,
            max_batch_size=int(context.serving["max_batch_size"]),
            instances=context.instances,
            max_concurrency=(context.envelope.get("limits") or {}).get("max_concurrency"),
        )
        began_s = time.time()
        attempts = load_runner.all_at_once(
            server, context.model, self.payloads.batches, burst, beat=lambda: context.progress(self.sent, self.sent)
        )
        if server is context.server:
            self._note(began_s, attempts)
        return judge_full(found, attempts, burst, self.policy, p50_s=p50_s)

    def _drive(
        self,
        schedule: Floats,
        *,
        expected: int,
        is_enough: load_runner.IsEnough,
        most_at_once: int | None = None,
        server: InferenceServer | None = None,
    ) -> list[Attempt]:
        """The attempts, added to what was sent. More than `expected` raises the total, so that what is told never falls."""

        def progress(done: int) -> None:
            self.context.progress(self.sent + done, self.sent + (expected if done <= expected else len(schedule)))

        began_s = time.time()
        attempts = load_runner.drive(
            server or self.context.server,
            self.context.model,
            self.payloads.batches,
            schedule,
            timeout_s=self.policy["timeout_s"],
            progress=progress,
            is_enough=is_enough,
            most_at_once=most_at_once,
        )
        if server is None or server is self.context.server:
            self._note(began_s, attempts)
        self.sent += len(attempts)
        self.context.progress(self.sent, self.sent)
        return attempts

    def _note(self, began_s: float, attempts: Sequence[Attempt]) -> None:
        self._ended_at += [began_s + attempt.done_s for attempt in attempts if attempt.is_sent]

    def _statistics(self) -> Mapping[str, Any]:
        """The server's counters; none where it does not tell, which is for the requests to judge."""
        try:
            return self.context.server.statistics(self.context.model)
        except InferenceError:
            return {}


def _never(attempts: Sequence[Attempt], now_s: float) -> bool:
    return False
