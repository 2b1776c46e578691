"""The resources gate's judgement: what a server held and used under load, and whether it grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from serving.targets.core.use import Reading
from validators.core.answered import Answered
from validators.core.growth import LEAST_READINGS, Growth, growth_of
from validators.core.verdict import Judgement, Verdict, worst_of

_UNKNOWN = "unknown"
#: The evidence is looked at after the load gate's run, and once more after a soak; both share the chance of error.
_LOOKS = 2
#: The agent reads a server every second, or every five.
_MOST_APART_S = 15.0
#: Points of the plot: evidence is bounded, however long the soak.
_MOST_POINTS = 240


def judge_resources(readings: Sequence[Reading], answered: Answered | None, policy: Mapping[str, Any]) -> Judgement:
    """The worst of its checks on growth and CPU time. `readings` in their order; `policy` is the gate's section.

    A value that was not read is undecided. The envelope's limits on the peaks are judged by `validators.core.envelope`.
    """
    if answered is None:
        return Judgement(
            Verdict.UNDECIDED, "What it uses is unknown: it was under no load.", {"leak": Verdict.UNDECIDED}
        )
    if not readings:
        return Judgement(
            Verdict.UNDECIDED, "What it uses is unknown: its processes were not looked at.", {"leak": _UNKNOWN}
        )
    requests = answered.until([one.at_s for one in readings])
    own = _levels(requests, readings, "own_bytes")
    confidence = 1 - (1 - float(policy["confidence"])) / _LOOKS
    memory, shared, opened = (
        growth_of(points, confidence=confidence) if points else None
        for points in (own, _levels(requests, readings, "shared_bytes"), _levels(requests, readings, "open_files"))
    )
    cpu_ms = _cpu_ms(readings, requests)
    leak = grows(memory, len(own), answered.requests, policy)
    checks = [
        leak,
        *shares(shared, answered.requests, policy),
        *opens(opened, answered.requests, policy),
        *_computes(cpu_ms, policy),
    ]
    verdict = worst_of(check.verdict for check in checks)
    evidence = {
        "checks": [{"verdict": check.verdict.value, "sentence": check.reason} for check in checks],
        "leak": leak.verdict.value if own else _UNKNOWN,
        "peaks": {name: _peak(readings, name) for name in ("memory_bytes", "own_bytes", "shared_bytes", "open_files")},
        "gpu_memory_bytes": _peak(readings, "gpu_memory_bytes"),
        "cores_used": _cores_used(readings),
        "cpu_ms_per_request": None if cpu_ms is None else round(cpu_ms, 3),
        "growth": None if memory is None else memory.as_evidence(),
        "shared_growth": None if shared is None else shared.as_evidence(),
        "open_files_growth": None if opened is None else opened.as_evidence(),
        "requests": answered.requests,
        "readings": len(readings),
        "points": _points(requests, readings),
    }
    said = [check.reason for check in checks if check.verdict is verdict]
    return Judgement(verdict, " ".join(said), evidence)


def needs_more(found: Judgement) -> bool:
    """Whether more requests could prove what these do not: where it is open whether it leaks, and not for want of readings."""
    return found.verdict is not Verdict.FAILED and found.evidence["leak"] == Verdict.UNDECIDED


def grows(growth: Growth | None, readings: int, requests: int, policy: Mapping[str, Any]) -> Judgement:
    """Whether it leaks, of `requests` in all; before `min_requests` of them nothing is proven, as what was free before hides a leak."""
    most = float(policy["max_growth_bytes"])
    if growth is None:
        why = f"{readings} readings over {requests} requests are too few, and {LEAST_READINGS} beyond the warm-up are needed"
        return Judgement(Verdict.UNDECIDED, f"Whether it leaks is unknown: {why}.")
    over = f"over {growth.requests} requests; {most:g} are allowed"
    is_leak, is_none = growth.low > most and not growth.is_slowing, growth.high <= most
    if (is_leak or is_none) and requests < policy["min_requests"]:
        asked = f"it answered {requests} requests, and {policy['min_requests']} are asked for"
        return Judgement(Verdict.UNDECIDED, f"Whether it leaks is not proven: {asked}.")
    if is_leak:
        stretches = f"in nearly all of {growth.stretches} stretches by {growth.low:.0f} or more"
        grew = f"its memory grew by {growth.per_request:.0f} bytes a request, {stretches}, {over}"
        return Judgement(Verdict.FAILED, f"It leaks: {grew}.")
    if is_none:
        return Judgement(
            Verdict.PASSED, f"Its memory grew by at most {max(0.0, growth.high):.0f} bytes a request {over}."
        )
    slowing = ", ever more slowly" if growth.is_slowing else ""
    between = f"between {growth.low:.0f} and {growth.high:.0f} bytes a request{slowing}"
    return Judgement(Verdict.UNDECIDED, f"Whether it leaks is not proven: its memory grew by {between}, {over}.")


def shares(growth: Growth | None, requests: int, policy: Mapping[str, Any]) -> list[Judgement]:
    """Shared memory is a part of what `grows` judges, and small: a leak that is lost in the noise of all fills it. Only proven growth
    speaks here."""
    most = float(policy["max_growth_bytes"])
    if growth is None or growth.low <= most or growth.is_slowing:
        return []
    if requests < policy["min_requests"]:
        asked = f"it answered {requests} requests, and {policy['min_requests']} are asked for"
        return [Judgement(Verdict.UNDECIDED, f"Whether it fills its shared memory is not proven: {asked}.")]
    left = f"It leaves {growth.per_request:.0f} bytes of shared memory behind for each request"
    return [Judgement(Verdict.FAILED, f"{left}, over {growth.requests} requests; {most:g} are allowed.")]


def opens(growth: Growth | None, requests: int, policy: Mapping[str, Any]) -> list[Judgement]:
    """Connections come and go with the load, so that only proven growth speaks, of `min_requests` or more: a generator that opens ever
    more of them looks like a leak at first."""
    if growth is None or growth.low <= policy["max_growth_files"] or growth.is_slowing:
        return []
    if requests < policy["min_requests"]:
        asked = f"it answered {requests} requests, and {policy['min_requests']} are asked for"
        return [Judgement(Verdict.UNDECIDED, f"Whether it leaves files open is not proven: {asked}.")]
    allowed = f"over {growth.requests} requests; {policy['max_growth_files']:g} are allowed"
    return [Judgement(Verdict.FAILED, f"It leaves {growth.per_request:.2f} files open for each request, {allowed}.")]


def _computes(cpu_ms: float | None, policy: Mapping[str, Any]) -> list[Judgement]:
    most = policy["max_cpu_ms"]
    if most is None:
        return []
    if cpu_ms is None:
        return [Judgement(Verdict.UNDECIDED, f"How much CPU time a request takes is unknown; {most:g} ms are allowed.")]
    verdict = Verdict.FAILED if cpu_ms > most else Verdict.PASSED
    return [Judgement(verdict, f"A request took {cpu_ms:.1f} ms of CPU time; {most:g} ms are allowed.")]


def _cpu_ms(readings: Sequence[Reading], requests: Sequence[float]) -> float | None:
    """CPU time of each request, with all that the server did beside it."""
    first, last, answered = readings[0].use.cpu_s, readings[-1].use.cpu_s, requests[-1] - requests[0]
    return None if first is None or last is None or answered <= 0 else (last - first) / answered * 1000


def _cores_used(readings: Sequence[Reading]) -> float | None:
    """CPU seconds per second while it was read, on average; None if its CPU time was not read.

    Readings further apart than `_MOST_APART_S` span a pause between the load and a soak, and do not count.
    """
    spent = [
        (after.at_s - before.at_s, after.use.cpu_s - before.use.cpu_s)
        for before, after in pairwise(readings)
        if before.use.cpu_s is not None
        and after.use.cpu_s is not None
        and 0 < after.at_s - before.at_s <= _MOST_APART_S
    ]
    seconds = sum(length for length, _ in spent)
    return round(sum(cpu_s for _, cpu_s in spent) / seconds, 3) if seconds else None


def _peak(readings: Sequence[Reading], name: str) -> int | None:
    """None where one reading could not tell."""
    values = [getattr(one.use, name) for one in readings]
    return None if None in values else max(values)


def _levels(requests: Sequence[float], readings: Sequence[Reading], name: str) -> list[tuple[float, float]]:
    """(requests so far, level) of the readings that could tell."""
    pairs = ((x, getattr(one.use, name)) for x, one in zip(requests, readings, strict=True))
    return [(x, float(level)) for x, level in pairs if level is not None]


def _points(requests: Sequence[float], readings: Sequence[Reading]) -> list[list[float | None]]:
    """[[requests, memory, own memory in bytes], …], of a long run every n-th."""
    every = -(-len(readings) // _MOST_POINTS)
    rows = list(zip(requests, readings, strict=True))[::every]
    return [[round(x, 1), one.use.memory_bytes, one.use.own_bytes] for x, one in rows]
