"""The outcome table: how a request counts for a release.

The gateway names each request by its route. The name and the end of the request decide three things: whether the attempt is
evidence, whether it is timed, and whether it counts as routed. Only an inference that the model answered or failed is evidence.

    ended          is                                               evidence  timed  routed
    answered       the model's answer                               yes       yes    yes
    failed         5xx, a failure's gRPC status, a cut connection,  bad       yes    yes
                   a stream with an error or without its end
    late           no answer within the time of an attempt          bad       yes    yes
    shed           refused because too many were in flight, also    no        no     yes
                   by a stream's first event
    aborted        given up by its caller                           no        apart  yes
    mistake        the caller's own: 4xx, INVALID_ARGUMENT, ...     no        no     no

The time of an attempt that its caller gave up is kept apart: it shows that an answer took longer, and nothing of how long. All
other requests count for no release: questions (readiness, metadata, configuration, statistics), forced calls, and the
gateway's own answers and refusals. Mistakes are counted apart: the guard `refused` compares their rates.

A stream that came to its own end has that outcome, also if its caller left at that moment. The caller of any other stream leaves
evidence of time alone: its first text and its largest gap so far, or that the first text was later than its wait.

Servers word their answers differently. The words of a server kind are a value (`registry.core.kinds`), and the gateway's
response filter is written from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

HTTP, GRPC = "http", "grpc"


class Purpose(StrEnum):
    """The purpose of a request."""

    INFERENCE = "split"
    STREAM = "stream"
    QUESTION = "question"
    FORCED = "forced"
    ASLEEP = "model_asleep"
    NOTHING = ""  # the gateway answers or refuses the request itself


class Ended(StrEnum):
    """The end of one attempt."""

    ANSWERED = "answered"
    MISTAKE = "mistake"
    SHED = "shed"
    LATE = "late"
    FAILED = "failed"
    ABORTED = "aborted"


class StreamEnd(StrEnum):
    """The end of a stream whose events the gateway read."""

    SILENT = "silent"  # without text so far
    TEXT = "text"  # no end so far
    DONE = "done"
    BUSY = "busy"  # an error before any text: the server has no capacity
    ERROR = "error"
    UNREAD = "unread"  # an answer without events that the gateway reads
    NO_END = "no_end"  # the answer ended without the event that ends a whole stream


class Drawn(StrEnum):
    """The outcome of a request for the release that the split drew."""

    ANSWERED = "answered"
    FAILED = "failed"  # its first attempt, without a conclusive second one
    SAVED = "saved"  # its first attempt, not the second one
    COMMON = "common"  # both
    MISTAKE = "mistake"
    SHED = "shed"
    UNDECIDED = "undecided"
    NOTHING = "nothing"  # the gateway refused it before any attempt


#: Requests with a good or bad attempt.
DECIDED: Final = frozenset({Drawn.ANSWERED, Drawn.FAILED, Drawn.SAVED, Drawn.COMMON})
#: Requests that count for no release.
NOT_ROUTED: Final = frozenset({Drawn.MISTAKE, Drawn.NOTHING})
#: In the place of a digest: the server of a candidate that stands in for stable. Its attempts count for no release.
SPARE: Final = "spare"
#: Purposes for which the split draws a release.
EVIDENCE: Final = frozenset({Purpose.INFERENCE, Purpose.STREAM})


# --- the names of routes ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """Purpose, protocol ("" if the name has none) and class of a route's requests."""

    asked: Purpose
    protocol: str = ""
    pool: str = ""


def route_name(asked: Purpose, protocol: str, pool: str = "") -> str:
    """Returns the name by which a route's requests are counted: `split`, `split_grpc`, `split-batch`, `question_grpc`, ..."""
    name = f"{asked}_{GRPC}" if protocol == GRPC else f"{asked}"
    return f"{name}-{pool}" if pool else name


def call_of(name: str) -> Call:
    """Returns the inverse of `route_name`; the purpose NOTHING for any other name."""
    head, _, pool = name.partition("-")
    return _CALLS[head, pool] if (head, pool) in _CALLS else _call(head, pool)


def _call(head: str, pool: str) -> Call:
    known = _NAMES.get(head)
    return Call(*known, pool) if known else Call(Purpose.NOTHING)


_NAMES: Final = {route_name(asked, one): (asked, one) for asked in Purpose if asked for one in (HTTP, GRPC)}
_NAMES[Purpose.ASLEEP] = (Purpose.ASLEEP, "")  # the gateway answers both protocols under one name
_CALLS: Final[Mapping[tuple[str, str], Call]] = {(head, ""): Call(*known) for head, known in _NAMES.items()}


# --- one attempt ------------------------------------------------------------------------------------------------------

#: UNKNOWN, DEADLINE_EXCEEDED, ABORTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS: the server's fault, not the caller's.
GRPC_FAILURES: Final = frozenset({2, 4, 10, 12, 13, 14, 15})
#: INVALID_ARGUMENT, ALREADY_EXISTS, PERMISSION_DENIED, FAILED_PRECONDITION, OUT_OF_RANGE, UNAUTHENTICATED: the caller's own doing.
GRPC_REFUSED: Final = frozenset({3, 6, 7, 9, 11, 16})
#: The last status that gRPC defines. Any other number is a server's fault.
_LAST_GRPC: Final = 16
GRPC_CANCELLED, GRPC_LATE, GRPC_NOT_FOUND, GRPC_FULL, GRPC_UNAVAILABLE = 1, 4, 5, 8, 14
NOT_FOUND, LATE, FULL, UNAVAILABLE = 404, 504, 429, 503

#: Response flags of an attempt or request that got no whole answer, through no doing of the caller.
#: Source: Envoy's access log documentation, %RESPONSE_FLAGS%.
CUT_FLAGS: Final = frozenset({"UF", "UC", "UR", "UT", "UO", "UH", "UPE", "NC", "LR", "OM", "UMSDR", "SI"})
#: Too many requests in flight; quota used up; time-out; the caller left; the connection stood still.
SHED_FLAG, QUOTA_FLAG, LATE_FLAG, GONE_FLAG, IDLE_FLAG = "UO", "RL", "UT", "DC", "SI"
#: The caller closed its connection, or reset its stream.
_LEFT: Final = frozenset({GONE_FLAG, "DR"})
_BAD_ENDS: Final = frozenset({StreamEnd.ERROR, StreamEnd.NO_END})
_OWN_ENDS: Final = _BAD_ENDS | {StreamEnd.DONE}
#: The gateway's answers to requests that it sheds.
_SHED_STATUS, _SHED_GRPC = frozenset({0, FULL, UNAVAILABLE}), frozenset({GRPC_FULL, GRPC_UNAVAILABLE})


def is_failure(*, http_status: int, grpc_status: int | None, was_cut: bool) -> bool:
    """Whether an attempt failed through the server's fault.

    `grpc_status` is None for plain HTTP; `was_cut`: no whole answer came (refused, reset, timed out).
    """
    if was_cut or http_status >= 500:
        return True
    return grpc_status in GRPC_FAILURES or (grpc_status is not None and grpc_status > _LAST_GRPC)


@dataclass(frozen=True)
class Answer:
    """The end of an attempt or a request. `status` 0: no answer came. `grpc` is None over HTTP. `stream`: a `StreamEnd`, or else no
    event was read."""

    status: int
    grpc: int | None = None
    flags: frozenset[str] = frozenset()
    stream: str = ""

    @classmethod
    def of(
        cls, protocol: str, status: int, grpc: int | None = None, flags: frozenset[str] = frozenset(), stream: str = ""
    ) -> Answer:
        """A gRPC status counts on gRPC calls only: over HTTP any server or proxy may write one."""
        return cls(status, None if protocol == HTTP else grpc, flags, stream)

    @property
    def ended(self) -> Ended:
        if self.is_shed:
            return Ended.SHED
        if self.is_aborted:
            return Ended.ABORTED
        if self.is_failed:
            return Ended.LATE if self.is_late else Ended.FAILED
        return Ended.MISTAKE if self.is_mistake else Ended.ANSWERED

    @property
    def is_failed(self) -> bool:
        if self.stream in _BAD_ENDS:
            return True
        return is_failure(http_status=self.status, grpc_status=self.grpc, was_cut=not CUT_FLAGS.isdisjoint(self.flags))

    @property
    def is_aborted(self) -> bool:
        """Given up by its caller, or by the gateway when its whole time was over: the outcome is unknown."""
        if self.stream in _OWN_ENDS:
            return False
        is_silent = self.status == 0 and CUT_FLAGS.isdisjoint(self.flags)
        return is_silent or self.grpc == GRPC_CANCELLED or not _LEFT.isdisjoint(self.flags)

    @property
    def is_shed(self) -> bool:
        """Refused because too many were in flight: by the gateway before any server saw it, or by a server's full queue."""
        if self.status == FULL or self.grpc == GRPC_FULL or self.stream == StreamEnd.BUSY:
            return True
        return SHED_FLAG in self.flags and (self.status in _SHED_STATUS or self.grpc in _SHED_GRPC)

    @property
    def is_late(self) -> bool:
        """No server answered before the deadline."""
        return LATE_FLAG in self.flags or self.status == LATE or self.grpc == GRPC_LATE

    @property
    def is_early(self) -> bool:
        """A server ended it at its caller's own deadline: how long it took is the caller's choice."""
        return self.grpc == GRPC_LATE and CUT_FLAGS.isdisjoint(self.flags)

    @property
    def is_unknown(self) -> bool:
        """A version or model that the server does not have: worth a second attempt, since its process may have died."""
        return self.status == NOT_FOUND or self.grpc == GRPC_NOT_FOUND

    @property
    def is_mistake(self) -> bool:
        return 400 <= self.status < 500 or self.grpc in GRPC_REFUSED or self.grpc == GRPC_NOT_FOUND

    @property
    def is_turned_away(self) -> bool:
        """Whether the gateway refused the request, or its caller stopped sending, before any attempt."""
        return SHED_FLAG not in self.flags and (
            IDLE_FLAG in self.flags or 400 <= self.status < 500 or self.grpc in {*GRPC_REFUSED, GRPC_FULL}
        )


@dataclass(frozen=True)
class CountsFor:
    """The counts to which an attempt or request belongs."""

    is_evidence: bool
    is_timed: bool
    is_routed: bool


_NONE: Final = CountsFor(False, False, False)
_COUNTS_FOR: Final[Mapping[Ended, CountsFor]] = {
    Ended.ANSWERED: CountsFor(True, True, True),
    Ended.FAILED: CountsFor(True, True, True),
    Ended.LATE: CountsFor(True, True, True),
    Ended.SHED: CountsFor(False, False, True),
    Ended.ABORTED: CountsFor(False, False, True),
    Ended.MISTAKE: _NONE,
}


def counts_for(asked: Purpose, answer: Answer) -> CountsFor:
    """Returns the counts to which this attempt belongs."""
    if asked not in EVIDENCE:
        return _NONE
    found = _COUNTS_FOR[answer.ended]
    return replace(found, is_timed=False) if answer.is_early else found


# --- a request and its attempts ---------------------------------------------------------------------------------------


class Refused(StrEnum):
    """The reason why a request's first attempt has no outcome of its own."""

    BY_GATEWAY = "gateway"  # the candidate was at its bound
    BY_SERVER = "server"  # the candidate's queue was full
    BY_CALLER = "deadline"  # the caller's own deadline is shorter than any that a release is held to


def drawn(answer: Answer, tries: int, *, refused: str = "", is_diverted: bool = False, by_spare: bool = False) -> Drawn:
    """Returns the outcome for the release that the split drew. `answer` is that of the last of `tries` attempts.

    A second attempt follows only a first one that failed, or that did not know the model. One that timed out is
    inconclusive, whichever release it was for: the first attempt may have left it too little time.
    `is_diverted`: another release got the only attempt. `by_spare`: the candidate stood in for stable, which accepted no connection.
    """
    if tries == 0 and answer.is_turned_away:
        return Drawn.NOTHING
    if by_spare:
        return Drawn.UNDECIDED
    if refused in (Refused.BY_GATEWAY, Refused.BY_SERVER):
        return Drawn.SHED
    ended = answer.ended
    if refused == Refused.BY_CALLER and ended is Ended.LATE:
        return Drawn.UNDECIDED
    if tries >= 2:
        return _second(answer, ended)
    if ended is Ended.SHED:
        return Drawn.SHED
    if tries == 0 or is_diverted or ended is Ended.ABORTED:
        return Drawn.UNDECIDED
    if ended is Ended.MISTAKE:
        return Drawn.MISTAKE
    return Drawn.FAILED if ended in (Ended.FAILED, Ended.LATE) else Drawn.ANSWERED


def _second(answer: Answer, ended: Ended) -> Drawn:
    if answer.is_unknown and ended is Ended.MISTAKE:
        return Drawn.MISTAKE  # neither release has what the caller named
    if ended in (Ended.SHED, Ended.LATE, Ended.ABORTED):
        return Drawn.FAILED
    return Drawn.COMMON if ended in (Ended.FAILED, Ended.MISTAKE) else Drawn.SAVED
