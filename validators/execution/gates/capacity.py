"""The capacity gate: up to which rate does a release hold its objective?"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from validators.core.capacity import Measured, judge_capacity, plan_of
from validators.core.capacity_search import Ended, Purpose, Run, Step, is_hopeless, next_step
from validators.core.load import Attempt, Floats, generator_limit, max_lag_ms, summarise
from validators.core.proof import WINDOW_S
from validators.core.verdict import Judgement, Verdict
from validators.execution.gates.context import GateContext
from validators.execution.gates.load_looks import settled
from validators.execution.gates.load_payloads import payloads_of, requests_to
from validators.execution.gates.stage_watch import StageWatch
from validators.execution.runners import load as load_runner
from validators.execution.runners.generators import Generators

#: A look reads every attempt so far, on a core that the sender needs too.
_LOOK_EVERY_S = 15.0


def capacity_gate(context: GateContext) -> Judgement:
    """How many requests a second does it answer within its objective, at most?"""
    load = context.policy.of("load")
    if load["slo_ms"] is None:
        return Judgement(Verdict.UNDECIDED, "Neither the policy nor the model states a latency that could be held.")
    return _CapacityGate(context).found()


class _CapacityGate:
    """One search on one server. Progress is told in seconds of load, of the budget."""

    def __init__(self, context: GateContext) -> None:
        self.context, self.load = context, context.policy.of("load")
        self.plan = plan_of(context.policy.of("capacity"), self.load)
        self.slo_ms = float(self.load["slo_ms"])
        self.payloads = payloads_of(context)
        self.requests = requests_to(context.server, context.serving, self.payloads, context)
        self.generators = Generators.asked(self.load)
        self.measured: list[Measured] = []
        self.began_s = time.time()

    def found(self) -> Judgement:
        while not isinstance(step := next_step([one.run for one in self.measured], self.plan), Ended):
            self.context.say(f"{step.purpose.value}: {step.rate_per_s:.4g} requests/s for {step.seconds:g} s")
            self.measured.append(self._measure(step))
        judged = judge_capacity(
            step,
            self.measured,
            self.plan,
            slo_ms=self.slo_ms,
            hardware=self.context.hardware,
            max_lag_ms=max_lag_ms(self.load),
        )
        judged.evidence.update(
            {
                **self.payloads.told,
                "protocol": self.load["protocol"],
                "generators": self.generators.used,
                "began_s": round(self.began_s, 3),
            }
        )
        claimed = next((one.summary for one in self.measured if one.run is step.claim), None)
        limited = generator_limit(claimed, max_lag_ms=math.inf) if claimed else ""
        if limited:  # a server that is asked less is faster
            return Judgement(Verdict.ERRORED, f"generator_limited: {limited}, so nothing is claimed.", judged.evidence)
        late = generator_limit(self.measured[-1].summary, max_lag_ms=max_lag_ms(self.load))
        if late and judged.verdict is not Verdict.PASSED:  # lateness only adds to what is measured
            return Judgement(Verdict.ERRORED, f"generator_limited: {late}.", judged.evidence)
        return judged

    def _measure(self, step: Step) -> Measured:
        schedule = self.context.arrivals(step.rate_per_s, step.seconds, seed=self.load["seed"] + len(self.measured))
        spent_s = self._spent_s
        looked_s = 0.0

        def is_enough(attempts: Sequence[Attempt], now_s: float) -> bool:
            nonlocal looked_s
            self._tell(min(math.ceil(self.plan.budget_s), spent_s + int(now_s)))
            if step.purpose is not Purpose.CONFIRM or now_s < looked_s + _LOOK_EVERY_S:
                return False
            looked_s = now_s
            known = settled(schedule, attempts, now_s, self.slo_ms)
            seconds = int(known[-1].due_s / WINDOW_S) if known else 0
            return seconds > 0 and is_hopeless(self._run_of(step, known, seconds), self.plan)

        watch = StageWatch(self.context)
        attempts = load_runner.drive(
            self.requests,
            schedule,
            timeout_s=self.load["timeout_s"],
            progress=lambda sent: None,
            is_enough=is_enough,
            generators=self.generators,
        )
        stages = watch.split()
        lasted_s = _lasted_s(schedule, attempts, step.seconds)
        summary = summarise(attempts, duration_s=lasted_s, slo_ms=self.slo_ms, kinds=self.payloads.kinds)
        return Measured(Run(step, summary.over_per_window, summary.sent_per_window), summary, stages)

    @property
    def _spent_s(self) -> int:
        return sum(len(one.run.over_per_window) for one in self.measured)

    def _tell(self, done_s: int) -> None:
        total_s = math.ceil(self.plan.budget_s)
        self.context.progress(min(done_s, total_s), total_s)

    def _run_of(self, step: Step, attempts: Sequence[Attempt], seconds: int) -> Run:
        """The run's first seconds."""
        first = [one for one in attempts if one.due_s < seconds * WINDOW_S]
        so_far = summarise(first, duration_s=float(seconds), slo_ms=self.slo_ms)
        return Run(step, so_far.over_per_window, so_far.sent_per_window)


def _lasted_s(schedule: Floats, attempts: Sequence[Attempt], seconds: float) -> float:
    """All of it, or whole seconds up to the last request that was sent."""
    return seconds if len(attempts) == len(schedule) else max(1.0, float(int(attempts[-1].due_s)))
