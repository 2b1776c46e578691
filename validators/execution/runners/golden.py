"""Asks a server for the items of a golden set, in given batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from serving.ports import InferenceError, InferenceServer
from validators.core.batches import Batch
from validators.core.inputs import Arrays, stack
from validators.core.ruler import Answer

#: A server that fails this many requests in a row is not asked any further.
_GIVE_UP_AFTER = 5
_EXAMPLES = 3


@dataclass(frozen=True)
class Reader:
    """The outputs that are asked for, and the answers of so many items in them.

    `read` raises KeyError for an output that is missing, ValueError for one that cannot hold the answers.
    """

    names: tuple[str, ...]
    read: Callable[[Mapping[str, npt.NDArray[Any]], int], Sequence[Answer | None]]


@dataclass
class Answers:
    """(position, answer) of every item that was asked, in that order; None where there is none. `problems` are the first few reasons."""

    given: list[tuple[int, Answer | None]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def in_order(self, count: int) -> list[Answer | None]:
        """The answer to each of `count` items; None for one that was not asked."""
        by_position = dict(self.given)
        return [by_position.get(at) for at in range(count)]


def replay(
    server: InferenceServer,
    model: str,
    items: Sequence[Arrays],
    batches: Sequence[Batch],
    reader: Reader,
    *,
    has_batch_axis: bool,
    timeout_s: float,
    progress: Callable[[int], None],
) -> Answers:
    """Asks batch after batch. `progress` is told the number of items done, those that come again included.

    Raises InferenceError("unreachable") when the server is gone; other failures leave their items without an answer.
    """
    found = Answers()
    failures = done = 0
    for batch in batches:
        progress(done)
        answers: Sequence[Answer | None] = [None] * len(batch)
        if failures < _GIVE_UP_AFTER:
            try:
                inputs = stack([items[at] for at in batch], has_batch_axis=has_batch_axis)
                outputs = server.infer(model, inputs, timeout_s=timeout_s, outputs=list(reader.names)).outputs
                rows = outputs if has_batch_axis else {name: array[None] for name, array in outputs.items()}
                answers = reader.read(rows, len(batch))
                failures = 0
            except InferenceError as error:
                if error.reason == "unreachable":
                    raise
                failures += 1
                _note(found, f"{error.message} [{error.reason}]")
            except (KeyError, ValueError) as error:
                failures += 1
                _note(found, f"output {error.args[0]} is missing" if isinstance(error, KeyError) else str(error))
            if failures == _GIVE_UP_AFTER:
                found.problems.append(f"gave up after {failures} failed requests in a row")
        found.given += zip(batch, answers, strict=True)
        done += len(batch)
    progress(done)
    return found


def _note(found: Answers, problem: str) -> None:
    if len(found.problems) < _EXAMPLES and problem not in found.problems:
        found.problems.append(problem)
