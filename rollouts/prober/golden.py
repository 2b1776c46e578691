"""Golden items, asked one at a time of a rollout's servers and judged as the golden gate judges them."""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from math import inf
from typing import Any

import numpy.typing as npt
import structlog
from django.db import connections

from ledger.core.errors import DomainError
from rollouts.core.shadow import ComparisonOutcome, Difference
from rollouts.prober.servers import Servers
from rollouts.prober.tallies import Example, Tallies
from rollouts.prober.targets import Arm, Profile, Target, model_of
from serving.ports import InferenceError, InferenceServer
from validators.core.answers import answers_in, choose_output, in_words
from validators.core.contract import Tensor, tensors_of
from validators.core.golden_fit import misfit
from validators.core.golden_set import GoldenItem, Label
from validators.core.inputs import item_arrays, stack
from validators.core.rows import expected_rows, judged_outputs, rows_in
from validators.core.ruler import ruler_of
from validators.queries import golden_items
from validators.queries.disagreements import right_in_run

log = structlog.get_logger(__name__)
#: A probe is not the gate: it never waits for longer.
MOST_S = 10.0
#: A golden set that could not be read is tried again after this long.
RETRY_S = 60.0
WORKERS = 4
#: Interval of golden probes of each server of stable, and the largest share of its time that they take.
EVERY_S, MOST_BUSY_FRAC = 10.0, 0.05
#: Threads that ask stable, and as many for models that answer slower than this.
STABLE_WORKERS, SLOW_S = 16, 1.0


@dataclass(frozen=True)
class _Way:
    """How one release is asked."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[str, ...]
    has_batch_axis: bool


@dataclass(frozen=True)
class Wrong:
    """A wrongly answered item; `answer` is its label, if any."""

    words: str
    answer: Label | None


#: What is wrong with the outputs of one item, which have a batch axis; None for a right answer.
_Judge = Callable[[Mapping[str, npt.NDArray[Any]], GoldenItem], Wrong | None]


class GoldenProbe:
    """One rollout's golden items, in an order of its own, over and over."""

    def __init__(self, profile: Profile, items: Sequence[GoldenItem]) -> None:
        golden = profile.gates.of("golden")
        self.model, self.items = profile.model, items
        self.timeout_s = min(MOST_S, float(golden["timeout_s"]))
        arms = [arm for arm in (profile.candidate, profile.stable) if arm is not None]
        self._ways = {arm.name: _way(arm, golden, items) for arm in arms}
        self._judge = _judge_of(golden, items, tensors_of(profile.candidate.serving, "outputs"))
        self._order = random.Random(profile.rollout_id).sample(range(len(items)), len(items))
        self._at = 0

    @classmethod
    def of(cls, profile: Profile) -> GoldenProbe | None:
        """None for a policy without a golden set. Reads the set from the blob store.

        Raises DomainError, OSError if it does not exist, ValueError if it does not fit the releases.
        """
        digest = profile.gates.asked_set
        if digest is None:
            return None
        return cls(profile, golden_items(model_of(profile), digest))

    @classmethod
    def of_stable(cls, profile: Profile) -> GoldenProbe | None:
        """The same with the items alone that the release answered rightly in its gate run; None without such items."""
        found = cls.of(profile)
        right = right_in_run(profile.proven_in, found.items) if found is not None else ()
        return cls(profile, right) if right else None

    def next_item(self) -> GoldenItem:
        item = self.items[self._order[self._at % len(self._order)]]
        self._at += 1
        return item

    def ask(self, server: InferenceServer, arm: Arm, item: GoldenItem) -> Wrong | None:
        """None for a right answer. Raises InferenceError, and ValueError for an answer or item of the wrong shape."""
        way = self._ways[arm.name]
        arrays = stack([item_arrays(way.inputs, item.inputs)], has_batch_axis=way.has_batch_axis)
        found = server.infer(self.model, arrays, timeout_s=self.timeout_s, outputs=list(way.outputs)).outputs
        for name in way.outputs:
            if name not in found:
                raise ValueError(f"output {name} is missing")
        return self._judge(found if way.has_batch_axis else {name: array[None] for name, array in found.items()}, item)


def _way(arm: Arm, golden: Mapping[str, Any], items: Sequence[GoldenItem]) -> _Way:
    """Raises ValueError for a set that does not fit the release."""
    outputs = tensors_of(arm.serving, "outputs")
    wrong = misfit(golden, items, outputs)
    if wrong:
        raise ValueError(wrong.message)
    asked = (
        (choose_output(outputs, golden["output"]),)
        if golden["compare"] == "label"
        else judged_outputs(items, outputs, golden["output"])
    )
    inputs, names = tensors_of(arm.serving, "inputs"), tuple(tensor.name for tensor in asked)
    return _Way(inputs, names, int(arm.serving["max_batch_size"]) > 0)


def _judge_of(golden: Mapping[str, Any], items: Sequence[GoldenItem], outputs: Sequence[Tensor]) -> _Judge:
    """Compares the label, or the outputs with the expected outputs; the limit is the policy's, or rounding alone."""
    if golden["compare"] == "label":
        return partial(_wrong_label, choose_output(outputs, golden["output"]).name, golden["labels"])
    judged = judged_outputs(items, outputs, golden["output"])
    rows = expected_rows(items, judged)
    ruler = ruler_of(golden, rows, {tensor.name: tensor.data_type for tensor in judged})
    expected = {item.id: row for item, row in zip(items, rows, strict=True)}

    def wrong(found: Mapping[str, npt.NDArray[Any]], item: GoldenItem) -> Wrong | None:
        [row] = rows_in(found, [tensor.name for tensor in judged], 1)
        limit = ruler.right_within if item.right_within is None else item.right_within
        off = inf if row is None else ruler.distance(expected[item.id], row)
        return None if off <= limit else Wrong(f"is off by {off:.3g} ({ruler.compare}), right is {limit:.3g}", None)

    return wrong


def _wrong_label(
    output: str, names: Sequence[str] | None, found: Mapping[str, npt.NDArray[Any]], item: GoldenItem
) -> Wrong | None:
    answer, expected = in_words(answers_in(found[output], 1)[0], names), in_words(item.label, names)
    return None if answer == expected else Wrong(f"answers {answer!r}, expected {expected!r}", answer)


class GoldenProbes:
    """Asks one golden item of every rollout a turn, on threads of its own."""

    read: Callable[[Profile], GoldenProbe | None] = GoldenProbe.of
    workers = WORKERS

    def __init__(self, book: Tallies, servers: Servers) -> None:
        self._book, self._servers = book, servers
        self._pool = ThreadPoolExecutor(self.workers, "golden")
        self._lock = threading.Lock()
        self._probes: dict[int, GoldenProbe | None] = {}  # None: its policy has no golden set
        self._busy: set[int] = set()
        self._retry_at: dict[int, float] = {}

    def turn(self, targets: Sequence[Target]) -> None:
        """The next item of each rollout that answered its last item. Never waits."""
        epoch, now = self._book.epoch, time.monotonic()
        watched = {target.rollout_id for target in targets}
        with self._lock:
            self._probes = {one: probe for one, probe in self._probes.items() if one in watched}
            self._retry_at = {one: at for one, at in self._retry_at.items() if one in watched}
            due = [target for target in targets if self._is_due(target, now)]
            self._busy |= {target.rollout_id for target in due}
        for target in due:
            self._pool_of(target.rollout_id).submit(self._guarded, epoch, target)

    def stop(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _pool_of(self, rollout_id: int) -> ThreadPoolExecutor:
        return self._pool

    def _is_due(self, target: Target, now: float) -> bool:
        one = target.rollout_id
        if one in self._busy or self._retry_at.get(one, 0.0) > now or (one in self._probes and not self._probes[one]):
            return False
        return bool(target.candidate) and (bool(target.stable) or target.profile.stable is None)

    def _guarded(self, epoch: str, target: Target) -> None:
        one = target.rollout_id
        try:
            probe = self._probe_of(target.profile)
            if probe is not None:
                self._ask(epoch, target, probe)
        except (DomainError, OSError, ValueError) as error:
            log.warning("golden_set_not_probed", rollout=one, error=str(error))
            self._retry_at[one] = time.monotonic() + RETRY_S
        except Exception:  # one odd set must not end the probes of the others
            log.error("golden_probe_broke", rollout=one, traceback=traceback.format_exc())
            self._retry_at[one] = time.monotonic() + RETRY_S
        finally:
            with self._lock:
                self._busy.discard(one)

    def _probe_of(self, profile: Profile) -> GoldenProbe | None:
        if profile.rollout_id not in self._probes:
            try:
                self._probes[profile.rollout_id] = type(self).read(profile)
            finally:
                connections.close_all()  # this thread needs it once
        return self._probes[profile.rollout_id]

    def _ask(self, epoch: str, target: Target, probe: GoldenProbe) -> None:
        """One item of both releases. Where stable has no answer it is not counted; an answer that the candidate lacks is wrong."""
        profile, item = target.profile, probe.next_item()
        stable: Wrong | None = None
        if profile.stable is not None:
            try:
                stable = probe.ask(self._servers.at(target.stable[0]), profile.stable, item)
            except (InferenceError, ValueError):
                self._book.note("golden_stable_failed")
                return
        candidate = _asked(probe, self._servers.at(target.candidate[0]), profile.candidate, item)
        found = Difference("answer", "", candidate.words) if candidate else None
        outcome = ComparisonOutcome(
            candidate is not None, None if profile.stable is None else stable is not None, found
        )
        summary = f"{profile.candidate.name}: golden item {item.id}: {candidate.words}" if candidate else ""
        facts = {"item": item.id, "slice": item.slice, "is_stable_wrong": stable is not None}
        self._book.record(epoch, Example(target.rollout_id, "golden", summary, facts), outcome)


class StableProbes(GoldenProbes):
    """Asks one golden item of stable every `EVERY_S` for each of its servers, and of the release before while that is warm.

    Models whose last item took over `SLOW_S` have threads of their own, so that silent servers delay no other model.
    """

    read, workers = GoldenProbe.of_stable, STABLE_WORKERS

    def __init__(self, book: Tallies, servers: Servers) -> None:
        super().__init__(book, servers)
        self._befores = [ThreadPoolExecutor(self.workers, f"golden-{lane}") for lane in ("before", "slow-before")]
        self._slow_pool = ThreadPoolExecutor(self.workers, "golden-slow")
        self._slow: set[int] = set()
        self._due: dict[int, float] = {}  # when the next item is asked, in monotonic seconds
        self._number = count()

    def stop(self) -> None:
        super().stop()
        for pool in (*self._befores, self._slow_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    def _pool_of(self, rollout_id: int) -> ThreadPoolExecutor:
        return self._slow_pool if rollout_id in self._slow else self._pool

    def _is_due(self, target: Target, now: float) -> bool:
        one = target.rollout_id
        is_due = bool(target.candidate) and self._due.get(one, 0.0) <= now
        if not is_due or not super()._is_due(replace(target, stable=target.candidate), now):
            return False
        self._due[one] = now + EVERY_S / len(target.candidate)
        return True

    def _ask(self, epoch: str, target: Target, probe: GoldenProbe) -> None:
        """Both releases at the same moment. Stable is wrong without an answer; the release before is not counted then."""
        one, profile, item, began = target.rollout_id, target.profile, probe.next_item(), time.monotonic()
        before = self._befores[one in self._slow].submit(self._of_before, target, probe, item)
        server = self._servers.at(target.candidate[next(self._number) % len(target.candidate)])
        wrong = _asked(probe, server, profile.candidate, item)
        took_s, is_before_wrong = time.monotonic() - began, before.result()
        (self._slow.add if time.monotonic() - began > SLOW_S else self._slow.discard)(one)
        if wrong is None:
            self._due[one] = max(self._due.get(one, 0.0), began + took_s / MOST_BUSY_FRAC)
        found = Difference("answer", "", wrong.words) if wrong else None
        summary = f"{profile.candidate.name}: golden item {item.id}: {wrong.words}" if wrong else ""
        example = Example(one, "golden", summary, {"item": item.id, "slice": item.slice})
        self._book.record(epoch, example, ComparisonOutcome(wrong is not None, is_before_wrong, found))

    def _of_before(self, target: Target, probe: GoldenProbe, item: GoldenItem) -> bool | None:
        """Whether the release before answered wrongly; None without an answer."""
        if target.profile.stable is None or not target.stable:
            return None
        try:
            return probe.ask(self._servers.at(target.stable[0]), target.profile.stable, item) is not None
        except (InferenceError, ValueError):
            return None


def _asked(probe: GoldenProbe, server: InferenceServer, arm: Arm, item: GoldenItem) -> Wrong | None:
    try:
        return probe.ask(server, arm, item)
    except InferenceError as error:
        return Wrong(f"fails: {error.message[:200]} [{error.reason}]", None)
    except ValueError as error:
        return Wrong(f"gives no usable answer: {error}", None)
