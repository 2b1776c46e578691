"""Replays a golden set against a server, in batches and one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from serving.ports import InferenceError, InferenceServer
from validators.core.answers import answers_in
from validators.core.contract import Tensor
from validators.core.golden_set import Label
from validators.core.inputs import Arrays, same_shapes, stack

#: A server that fails this many requests in a row is not asked any further.
_GIVE_UP_AFTER = 5
_EXAMPLES = 3


@dataclass
class Answers:
    """One answer per item, in order; None where there is none. `problems` are the first few reasons."""

    labels: list[Label | None]
    problems: list[str] = field(default_factory=list)


def replay(
    server: InferenceServer,
    model: str,
    items: Sequence[Arrays],
    output: Tensor,
    *,
    batch_size: int,
    has_batch_axis: bool,
    timeout_s: float,
    progress: Callable[[int], None],
) -> Answers:
    """Asks for every item, `batch_size` at a time. `progress` is told the number of items done.

    Raises InferenceError("unreachable") when the server is gone; other failures leave their items without an answer.
    """
    found = Answers([None] * len(items))
    failures = 0
    for start, stop in _batches(items, batch_size if has_batch_axis else 1):
        progress(start)
        try:
            batch = stack(items[start:stop], has_batch_axis=has_batch_axis)
            answer = server.infer(model, batch, timeout_s=timeout_s, outputs=[output.name]).outputs
            array = answer[output.name]
            found.labels[start:stop] = answers_in(array if has_batch_axis else array[None], stop - start)
            failures = 0
        except InferenceError as error:
            if error.reason == "unreachable":
                raise
            failures += 1
            _note(found, f"{error.message} [{error.reason}]")
        except (KeyError, ValueError) as error:
            failures += 1
            _note(found, f"output {output.name} is missing" if isinstance(error, KeyError) else str(error))
        if failures >= _GIVE_UP_AFTER:
            _note(found, f"gave up after {failures} failed requests in a row")
            break
    progress(len(items))
    return found


def _note(found: Answers, problem: str) -> None:
    if len(found.problems) < _EXAMPLES and problem not in found.problems:
        found.problems.append(problem)


def _batches(items: Sequence[Arrays], size: int) -> list[tuple[int, int]]:
    """[start, stop) of runs of at most `size` items of equal shapes."""
    bounds: list[tuple[int, int]] = []
    start = 0
    for at in range(1, len(items) + 1):
        if at == len(items) or at - start == size or not same_shapes(items[start], items[at]):
            bounds.append((start, at))
            start = at
    return bounds
