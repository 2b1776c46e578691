"""The resources gate: what the server held and used while the load gate asked it, and in a soak where that proves too little."""

from __future__ import annotations

import time

from validators.core.answered import Answered, answered_at, answered_of, ended_at, joined
from validators.core.resources import judge_resources, needs_more
from validators.core.verdict import Judgement
from validators.execution.gates.context import GateContext
from validators.execution.gates.load_payloads import payloads_of, requests_to
from validators.execution.runners import load as load_runner
from validators.execution.runners.generators import Generators


def resources_gate(context: GateContext) -> Judgement:
    """Does it keep to its envelope under load, and does it keep to it: what does each request leave behind?"""
    policy = context.policy.of("resources")
    answered = answered_of(context.earlier("load"))
    found = _judged(context, answered)
    if policy["max_soak_s"] > 0 and needs_more(found):
        found = _judged(context, answered, _soak(context, answered))
    return found


def _judged(context: GateContext, loaded: Answered | None, soaked: Answered | None = None) -> Judgement:
    """By what was read while it was asked: between the two it may have waited for long, for another worker after one that died."""
    parts = [part for part in (loaded, soaked) if part]
    readings = [one for part in parts for one in context.readings(part.began_s, part.ended_s)]
    return judge_resources(readings, joined(loaded, soaked), context.policy.of("resources"))


def _soak(context: GateContext, before: Answered | None) -> Answered | None:
    """More of the load gate's requests, at its rate: until there are enough, or as many again as there were, within `max_soak_s`."""
    policy, load = context.policy.of("resources"), context.policy.of("load")
    rate_per_s = float(context.earlier("load").get("rate_per_s") or load["rate_per_s"])
    had = before.requests if before else 0
    seconds = min(float(policy["max_soak_s"]), max(policy["min_requests"] - had, had) / rate_per_s)
    context.say(f"asks it for {seconds:.0f} s more at {rate_per_s:g}/s, as {had} requests prove too little")
    schedule = context.arrivals(rate_per_s, seconds, seed=load["seed"])
    attempts = load_runner.drive(
        requests_to(context.server, context.serving, payloads_of(context), context),
        schedule,
        timeout_s=load["timeout_s"],
        progress=lambda done: context.progress(done, len(schedule)),
        generators=Generators.asked(load),
    )
    return answered_at(ended_at(attempts, time.time()))
