"""How a rollout's ticks are kept: a compact row each, some rows a block, old blocks joined into coarser ones.

A block's `ticks` is a JSON list. An object in it tells what holds from there on (see `TickContext`; the first object tells all
that is not its default, the next ones what changed); a list in it is a row:

    [ticks, ms since the block began, ms from the tick to its reading or null, candidate's attempts, routed, bad…,
     stable's attempts, routed, bad…]

with zeros at its end left out, and, where a guard counts elsewhere, an object at its end: {guard: [candidate's attempts,
bad, stable's attempts, bad]}. The names of the bad counters are in the object before. Joining adds rows up, so that sums
stay exact and time grows coarse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from rollouts.core.counter_deltas import Arms, Counts
from rollouts.core.lifecycle import RolloutState
from rollouts.core.rules.table import INPUTS

#: A block holds about so many rows, of one tick each while it is young.
BLOCK_ROWS = 15
#: A rollout keeps no more blocks than this.
MOST_BLOCKS = 500


@dataclass(frozen=True)
class TickContext:
    """What held for a tick. Instants are seconds since the epoch (UTC)."""

    state: str = ""
    step_index: int = -1
    weight_bp: int = 0
    paused_in: str = ""
    is_acknowledged: bool = True
    step_started_at: float | None = None
    is_promoting: bool = False
    promote_now: bool = False
    problem: str = ""
    lost: str = (
        ""  # the arms without a serving server: "", candidate, stable, both. Of a displaced stable release likewise
    )
    server_since: float | None = None  # when the candidate's newest server came
    hardware: str = ""
    is_settling: bool = False  # answers were still on their way since the last change of weight
    room: Mapping[str, Any] = field(default_factory=dict)  # of `Room`; empty where nothing of it was checked
    inputs: Mapping[str, Any] = field(default_factory=dict)  # by rule, as JSON: facts for it alone
    look: int = 1  # as `Desired.look`


_FIELDS = tuple(one.name for one in fields(TickContext))
#: By name in the ticks that older versions recorded: the rule, and the field of what it was told.
_EARLIER = {earlier: (one.name, field) for one in INPUTS for field, earlier in one.earlier.items()}


@dataclass(frozen=True)
class TickRecord:
    """What happened in `ticks` ticks, the last of which was `tick` at `at`. `read_at`: None where nothing could be read."""

    mark: TickContext
    tick: int
    at: float
    read_at: float | None = None
    arms: Arms = field(default_factory=Arms)
    external: Mapping[str, Arms] = field(default_factory=dict)  # by guard that counts elsewhere
    ticks: int = 1


@dataclass(frozen=True)
class Segment:
    """Successive ticks, as they are stored. `arms` is their sum."""

    first_tick: int
    tick: int  # the last one
    from_at: float
    at: float
    ticks: tuple[Any, ...]
    arms: Arms

    @property
    def length(self) -> int:
        return self.tick - self.first_tick + 1


@dataclass(frozen=True)
class OpenSegment:
    """The block that is being filled. Stored beside the engine state in the rollout's row, so that no tick is lost with an engine.

    `spoken` counts the decisions that were recorded since the last effect, and tells when the last one was. `began_at`: the
    first tick of all with the candidate exposed, to users or to copies of their requests.
    """

    first_tick: int = 0
    tick: int = 0
    from_at: float = 0.0
    at: float = 0.0
    ticks: tuple[Any, ...] = ()
    rows: int = 0
    arms: Arms = field(default_factory=Arms)
    mark: TickContext | None = None
    names: tuple[str, ...] = ()
    problem: str = ""
    spoken: tuple[int, float] = (0, 0.0)
    began_at: float | None = None

    def after(self, row: TickRecord) -> OpenSegment:
        """With one more tick in it."""
        from_at = self.from_at if self.rows else row.at
        names = _names(self.names, row.arms)
        told = _context_change(self.mark, row.mark, names if names != self.names or self.mark is None else None)
        return replace(
            self,
            first_tick=self.first_tick if self.rows else row.tick,
            tick=row.tick,
            from_at=from_at,
            at=row.at,
            ticks=(*self.ticks, *told, _encoded(row, from_at, names)),
            rows=self.rows + 1,
            arms=self.arms + row.arms,
            mark=row.mark,
            names=names,
            problem=row.mark.problem or self.problem,
        )

    def block(self) -> Segment:
        return Segment(self.first_tick, self.tick, self.from_at, self.at, self.ticks, self.arms)

    def stored(self) -> OpenSegment:
        """Empty again: its block is stored."""
        return OpenSegment(spoken=self.spoken, began_at=self.began_at)

    def to_json(self) -> dict[str, Any]:
        """All facts that the block itself does not hold."""
        kept: dict[str, Any] = {"spoken": list(self.spoken), "began_at": self.began_at}
        if self.rows:
            kept |= {"first_tick": self.first_tick, "from_at": self.from_at, "ticks": list(self.ticks)}
        return kept

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> OpenSegment:
        spoken = value.get("spoken", (0, 0.0))
        empty = cls(spoken=(int(spoken[0]), float(spoken[1])), began_at=value.get("began_at"))
        if not value.get("ticks"):
            return empty
        first_tick, from_at = value["first_tick"], value["from_at"]
        names: tuple[str, ...] = ()
        for item in value["ticks"]:
            names = tuple(item.get("names", names)) if isinstance(item, dict) else names
        rows = list(rows_of(first_tick, from_at, value["ticks"]))
        problem = next((row.mark.problem for row in reversed(rows) if row.mark.problem), "")
        return replace(
            empty, first_tick=first_tick, from_at=from_at, ticks=tuple(value["ticks"]), rows=len(rows), names=names,
            tick=rows[-1].tick, at=rows[-1].at, mark=rows[-1].mark, problem=problem, arms=_total(rows),
        )  # fmt: skip


def stage_name(state: str, paused_in: str, step_index: int, weight_bp: int) -> str:
    """Names the step that evidence belongs to: the same before and after a pause."""
    where = paused_in if state == RolloutState.PAUSED else state
    return f"{where}:{step_index}:{weight_bp}" if where == RolloutState.SHIFTING else str(where)


# --- rows in JSON -----------------------------------------------------------------------------------------------------


def rows_of(first_tick: int, from_at: float, ticks: Iterable[Any]) -> Iterator[TickRecord]:
    """The rows of a stored block, the oldest first."""
    mark, tick = TickContext(), first_tick - 1
    names: tuple[str, ...] = ()
    for item in ticks:
        if isinstance(item, dict):
            names = tuple(item.get("names", names))
            mark = replace(mark, **{name: value for name, value in item.items() if name in _FIELDS})
            mark = _with_earlier(mark, item)
            continue
        external = item[-1] if isinstance(item[-1], dict) else {}
        counts, tick = item[3:-1] if external else item[3:], tick + item[0]
        at = from_at + item[1] / 1000
        yield TickRecord(
            mark,
            tick,
            at,
            None if item[2] is None else at + item[2] / 1000,
            _arms(counts, names),
            {name: _external(one, name) for name, one in external.items()},
            item[0],
        )


def _with_earlier(mark: TickContext, item: Mapping[str, Any]) -> TickContext:
    """With what an older version recorded of single rules' inputs."""
    for name in _EARLIER.keys() & item.keys():
        rule, field = _EARLIER[name]
        told = {**mark.inputs.get(rule, {}), field: item[name]}
        told = {key: value for key, value in told.items() if value}
        mark = replace(
            mark,
            inputs={
                **{one: all_ for one, all_ in mark.inputs.items() if one != rule},
                **({rule: told} if told else {}),
            },
        )
    return mark


def rows_in(blocks: Iterable[Segment]) -> Iterator[TickRecord]:
    """The rows of these blocks, in their order."""
    for block in blocks:
        yield from rows_of(block.first_tick, block.from_at, block.ticks)


def _encoded(row: TickRecord, from_at: float, names: Sequence[str]) -> list[Any]:
    item: list[Any] = [
        row.ticks,
        round((row.at - from_at) * 1000),
        None if row.read_at is None else round((row.read_at - row.at) * 1000),
    ]
    for arm in (row.arms.candidate, row.arms.stable):
        item += [arm.attempts, arm.routed, *[arm.bad.get(name, 0) for name in names]]
    while len(item) > 3 and not item[-1]:
        item.pop()
    if row.external:
        item.append(
            {
                name: [arm for one in (arms.candidate, arms.stable) for arm in (one.attempts, one.bad.get(name, 0))]
                for name, arms in row.external.items()
            }
        )
    return item


def _arms(counts: Sequence[int], names: Sequence[str]) -> Arms:
    size = 2 + len(names)
    whole = [*counts, *[0] * (2 * size - len(counts))]
    return Arms(
        *(Counts(arm[0], arm[1], dict(zip(names, arm[2:], strict=True))) for arm in (whole[:size], whole[size:]))
    )


def _external(counts: Sequence[int], name: str) -> Arms:
    candidate, bad_candidate, stable, bad_stable = counts
    return Arms(Counts(candidate, bad={name: bad_candidate}), Counts(stable, bad={name: bad_stable}))


def _context_change(before: TickContext | None, now: TickContext, names: Sequence[str] | None) -> list[dict[str, Any]]:
    """The changed fields in front of a row, if any. In front of the first row, the fields that differ from their defaults."""
    told: dict[str, Any] = {} if names is None else {"names": list(names)}
    known = before or TickContext()
    told |= {name: value for name in _FIELDS if (value := getattr(now, name)) != getattr(known, name)}
    return [told] if told else []


def _names(known: tuple[str, ...], arms: Arms) -> tuple[str, ...]:
    """The known names, with new ones behind them."""
    new = [name for arm in (arms.candidate, arms.stable) for name in arm.bad if name not in known]
    return (*known, *dict.fromkeys(new)) if new else known


def _total(rows: Iterable[TickRecord]) -> Arms:
    total = Arms()
    for row in rows:
        total = total + row.arms
    return total


# --- coarser ----------------------------------------------------------------------------------------------------------


def joined(older: Segment, newer: Segment) -> Segment:
    """One block in place of two successive ones, in about as many rows as one of them had; all sums are exact."""
    rows = list(rows_in((older, newer)))
    for alike in (lambda row: row.mark, _without_passing, lambda row: None):
        if len(rows) <= 2 * BLOCK_ROWS:
            break
        rows = _paired(rows, alike)
    ticks: list[Any] = []
    mark: TickContext | None = None
    names: tuple[str, ...] = ()
    for row in rows:
        now = _names(names, row.arms)
        ticks += [
            *_context_change(mark, row.mark, now if now != names or mark is None else None),
            _encoded(row, older.from_at, now),
        ]
        mark, names = row.mark, now
    return Segment(older.first_tick, newer.tick, older.from_at, newer.at, tuple(ticks), older.arms + newer.arms)


def _without_passing(row: TickRecord) -> Any:
    """Facts that a row for several ticks must keep."""
    return row.mark.state, row.mark.step_index, row.mark.weight_bp, row.mark.paused_in, row.mark.is_settling


def _paired(rows: Sequence[TickRecord], alike: Callable[[TickRecord], Any]) -> list[TickRecord]:
    """Neighbours that are alike, two by two, as one row each."""
    found: list[TickRecord] = []
    is_open = False  # whether the last one found may still take its neighbour
    for row in rows:
        if is_open and alike(found[-1]) == alike(row):
            found[-1] = _one_row(found[-1], row)
            is_open = False
        else:
            found.append(row)
            is_open = True
    return found


def _one_row(first: TickRecord, then: TickRecord) -> TickRecord:
    external = dict(first.external)
    for name, arms in then.external.items():
        external[name] = external[name] + arms if name in external else arms
    mark = then.mark if then.mark.problem or not first.mark.problem else replace(then.mark, problem=first.mark.problem)
    mark = (
        replace(mark, is_settling=True) if first.mark.is_settling else mark
    )  # what is no evidence makes none of it one
    inputs = dict(mark.inputs)
    for rule, told in first.mark.inputs.items():
        if told.get("tallies") and not inputs.get(rule, {}).get("tallies"):  # a hold rests on them
            inputs[rule] = {**inputs.get(rule, {}), "tallies": told["tallies"]}
    mark = replace(mark, inputs=inputs)
    read_at = first.read_at if then.read_at is None else then.read_at
    return TickRecord(mark, then.tick, then.at, read_at, first.arms + then.arms, external, first.ticks + then.ticks)


def to_join(blocks: Sequence[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """Runs of successive blocks (from index, to index, both included) to make one of each, so that `most` are left.

    `blocks` are (first tick, last tick), the oldest first. A block is never long for its age: the next to be joined are
    always those two that together are the shortest beside how long ago they were.
    """
    runs = [(index, index) for index in range(len(blocks))]
    end = blocks[-1][1] + 1 if blocks else 0
    while len(runs) > max(1, most):
        best = min(
            range(len(runs) - 1),
            key=lambda i: (blocks[runs[i + 1][1]][1] - blocks[runs[i][0]][0] + 1) / (end - blocks[runs[i + 1][1]][1]),
        )
        runs[best : best + 2] = [(runs[best][0], runs[best + 1][1])]
    return [run for run in runs if run[0] != run[1]]
