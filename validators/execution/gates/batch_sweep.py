"""Asks the release under other batchings, each on a server of its own, after the capacity gate's search."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from serving.core.variants import Batching
from serving.ports import InferenceError, PreparedRequests
from validators.core.batch_sweep import Point, SweepPlan, Tried, as_evidence, plan_of, words_of
from validators.core.load import generator_limit, summarise
from validators.execution.gates.context import GateContext, NotServed, OutOfTime, Variants
from validators.execution.gates.load_payloads import Payloads, requests_to
from validators.execution.gates.stage_watch import StageWatch
from validators.execution.runners import load as load_runner
from validators.execution.runners.generators import GeneratorLost, Generators

_NO_TIME = "no time was left"


def sweep_batchings(
    context: GateContext,
    section: Mapping[str, Any],
    *,
    proven_per_s: float | None,
    payloads: Payloads,
    generators: Generators,
    tell: Callable[[float], None],
) -> dict[str, Any]:
    """The evidence of the sweep that a policy's `capacity.sweep` asks for; `says` alone where there can be none.

    `tell` is called with the seconds that it took so far, and may raise.
    """
    why = _why_not(context, proven_per_s)
    if why or context.variants is None or not proven_per_s:
        return {"rows": [], "best": None, "alike": [], "says": f"No other batching was tried: {why}."}
    plan = plan_of(section, context.serving)
    sweep = _Sweep(context, plan, proven_per_s, payloads, generators, tell, context.variants)
    tried = [sweep.tried(at, batching) for at, batching in enumerate(plan.batchings)]
    return as_evidence(tried, plan, confidence=context.policy.of("capacity")["confidence"])


def _why_not(context: GateContext, proven_per_s: float | None) -> str:
    if not proven_per_s:
        return "no rate is proven"
    if not context.has_batch_axis:
        return "the release has no batch axis"
    return "" if context.variants else "users may be where it is tried"


@dataclass
class _Sweep:
    context: GateContext
    plan: SweepPlan
    proven_per_s: float
    payloads: Payloads
    generators: Generators
    tell: Callable[[float], None]
    variants: Variants

    def __post_init__(self) -> None:
        self.began = time.monotonic()

    @property
    def load(self) -> Mapping[str, Any]:
        return self.context.policy.of("load")

    def tried(self, at: int, batching: Batching) -> Tried:
        """What it did, or why it was not asked: that is for its row, and ends nothing."""
        self.context.say(f"sweep, {at + 1} of {len(self.plan.batchings)}: {words_of(batching)}")
        declared = int(self.context.serving["max_batch_size"])
        if batching.max_batch_size > declared:
            return Tried(batching, why=f"the release declares max_batch_size {declared}")
        if self._elapsed_s > self.plan.last_begin_s(at):
            return Tried(batching, why=_NO_TIME)
        points: tuple[Point, ...] = ()
        try:
            with self.variants(batching, wait_s=self.plan.start_s, beat=self._tell) as (server, keep):
                context = replace(self.context, server=server)
                requests = requests_to(server, context.serving, self.payloads, context)
                points = tuple(self._point(context, requests, share, keep) for share in self.plan.shares)
        except (NotServed, InferenceError, GeneratorLost) as error:
            return Tried(batching, points, "" if points else str(error))
        return Tried(batching, points)

    def _point(self, context: GateContext, requests: PreparedRequests, share: float, keep: Callable[[], None]) -> Point:
        rate, seed = share * self.proven_per_s, int(self.load["seed"]) + self.plan.shares.index(share)
        schedule = self.context.arrivals(rate, self.plan.run_s, seed=seed)  # the same for every batching

        def beat(sent: int) -> None:
            keep()
            self._tell()

        watch = StageWatch(context)
        attempts = load_runner.drive(
            requests, schedule, timeout_s=self.load["timeout_s"], progress=beat, generators=self.generators
        )
        took_ms = np.full(len(schedule), np.nan)
        for one in attempts:
            if not one.error:
                took_ms[one.at] = (one.done_s - one.due_s) * 1000
        summary = summarise(attempts, duration_s=self.plan.run_s, slo_ms=float(self.load["slo_ms"]))
        return Point(rate, summary, took_ms, watch.split(), generator_limit(summary, max_lag_ms=math.inf))

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self.began

    def _tell(self) -> None:
        """Raises NotServed once the time is over, of the gate too: what its search found stands without the rest of the sweep."""
        try:
            self.tell(self._elapsed_s)
        except OutOfTime:
            raise NotServed(_NO_TIME) from None
        if self._elapsed_s > self.plan.budget_s:
            raise NotServed(_NO_TIME)
