"""Counts by model, release and slot of an Envoy's page of statistics, whose names `serving.traffic.control_plane.listener` gives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from serving.ports import FIRST_TEXT, LARGEST_GAP, ArmCounters, GatewayCounters, GatewayError, Spread, TenantCounters
from serving.traffic.core.buckets import EDGES_US, SIZE_EDGES, TENANT_EDGES_US, TEXT_EDGES
from serving.traffic.core.outcomes import (
    DECIDED,
    EVIDENCE,
    NOT_ROUTED,
    QUOTA_FLAG,
    SPARE,
    Answer,
    Call,
    Drawn,
    Ended,
    Purpose,
    Refused,
    StreamEnd,
    call_of,
    counts_for,
    drawn,
)

_NAME = re.compile(
    r"sli\.(?P<stat>latency|latency_late|request|first|gap|texts|left)\.model\.(?P<model>.+)\.digest\.(?P<digest>[^.]*)\.entry\.(?P<entry>[^.]*)"
    r"(?:\.try\.(?P<try>[^.]*))?(?:\.slot\.(?P<slot>[^.]*))?(?:\.by\.(?P<by>[^.]*)\.tries\.(?P<tries>[^.]*))?"
    r"(?:\.shed(?:\.(?P<shed>[^.]*))?)?"  # Envoy takes a dot off the end of a name
    r"(?:\.code\.(?P<code>[^.]*)\.grpc\.(?P<grpc>[^.]*))?(?:\.end\.(?P<end>[^.]*))?(?:\.flags\.(?P<flags>.*))?"
)
_CALLERS = re.compile(
    r"sli\.(?P<stat>tenant|class)\.model\.(?P<model>.+)\.(?P=stat)\.(?P<name>[^.]*)\.entry\.(?P<entry>[^.]*)\.code\.(?P<code>[^.]*)\.grpc\.(?P<grpc>[^.]*)"
    r"(?:\.end\.(?P<end>[^.]*))?\.flags\.(?P<flags>.*)"
)
#: A gauge: requests that force a release and are under way.
_FORCED_NOW = re.compile(r"cluster\.(?P<model>.+)_[0-9a-f]{12}_(http|grpc)_forced\.upstream_rq_active")
_EDGE = re.compile(r"B([\d.e+]+)\(")
#: Envoy's text for a histogram's buckets before its first flush, such as that of a failure seen for the first time.
_NOTHING_YET = "No recorded values"
_SINCE_START = re.compile(r",(\d+)\)")


@dataclass(frozen=True)
class Series:
    """What one line of the page is about, from its name. `stat` is empty for a line that is not counted."""

    stat: str = ""
    model: str = ""
    digest: str = ""
    slot: int = 0
    is_error: bool = False  # for its user; of a latency, whether the attempt failed
    is_shed: bool = False  # for its user
    outcome: Drawn = Drawn.UNDECIDED  # of a request
    of_class: str = ""  # of requests, where it is not the default one
    callers: str = ""  # the tenant, or the class, of a line that counts by these
    is_over_quota: bool = False
    is_unanswered: bool = False  # of attempts that their callers gave up: no answer had begun
    is_left: bool = False  # of streams: their callers left before the value was known


_UNCOUNTED = Series()


@dataclass
class _Arm:
    """One release's counts in one slot while a page is read."""

    routed: int = 0
    outcomes: dict[Drawn, int] = field(default_factory=dict)
    timed: int = 0
    latency_us: dict[int, int] = field(default_factory=dict)
    size_bytes: dict[int, int] = field(default_factory=dict)
    by_class: dict[str, int] = field(default_factory=dict)
    answered: int = 0
    answered_us: dict[int, int] = field(default_factory=dict)
    aborted: int = 0
    aborted_us: dict[int, int] = field(default_factory=dict)
    given_up: int = 0
    streams: dict[str, Spread] = field(default_factory=dict)

    def measure(self, name: str, more: Spread) -> None:
        self.streams[name] = self.streams.get(name, Spread()) + more

    def add(self, other: _Arm) -> None:
        self.routed += other.routed
        self.timed += other.timed
        self.answered += other.answered
        self.aborted += other.aborted
        self.given_up += other.given_up
        _add(self.aborted_us, other.aborted_us)
        _add(self.answered_us, other.answered_us)
        _add(self.outcomes, other.outcomes)
        _add(self.latency_us, other.latency_us)
        _add(self.size_bytes, other.size_bytes)
        _add(self.by_class, other.by_class)
        for name, spread in other.streams.items():
            self.measure(name, spread)

    def counters(self) -> ArmCounters:
        of = self.outcomes.get
        common, saved = of(Drawn.COMMON, 0), of(Drawn.SAVED, 0)
        failed = of(Drawn.FAILED, 0) + saved + common
        return ArmCounters(
            self.routed,
            decided=of(Drawn.ANSWERED, 0) + failed,
            failed=failed,
            saved=saved,
            common=common,
            shed=of(Drawn.SHED, 0),
            refused=of(Drawn.MISTAKE, 0),
            aborted=self.aborted,
            aborted_us=self.aborted_us,
            given_up=self.given_up,
            timed=self.timed,
            latency_us=self.latency_us or dict.fromkeys(EDGES_US, 0),
            size_bytes=self.size_bytes or dict.fromkeys(SIZE_EDGES, 0),
            by_class=self.by_class,
            answered=self.answered,
            answered_us=self.answered_us,
            streams=self.streams,
        )


def _add(to: dict[Any, int], more: Mapping[Any, int]) -> None:
    for key, count in more.items():
        to[key] = to.get(key, 0) + count


#: Requests that are no release's evidence, by what they ask for: which of the model's counts they go to.
_BESIDE = {Purpose.FORCED: "forced", Purpose.ASLEEP: "asleep", Purpose.QUESTION: "questions"}


@dataclass
class Counted:
    """One model's counts while a page is read."""

    slots: dict[int, dict[str, _Arm]] = field(default_factory=dict)
    user_requests: int = 0
    user_errors: int = 0
    user_shed: int = 0
    forced: int = 0
    asleep: int = 0
    questions: int = 0
    forced_now: int = 0
    by_tenant: dict[str, TenantCounters] = field(default_factory=dict)
    by_class: dict[str, TenantCounters] = field(default_factory=dict)

    def arm(self, one: Series) -> _Arm:
        return self.slots.setdefault(one.slot, {}).setdefault(one.digest, _Arm())

    def counters(self, gateway: str, epoch: str, read_at: datetime) -> GatewayCounters:
        whole: dict[str, _Arm] = {}
        for arms in self.slots.values():
            for digest, arm in arms.items():
                whole.setdefault(digest, _Arm()).add(arm)
        by_release = {digest: arm.counters() for digest, arm in sorted(whole.items())}
        by_slot = {
            slot: {digest: arm.counters() for digest, arm in sorted(arms.items())}
            for slot, arms in sorted(self.slots.items())
        }
        return GatewayCounters(
            gateway,
            epoch,
            read_at,
            by_release,
            self.user_requests,
            self.user_errors,
            by_slot,
            self.by_tenant,
            self.by_class,
            self.forced,
            self.asleep,
            self.user_shed,
            self.questions,
            self.forced_now,
        )


def parse(page: str, series: dict[str, Series]) -> dict[str, Counted]:
    """Counts by model, from Envoy's page in text with cumulative buckets. `series` remembers what names mean.

    Raises GatewayError("malformed").
    """
    models: dict[str, Counted] = {}
    edges: dict[str, list[int]] = {}
    for line in page.splitlines():
        name, _, buckets = line.partition(": ")
        one = series.get(name) or series.setdefault(name, _series_of(name))
        if not one.stat:
            continue
        model = models.get(one.model) or models.setdefault(one.model, Counted())
        if one.stat == "forced_now":
            model.forced_now += int(buckets)
            continue
        values = _SINCE_START.findall(buckets)
        if not values:
            if buckets == _NOTHING_YET:
                continue
            raise GatewayError("malformed", f"Envoy's statistics have a line that is no histogram: {line[:200]}")
        if one.stat in _BESIDE.values():
            setattr(model, one.stat, getattr(model, one.stat) + int(values[-1]))
            continue
        if one.stat in _EDGES:
            wanted, unit = _EDGES[one.stat]
            named = edges.get(one.stat)
            if named is None or len(named) != len(values):
                named = edges[one.stat] = [round(float(edge) * unit) for edge in _EDGE.findall(buckets)]
            found = dict(zip(named, map(int, values), strict=True))
            if one.stat in _MEASURES:
                if not found.keys() >= set(wanted):
                    continue  # a gateway that started without these edges knows no value
                count, under = int(values[-1]), {edge: found[edge] for edge in wanted}
                spread = Spread(0, {}, count, under) if one.is_left else Spread(count, under)
                model.arm(one).measure(one.stat, spread)
                continue
            counted = {edge: found.get(edge, 0) for edge in wanted}
            if one.callers:
                by = model.by_tenant if one.stat == "tenant" else model.by_class
                _count_callers(by, one, int(values[-1]), counted)
                continue
            if one.stat == "request":
                _count(model, one, int(values[-1]), counted)
                continue
            arm = model.arm(one)  # a line for each way in which attempts ended
            if one.stat == "aborted":
                _add(arm.aborted_us, counted)
                arm.aborted += int(values[-1])
                arm.given_up += int(values[-1]) * one.is_unanswered
                continue
            _add(arm.latency_us, counted)
            arm.timed += int(values[-1])
            if not one.is_error:
                _add(arm.answered_us, counted)
                arm.answered += int(values[-1])
    return models


#: Measures of streams (`ArmCounters.streams`), and what their callers waited for when they left.
_TEXTS, _LEFT = "texts", "left"
_MEASURES = frozenset({FIRST_TEXT, LARGEST_GAP, _TEXTS})
#: Histograms whose buckets count, with their edges and what a unit of Envoy's is in ours.
_EDGES = {
    "latency": (list(EDGES_US), 1000),
    "aborted": (list(EDGES_US), 1000),
    "tenant": (list(TENANT_EDGES_US), 1000),
    "class": (list(TENANT_EDGES_US), 1000),
    "request": (list(SIZE_EDGES), 1),
    FIRST_TEXT: (list(EDGES_US), 1000),
    LARGEST_GAP: (list(EDGES_US), 1000),
    _TEXTS: (list(TEXT_EDGES), 1),
}


def _count(model: Counted, one: Series, value: int, size_bytes: dict[int, int]) -> None:
    if one.digest:
        arm = model.arm(one)
        _add(arm.outcomes, {one.outcome: value})
        if one.outcome not in NOT_ROUTED:
            arm.routed += value
            _add(arm.size_bytes, size_bytes)
        if one.of_class and one.outcome in DECIDED:
            _add(arm.by_class, {one.of_class: value})
    model.user_requests += value
    model.user_errors += value * one.is_error
    model.user_shed += value * one.is_shed


def _count_callers(by: dict[str, TenantCounters], one: Series, value: int, latency_us: dict[int, int]) -> None:
    is_shed = one.outcome is Drawn.SHED
    is_answered = not (one.is_over_quota or is_shed or one.is_error)
    more = TenantCounters(
        requests=value,
        over_quota=value * one.is_over_quota,
        shed=value * is_shed,
        errors=value * one.is_error,
        latency_us=latency_us if is_answered else {},
    )
    by[one.callers] = by.get(one.callers, TenantCounters()) + more


def _callers_series(name: str) -> Series:
    """What a line counts by tenant or class; a release that is full is no error here, as it says nothing of their own requests."""
    found = _CALLERS.fullmatch(name)
    if found is None:
        return _UNCOUNTED
    answer = _answer(call_of(found["entry"]), found)
    about = Series(found["stat"], found["model"], callers=found["name"])
    if QUOTA_FLAG in answer.flags:
        return replace(about, is_over_quota=True)
    if answer.is_shed:
        return replace(about, outcome=Drawn.SHED)
    return replace(about, is_error=answer.is_failed)


def _series_of(name: str) -> Series:
    if name.startswith(("sli.tenant.", "sli.class.")):
        return _callers_series(name)
    if gauge := _FORCED_NOW.fullmatch(name):
        return Series("forced_now", gauge["model"])
    found = _NAME.fullmatch(name)
    if found is None or not (found["digest"] or found["stat"] == "request"):
        return _UNCOUNTED
    call = call_of(found["entry"])
    if found["stat"] == "request" and call.asked in _BESIDE:
        return Series(_BESIDE[call.asked], found["model"])
    if call.asked not in EVIDENCE:
        return _UNCOUNTED
    slot = int(found["slot"]) if (found["slot"] or "").isdigit() else 0
    about = (found["model"], found["digest"], slot)
    said = found["shed"] or ""
    refused = Refused.BY_GATEWAY if said.endswith(Refused.BY_GATEWAY) else said.rstrip("-")
    if found["stat"] == "latency_late":
        return _UNCOUNTED if refused else Series("latency", *about, is_error=True)
    answer = _answer(call, found)
    if found["stat"] == "latency":
        is_gone = answer.ended is Ended.ABORTED
        if found["digest"] == SPARE or found["try"] != "1" or not (is_gone or counts_for(call.asked, answer).is_timed):
            return _UNCOUNTED
        if is_gone:
            return Series("aborted", *about, is_unanswered=answer.status == 0)
        return Series("latency", *about, is_error=answer.is_failed)
    tries = int(found["tries"]) if (found["tries"] or "").isdigit() else 0
    if found["stat"] != "request":
        is_own = tries == 1 and found["by"] == found["digest"] and not refused
        return _stream_series(found["stat"], answer, about) if is_own else _UNCOUNTED
    told = {"is_diverted": tries == 1 and found["by"] != found["digest"], "by_spare": found["by"] == SPARE}
    outcome = drawn(answer, tries, refused=refused, **told)
    is_error = outcome is not Drawn.NOTHING and (answer.is_failed or answer.is_shed)
    is_shed = is_error and answer.is_shed
    return Series("request", *about, is_error=is_error, is_shed=is_shed, outcome=outcome, of_class=call.pool)


def _stream_series(stat: str, answer: Answer, about: tuple[str, str, int]) -> Series:
    """Series of a measure of first attempts.

    If the caller left, its time to the first text is known or was its wait, and its largest gap is that until it left.
    """
    if answer.ended is Ended.ABORTED:
        if stat == _LEFT and answer.stream == StreamEnd.SILENT:
            return Series(FIRST_TEXT, *about, is_left=True)
        if stat == _LEFT and answer.stream != StreamEnd.UNREAD:
            return Series(LARGEST_GAP, *about)
        return Series(stat, *about) if stat == FIRST_TEXT else _UNCOUNTED
    return Series(stat, *about) if stat != _LEFT and answer.ended in (Ended.ANSWERED, Ended.FAILED) else _UNCOUNTED


def _answer(call: Call, found: re.Match[str]) -> Answer:
    code, grpc = found["code"] or "", found["grpc"] or ""
    status, flags = int(code) if code.isdigit() else 0, frozenset((found["flags"] or "").split(","))
    return Answer.of(call.protocol, status, int(grpc) if grpc.isdigit() else None, flags, found["end"] or "")
