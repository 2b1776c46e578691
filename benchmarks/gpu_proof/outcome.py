"""Steps of the proof and their outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.gpu_proof.scene import Scene


class Verdict(StrEnum):
    PROVED = "proved"
    REFUTED = "refuted"  # the claim is wrong
    UNKNOWN = "unknown"  # not run, or not enough evidence


@dataclass(frozen=True)
class Outcome:
    """`sentence` states checked facts alone, `numbers` the raw measurements as JSON."""

    verdict: Verdict
    sentence: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def unknown(sentence: str, **numbers: Any) -> Outcome:
    return Outcome(Verdict.UNKNOWN, sentence, numbers)


class Refuted(AssertionError):
    """The product did something other than the step claims."""


@dataclass(frozen=True)
class Step:
    """One claim about the product.

    Args:
        stage: steps of one stage run in one process, one after another, and share its servers.
        needs: names of parts (`parts.py`); if a part is missing, the step is unknown.
        budget_s: the step's process is ended after this time, and the step is unknown.
    """

    name: str
    claim: str
    stage: str
    run: Callable[[Scene], Outcome]
    needs: tuple[str, ...] = ()
    budget_s: float = 60.0
    is_quick: bool = True  # whether --quick runs it


def attempt(step: Step, scene: Scene) -> Outcome:
    """The step's outcome. A failed assertion refutes the claim; any other exception leaves it unknown."""
    try:
        return step.run(scene)
    except AssertionError as error:
        return Outcome(Verdict.REFUTED, last_line(error))
    except Exception as error:  # a broken step is no evidence against the product
        return unknown(last_line(error))


def last_line(error: BaseException) -> str:
    """The exception as the last line of a traceback."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:600]
