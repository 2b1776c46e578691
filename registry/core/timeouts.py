"""The hierarchy of time-outs: a user's whole wait > one attempt of the gateway > the server's queue > what it computes.

Where an inner one is longer than an outer one, a server works on what nobody waits for any more, and under load it then does nothing
else. Source: research/overload.md, section 5; Google, Site Reliability Engineering, "Addressing Cascading Failures" (deadlines).
Nothing is said of what is not stated: the installation's own time-outs are not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    """What a release's queue, its bound and its declared latency contradict in its model's objectives."""
    stated = [objectives[name] for name in ("attempt_timeout_s", "timeout_s") if objectives.get(name) is not None]
    if not stated:
        return []
    attempt_s = min(stated)
    shapes = envelope.get("performance") or ()
    return [
        *_queue(serving.get("queue_policy") or {}, shapes, attempt_s),
        *_in_flight((envelope.get("limits") or {}).get("max_concurrency"), shapes, attempt_s),
        *_latency(shapes, attempt_s),
    ]


def of_releases(
    releases: Iterable[tuple[str, Mapping[str, Any]]], before: Mapping[str, Any], after: Mapping[str, Any]
) -> list[Problem]:
    """What new objectives of a model contradict in releases that are in use: (what they are called, their manifest).

    Only what the objectives `before` did not contradict: whoever changes something else is not told of that.
    """
    problems = []
    for name, manifest in releases:
        serving, envelope = manifest.get("serving") or {}, manifest.get("envelope") or {}
        known = {one.field for one in against_objectives(serving, envelope, before)}
        for one in against_objectives(serving, envelope, after):
            if one.field not in known:
                said = f"{name} does not keep to it ({one.field}): {one.message}"
                problems.append(
                    Problem("objectives", said, "Give it more time, or take the release out of use before.")
                )
    return problems


def _queue(queue: Mapping[str, Any], shapes: Iterable[Mapping[str, Any]], attempt_s: float) -> list[Problem]:
    at, queue_s = "serving.queue_policy.default_timeout_us", queue.get("default_timeout_us", 0) / 1e6
    if not queue_s:
        return []
    if queue.get("timeout_action") == "delay":
        said = (
            f"a request that waited {queue_s:g} s is put behind all others and computed all the same, however late; "
            f"the gateway gives it up after {attempt_s:g} s."
        )
        return [Problem("serving.queue_policy.timeout_action", said, "Write reject: the queue gives up first.")]
    if queue_s >= attempt_s:
        said = f"a request may wait {queue_s:g} s in the server's queue, and the gateway gives it up after {attempt_s:g} s."
        return [Problem(at, said, "Let the queue give up first: what is computed after that, nobody reads.")]
    p99_s = min(filter(None, map(_p99_s, shapes)), default=0.0)  # of the lightest load: nearest to the computing alone
    if p99_s < attempt_s <= queue_s + p99_s:
        said = (
            f"a request that waited {queue_s:g} s and then takes its declared {1000 * p99_s:g} ms (p99) is late: the gateway "
            f"gives it up after {attempt_s:g} s."
        )
        return [
            Problem(
                at, said, f"Let the queue give up before {attempt_s - p99_s:g} s, so that what it lets in is in time."
            )
        ]
    return []


def _in_flight(most: int | None, shapes: Iterable[Mapping[str, Any]], attempt_s: float) -> list[Problem]:
    """How long a full server keeps a request: what is in flight ÷ what it answers a second (Little's law)."""
    rates = [
        one["throughput"]["value"] for one in shapes if (one.get("throughput") or {}).get("unit") == "requests_per_s"
    ]
    if most is None or not rates or most / max(rates) < attempt_s:
        return []
    said = (
        f"with {most} requests at once and {max(rates):g} answers a second, as declared, each takes {most / max(rates):g} s, "
        f"and the gateway gives an attempt up after {attempt_s:g} s."
    )
    fix = "Let fewer in: under more load than it can bear, such a server answers nobody in time."
    return [Problem("envelope.limits.max_concurrency", said, fix)]


def _latency(shapes: Iterable[Mapping[str, Any]], attempt_s: float) -> list[Problem]:
    problems = []
    for at, one in enumerate(shapes):
        p99_s = _p99_s(one)
        if p99_s is not None and p99_s >= attempt_s:
            said = f"one request in a hundred takes {1000 * p99_s:g} ms, and the gateway gives an attempt up after {attempt_s:g} s."
            fix = "Give the model's objectives.attempt_timeout_s more time, or serve it faster."
            problems.append(Problem(f"envelope.performance[{at}].latency_ms.p99", said, fix))
    return problems


def _p99_s(shape: Mapping[str, Any]) -> float | None:
    p99_ms = (shape.get("latency_ms") or {}).get("p99")
    return None if p99_ms is None else p99_ms / 1000
