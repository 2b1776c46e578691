"""The hierarchy of time-outs: a user's whole wait > one attempt of the gateway > the server's queue > what it computes.

Where an inner one is longer than an outer one, a server works on what nobody waits for any more, and under load it then does nothing
else. Source: research/overload.md, section 5; Google, Site Reliability Engineering, "Addressing Cascading Failures" (deadlines).
Nothing is said of what is not stated: the installation's own time-outs are not known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from registry.core.schema import Problem


def of_objectives(objectives: Mapping[str, Any]) -> list[Problem]:
    """What contradicts in a model's own objectives."""
    whole_s, attempt_s = objectives.get("timeout_s"), objectives.get("attempt_timeout_s")
    problems = []
    if whole_s is not None and attempt_s is not None and attempt_s > whole_s:
        said = f"it is longer than objectives.timeout_s, which is {whole_s}."
        fix = "Give the whole request at least the time of one attempt."
        problems.append(Problem("objectives.attempt_timeout_s", said, fix))
    slow_ms = (objectives.get("slow") or {}).get("threshold_ms")
    longest_s = attempt_s if attempt_s is not None else whole_s
    if slow_ms is not None and longest_s is not None and slow_ms >= 1000 * longest_s:
        said = f"no answer is ever that slow: it is given up after {longest_s:g} s."
        fix = "Call a request slow before it is given up, or give it more time."
        problems.append(Problem("objectives.slow.threshold_ms", said, fix))
    return problems


def against_objectives(
    serving: Mapping[str, Any], envelope: Mapping[str, Any], objectives: Mapping[str, Any]
) -> list[Problem]:
    """What a release's queue and its declared latency contradict in its model's objectives."""
    stated = [objectives[name] for name in ("attempt_timeout_s", "timeout_s") if objectives.get(name) is not None]
    if not stated:
        return []
    attempt_s = min(stated)
    problems = []
    queue_s = (serving.get("queue_policy") or {}).get("default_timeout_us", 0) / 1e6
    if queue_s >= attempt_s:
        said = f"a request may wait {queue_s:g} s in the server's queue, and the gateway gives it up after {attempt_s:g} s."
        fix = "Let the queue give up first: what is computed after that, nobody reads."
        problems.append(Problem("serving.queue_policy.default_timeout_us", said, fix))
    for at, one in enumerate(envelope.get("performance") or ()):
        p99_ms = (one.get("latency_ms") or {}).get("p99")
        if p99_ms is not None and p99_ms >= 1000 * attempt_s:
            said = f"one request in a hundred takes {p99_ms:g} ms, and the gateway gives an attempt up after {attempt_s:g} s."
            fix = "Give the model's objectives.attempt_timeout_s more time, or serve it faster."
            problems.append(Problem(f"envelope.performance[{at}].latency_ms.p99", said, fix))
    return problems
