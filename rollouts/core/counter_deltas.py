"""From readings of cumulative counters to what happened in between, for each arm, over all gateways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from serving.traffic.core.routes import SLOTS

ERRORS = "errors"  # counted for every rollout, guarded or not
#: Counters beside those of the guards: failed requests that a second attempt on stable answered, and those that failed again;
#: requests that were shed; and first attempts that have a latency, where these are not simply the attempts.
SAVED, COMMON, SHED, TIMED = "saved", "common", "shed", "timed"
#: Requests that a release's server refused as their caller's mistake: in no other count.
REFUSED = "refused"
#: First attempts that their callers gave up before an answer began. With the name of a threshold behind it: attempts that were
#: given up later than that threshold, so that their answers are known to be slow there.
GIVEN_UP = "given_up"
#: Requests that forced a release of the model: those that began and those that ended. The same for both arms.
FORCED, FORCED_ENDED = "forced", "forced_ended"
#: Until answers come as steadily as requests do, more failures than successes have ended: so many times the longest usual
#: answer is waited for after a change of weight, room for a candidate that is half as fast again; shorter ones than this cost
#: no tick, and nothing is waited for longer than the last, in seconds: a stream may stay open for ever.
SETTLING, SHORT_S, MOST_S = 1.5, 0.5, 180.0


@dataclass(frozen=True)
class Counts:
    """Attempts of one arm, user requests that the split drew for it, and what else was counted, by name.

    An attempt is a request's first one, made on this arm's servers and decided, counted when its request ends. `bad` has the
    bad ones for each guard's name, and the counters beside them.
    """

    attempts: int = 0
    routed: int = 0
    bad: Mapping[str, int] = field(default_factory=dict)

    def timed_at(self, point: str) -> int:
        """Returns the number of attempts of which it is known whether they took longer than this threshold."""
        return self.bad.get(TIMED, self.attempts) + self.bad.get(given_up_after(point), 0)

    def measured_at(self, point: str, measure: str) -> int:
        """Returns the number of streams of which it is known whether this measure was over the threshold."""
        return self.bad.get(measure, 0) + self.bad.get(given_up_after(point), 0)

    def __add__(self, other: Counts) -> Counts:
        bad = dict(self.bad)
        for name, count in other.bad.items():
            bad[name] = bad.get(name, 0) + count
        return Counts(self.attempts + other.attempts, self.routed + other.routed, bad)

    def since(self, before: Counts) -> Counts:
        """What was added since; nothing where a counter fell, because then nobody can tell.

        A gateway that restarted is known by its epoch. Taking a fall for a new start would count all its past again.
        """
        if self.fell(before):
            return Counts()
        return Counts(
            self.attempts - before.attempts,
            self.routed - before.routed,
            {name: count - before.bad.get(name, 0) for name, count in self.bad.items()},
        )

    def fell(self, before: Counts) -> bool:
        """Whether any of the counters is lower than it was."""
        if self.attempts < before.attempts or self.routed < before.routed:
            return True
        return any(count < before.bad.get(name, 0) for name, count in self.bad.items())

    def to_json(self) -> dict[str, Any]:
        return {"attempts": self.attempts, "routed": self.routed, "bad": dict(self.bad)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Counts:
        return cls(value["attempts"], value["routed"], dict(value["bad"]))


def given_up_after(point: str) -> str:
    """Returns the name of the counter of attempts that were given up later than this threshold."""
    return f"{GIVEN_UP}:{point}"


@dataclass(frozen=True)
class Arms:
    candidate: Counts = field(default_factory=Counts)
    stable: Counts = field(default_factory=Counts)

    def __add__(self, other: Arms) -> Arms:
        return Arms(self.candidate + other.candidate, self.stable + other.stable)

    def to_json(self) -> dict[str, Any]:
        return {"candidate": self.candidate.to_json(), "stable": self.stable.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Arms:
        return cls(Counts.from_json(value["candidate"]), Counts.from_json(value["stable"]))


@dataclass(frozen=True)
class Reading:
    """What one gateway had counted at `at` (seconds), since its `epoch` began.

    `candidate` and `stable` are requests that began under the weight that this gateway follows now, which `slot` names; `others`
    is what stands under the other slots' names (of both arms), from earlier times: the difference when the slot changes is to
    that. `answer_s` is the longest usual answer here when this slot was first read, 0 where it is not known; `since`, when
    that was. `whole` is all that both arms ever counted, whatever weight it began under: for what is told, not for what is judged.
    """

    epoch: str
    at: float
    candidate: Counts
    stable: Counts
    user_requests: int = 0
    user_errors: int = 0
    slot: int = 0
    others: Mapping[int, tuple[Counts, Counts]] = field(default_factory=dict)
    answer_s: float = 0.0
    since: float | None = None
    whole: tuple[Counts, Counts] | None = None
    is_forced: bool = False  # of a difference: a release was forced in between

    @property
    def is_settled(self) -> bool:
        """Whether answers come as steadily as requests, so that the share of bad ones among what ended is the share of all."""
        if self.answer_s < SHORT_S or self.since is None:
            return True
        return self.at - self.since >= min(SETTLING * self.answer_s, MOST_S)

    def after(self, before: Reading | None) -> Reading:
        """With `since` filled in, for the next difference, where it is not known.

        What is usual was measured before the slot began: a candidate that hangs must not lengthen its own grace. A gateway that
        began anew knows nothing yet, and answers take as long as before.
        """
        if self.since is not None:
            return self
        if before is None:
            return replace(self, since=self.at)
        if before.epoch == self.epoch and before.slot == self.slot:
            return replace(self, since=before.since, answer_s=before.answer_s or self.answer_s)
        return replace(self, since=self.at, answer_s=self.answer_s or before.answer_s)

    def base(self, before: Reading) -> tuple[Counts, Counts] | None:
        """What both arms had counted under this slot's name at the reading before; None where that was not read."""
        if before.slot == self.slot:
            return before.candidate, before.stable
        return before.others.get(self.slot)

    def to_json(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "at": self.at,
            "candidate": self.candidate.to_json(),
            "stable": self.stable.to_json(),
            "user": [self.user_requests, self.user_errors],
            "slot": [self.slot, self.since, self.answer_s],
            "others": {
                str(slot): [arm.to_json() for arm in arms]
                for slot, arms in self.others.items()
                if any(arm.routed for arm in arms)
            },
            **({"whole": [arm.to_json() for arm in self.whole]} if self.whole else {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Reading:
        arms = (Counts.from_json(value["candidate"]), Counts.from_json(value["stable"]))
        slot, since, answer_s, *_ = value.get("slot", (0, None, 0.0))
        users, errors = value["user"]
        others = {one: (Counts(), Counts()) for one in range(SLOTS) if one != slot}
        for one, (candidate, stable) in value.get("others", {}).items():
            others[int(one)] = (Counts.from_json(candidate), Counts.from_json(stable))
        told = [Counts.from_json(one) for one in value.get("whole", ())]
        whole = (told[0], told[1]) if told else None
        return cls(value["epoch"], value["at"], *arms, users, errors, slot, others, answer_s, since, whole)


def difference(before: Reading | None, now: Reading) -> Reading:
    """What happened between two readings of one gateway, as a reading whose counts are differences.

    Nothing for a gateway that was never read: its past is not this rollout's. Everything for a new epoch: the
    gateway began counting after the last reading. Nothing of the arms where nobody knows what stood under the slot's name.
    """
    now = replace(now, is_forced=_was_forced(before, now)) if FORCED in now.candidate.bad else now
    if before is None or (
        before.candidate.bad and REFUSED in now.candidate.bad and REFUSED not in before.candidate.bad
    ):
        # Never read, or by a version that counted otherwise.
        whole = (Counts(), Counts()) if now.whole else None
        return replace(now, candidate=Counts(), stable=Counts(), user_requests=0, user_errors=0, whole=whole)
    if before.epoch != now.epoch:
        return now
    base = now.base(before)
    return replace(
        now,
        candidate=Counts() if base is None else now.candidate.since(base[0]),
        stable=Counts() if base is None else now.stable.since(base[1]),
        user_requests=max(0, now.user_requests - before.user_requests),
        user_errors=max(0, now.user_errors - before.user_errors),
        whole=_whole(before, now),
    )


def _was_forced(before: Reading | None, now: Reading) -> bool:
    """Whether a forced request ran between two readings: one began or ended, or is under way."""
    at = now.candidate.bad
    had = before.candidate.bad if before is not None and before.epoch == now.epoch else {}
    return at[FORCED] != at[FORCED_ENDED] or any(at[one] != had.get(one, 0) for one in (FORCED, FORCED_ENDED))


def _whole(before: Reading, now: Reading) -> tuple[Counts, Counts] | None:
    if now.whole is None or before.whole is None:
        return (Counts(), Counts()) if now.whole else None
    return now.whole[0].since(before.whole[0]), now.whole[1].since(before.whole[1])


def has_lost(before: Reading, now: Reading) -> bool:
    """Whether counts were lost in between: the gateway began anew, its counters fell, or a slot was never read."""
    base = now.base(before)
    if before.epoch != now.epoch or base is None:
        return True
    return now.candidate.fell(base[0]) or now.stable.fell(base[1])
