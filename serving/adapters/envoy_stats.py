"""What an Envoy's page of statistics says: counts by model, release and slot, from names that `serving.control_plane.listener` gives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from serving.core.buckets import EDGES_US, SIZE_EDGES, TENANT_EDGES_US, is_failure
from serving.ports import ArmCounters, GatewayCounters, GatewayError, TenantCounters

#: Response flags of an attempt or request that got no whole answer, through no doing of the caller.
#: Source: Envoy's access log documentation, %RESPONSE_FLAGS%.
CUT_FLAGS = frozenset({"UF", "UC", "UR", "UT", "UO", "UH", "UPE", "NC", "LR", "OM", "UMSDR", "SI"})
#: Refused because too many were in flight. No failure of a release.
SHED_FLAGS = frozenset({"UO"})
#: Refused because its tenant's quota was used up: the caller's own doing, before any release was asked.
QUOTA_FLAG = "RL"
#: The time of an attempt, or of the whole request, was over.
LATE_FLAG = "UT"
#: The caller went away.
GONE_FLAG = "DC"
#: Nothing came or went for too long.
IDLE_FLAG = "SI"
#: How a gateway answers what it sheds, and what a server's own full queue reads as (`response_filters`), without any flag.
SHED_CODES, SHED_GRPC = frozenset({429, 503}), frozenset({8, 14})
FULL_CODE, FULL_GRPC = 429, 8
#: What refused a request's first attempt before stable was asked in its place: shed, whatever came of that.
HANDED_ON = frozenset({"gateway", "server"})
#: What a release says of a version or model that it does not have, and how a time-out reads.
NOT_FOUND, GRPC_NOT_FOUND = 404, 5
LATE_CODE, LATE_GRPC = 504, 4
#: INVALID_ARGUMENT, PERMISSION_DENIED, FAILED_PRECONDITION, OUT_OF_RANGE, UNAUTHENTICATED: the caller's own doing.
GRPC_REFUSED = frozenset({3, 7, 9, 11, 16})

_NAME = re.compile(
    r"sli\.(?P<stat>latency|latency_late|request|size)\.model\.(?P<model>.+)\.digest\.(?P<digest>[^.]*)\.entry\.(?P<entry>[^.]*)"
    r"(?:\.try\.(?P<try>[^.]*))?(?:\.slot\.(?P<slot>[^.]*))?(?:\.by\.(?P<by>[^.]*)\.tries\.(?P<tries>[^.]*))?"
    r"(?:\.shed\.(?P<shed>[^.]*))?"
    r"(?:\.code\.(?P<code>[^.]*)\.grpc\.(?P<grpc>[^.]*))?(?:\.flags\.(?P<flags>.*))?"
)
_CALLERS = re.compile(
    r"sli\.(?P<stat>tenant|class)\.model\.(?P<model>.+)\.(?P=stat)\.(?P<name>[^.]*)\.entry\.[^.]*\.code\.(?P<code>[^.]*)\.grpc\.(?P<grpc>[^.]*)"
    r"\.flags\.(?P<flags>.*)"
)
_EDGE = re.compile(r"B([\d.e+]+)\(")
#: Envoy's text for a histogram's buckets before its first flush, such as that of a failure seen for the first time.
_NOTHING_YET = "No recorded values"
_SINCE_START = re.compile(r",(\d+)\)")


class _Outcome(StrEnum):
    """What a request was for the release that the split drew."""

    ANSWERED = "answered"
    FAILED = "failed"  # its first attempt, without a conclusive second one
    SAVED = "saved"  # its first attempt, not the second one
    COMMON = "common"  # both
    SHED = "shed"
    UNDECIDED = "undecided"


_DECIDED = frozenset({_Outcome.ANSWERED, _Outcome.FAILED, _Outcome.SAVED, _Outcome.COMMON})


@dataclass(frozen=True)
class Series:
    """What one line of the page is about, from its name. `stat` is empty for a line that is not counted."""

    stat: str = ""
    model: str = ""
    digest: str = ""
    slot: int = 0
    is_error: bool = False  # for its user; of a latency, whether the attempt failed
    is_shed: bool = False  # for its user
    outcome: _Outcome = _Outcome.UNDECIDED
    of_class: str = ""  # of requests, where it is not the default one
    callers: str = ""  # the tenant, or the class, of a line that counts by these
    is_over_quota: bool = False


_UNCOUNTED = Series()


@dataclass
class _Arm:
    """One release's counts in one slot while a page is read."""

    routed: int = 0
    outcomes: dict[_Outcome, int] = field(default_factory=dict)
    timed: int = 0
    latency_us: dict[int, int] = field(default_factory=dict)
    size_bytes: dict[int, int] = field(default_factory=dict)
    by_class: dict[str, int] = field(default_factory=dict)
    answered: int = 0
    answered_us: dict[int, int] = field(default_factory=dict)

    def add(self, other: _Arm) -> None:
        self.routed += other.routed
        self.timed += other.timed
        self.answered += other.answered
        _add(self.answered_us, other.answered_us)
        _add(self.outcomes, other.outcomes)
        _add(self.latency_us, other.latency_us)
        _add(self.size_bytes, other.size_bytes)
        _add(self.by_class, other.by_class)

    def counters(self) -> ArmCounters:
        of = self.outcomes.get
        common, saved = of(_Outcome.COMMON, 0), of(_Outcome.SAVED, 0)
        failed = of(_Outcome.FAILED, 0) + saved + common
        return ArmCounters(
            self.routed,
            decided=of(_Outcome.ANSWERED, 0) + failed,
            failed=failed,
            saved=saved,
            common=common,
            shed=of(_Outcome.SHED, 0),
            timed=self.timed,
            latency_us=self.latency_us or dict.fromkeys(EDGES_US, 0),
            size_bytes=self.size_bytes or dict.fromkeys(SIZE_EDGES, 0),
            by_class=self.by_class,
            answered=self.answered,
            answered_us=self.answered_us,
        )


def _add(to: dict[Any, int], more: Mapping[Any, int]) -> None:
    for key, count in more.items():
        to[key] = to.get(key, 0) + count


#: Requests that the split had no part in, by the name of their route: which of the model's counts they go to.
_BESIDE = {"forced": "forced", "model_asleep": "asleep"}


@dataclass
class Counted:
    """One model's counts while a page is read."""

    slots: dict[int, dict[str, _Arm]] = field(default_factory=dict)
    user_requests: int = 0
    user_errors: int = 0
    user_shed: int = 0
    forced: int = 0
    asleep: int = 0
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
        values = _SINCE_START.findall(buckets)
        if not values:
            if buckets == _NOTHING_YET:
                continue
            raise GatewayError("malformed", f"Envoy's statistics have a line that is no histogram: {line[:200]}")
        if one.stat == "forced":
            model.forced += int(values[-1])
            continue
        if one.stat == "asleep":
            model.asleep += int(values[-1])
            continue
        if one.stat in _EDGES:
            wanted, unit = _EDGES[one.stat]
            named = edges.get(one.stat)
            if named is None or len(named) != len(values):
                named = edges[one.stat] = [round(float(edge) * unit) for edge in _EDGE.findall(buckets)]
            found = dict(zip(named, map(int, values), strict=True))
            counted = {edge: found.get(edge, 0) for edge in wanted}
            if one.callers:
                by = model.by_tenant if one.stat == "tenant" else model.by_class
                _count_callers(by, one, int(values[-1]), counted)
                continue
            arm = model.arm(one)
            if one.stat == "latency":  # a line for each way in which attempts ended
                _add(arm.latency_us, counted)
                arm.timed += int(values[-1])
                if not one.is_error:
                    _add(arm.answered_us, counted)
                    arm.answered += int(values[-1])
            else:
                _add(arm.size_bytes, counted)  # a line for each class of requests
            continue
        _count(model, one, int(values[-1]))
    return models


#: Histograms whose buckets count, with their edges and what a unit of Envoy's is in ours.
_EDGES = {
    "latency": (list(EDGES_US), 1000),
    "tenant": (list(TENANT_EDGES_US), 1000),
    "class": (list(TENANT_EDGES_US), 1000),
    "size": (list(SIZE_EDGES), 1),
}


def _count(model: Counted, one: Series, value: int) -> None:
    if one.digest:
        arm = model.arm(one)
        arm.routed += value
        _add(arm.outcomes, {one.outcome: value})
        if one.of_class and one.outcome in _DECIDED:
            _add(arm.by_class, {one.of_class: value})
    model.user_requests += value
    model.user_errors += value * one.is_error
    model.user_shed += value * one.is_shed


def _count_callers(by: dict[str, TenantCounters], one: Series, value: int, latency_us: dict[int, int]) -> None:
    is_shed = one.outcome is _Outcome.SHED
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
    answer = _Answer.of(found["code"], found["grpc"], found["flags"])
    about = Series(found["stat"], found["model"], callers=found["name"])
    if QUOTA_FLAG in answer.flags:
        return replace(about, is_over_quota=True)
    if answer.is_shed:
        return replace(about, outcome=_Outcome.SHED)
    return replace(about, is_error=answer.is_failed)


def _series_of(name: str) -> Series:
    if name.startswith(("sli.tenant.", "sli.class.")):
        return _callers_series(name)
    found = _NAME.fullmatch(name)
    if found is None or not (found["digest"] or found["stat"] == "request"):
        return _UNCOUNTED
    entry, _, of_class = found["entry"].partition("-")
    if found["stat"] == "request" and entry in _BESIDE:
        return Series(_BESIDE[entry], found["model"])
    if entry != "split":
        return _UNCOUNTED
    stat, slot = found["stat"], int(found["slot"]) if (found["slot"] or "").isdigit() else 0
    about = (stat, found["model"], found["digest"], slot)
    if stat == "size":
        return Series(*about)
    if stat == "latency_late":
        return Series("latency", *about[1:], is_error=True)
    answer = _Answer.of(found["code"] or "", found["grpc"] or "", found["flags"] or "")
    if stat == "latency":  # what no server saw, or none took, is no measure of how fast they are
        is_counted = found["try"] == "1" and not answer.is_shed
        return Series(*about, is_error=answer.is_failed) if is_counted else _UNCOUNTED
    tries = int(found["tries"]) if (found["tries"] or "").isdigit() else 0
    if tries == 0 and answer.is_turned_away:
        return Series(*about)
    outcome = _outcome(answer, tries, is_diverted=tries == 1 and found["by"] != found["digest"])
    if found["shed"] in HANDED_ON:
        outcome = _Outcome.SHED
    is_error = answer.is_failed or answer.is_shed
    return Series(*about, is_error=is_error, is_shed=answer.is_shed, outcome=outcome, of_class=of_class)


@dataclass(frozen=True)
class _Answer:
    """How an attempt or a request ended."""

    code: int
    grpc: int | None
    flags: frozenset[str]

    @classmethod
    def of(cls, code: str, grpc: str, flags: str) -> _Answer:
        return cls(
            int(code) if code.isdigit() else 0, int(grpc) if grpc.isdigit() else None, frozenset(flags.split(","))
        )

    @property
    def is_failed(self) -> bool:
        return is_failure(http_status=self.code, grpc_status=self.grpc, was_cut=not CUT_FLAGS.isdisjoint(self.flags))

    @property
    def is_cancelled(self) -> bool:
        """Given up by its caller, or by the gateway when its whole time was over: the outcome is unknown."""
        return GONE_FLAG in self.flags or (self.code == 0 and CUT_FLAGS.isdisjoint(self.flags))

    @property
    def is_shed(self) -> bool:
        """Refused because too many were in flight: by the gateway, before any server saw it, or by a server whose queue was full."""
        if self.code == FULL_CODE or self.grpc == FULL_GRPC:
            return True
        return not SHED_FLAGS.isdisjoint(self.flags) and (
            self.code == 0 or self.code in SHED_CODES or self.grpc in SHED_GRPC
        )

    @property
    def is_turned_away(self) -> bool:
        """Whether a request that was tried nowhere was refused by the gateway for what its caller sent, or stopped sending."""
        return SHED_FLAGS.isdisjoint(self.flags) and (
            IDLE_FLAG in self.flags or 400 <= self.code < 500 or self.grpc in {*GRPC_REFUSED, FULL_GRPC}
        )

    @property
    def is_late(self) -> bool:
        """No server answered before the deadline."""
        return LATE_FLAG in self.flags or self.code == LATE_CODE or self.grpc == LATE_GRPC

    @property
    def is_refused(self) -> bool:
        """Whether the server found the caller at fault; what it does not have is no fault of anybody's."""
        return (400 <= self.code < 500 and self.code not in {NOT_FOUND, *SHED_CODES}) or self.grpc in GRPC_REFUSED


def _outcome(answer: _Answer, tries: int, *, is_diverted: bool) -> _Outcome:
    """A second attempt follows only a first one that failed, or that did not know the model.

    One that timed out is inconclusive, whichever release it was for: the first attempt may have left it too little time.
    """
    if tries >= 2:
        is_untold = answer.is_shed or answer.is_late
        is_unknown = answer.code == NOT_FOUND or answer.grpc == GRPC_NOT_FOUND
        if (answer.is_failed and not is_untold) or answer.is_refused:
            return _Outcome.COMMON
        if is_untold or answer.is_cancelled:
            return _Outcome.FAILED
        return _Outcome.ANSWERED if is_unknown else _Outcome.SAVED
    if answer.is_shed:
        return _Outcome.SHED
    if tries == 0 or is_diverted or answer.is_cancelled:
        return _Outcome.UNDECIDED
    return _Outcome.FAILED if answer.is_failed else _Outcome.ANSWERED
