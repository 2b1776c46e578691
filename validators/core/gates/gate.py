"""A gate as a value: all that other modules need to know of it.

The package has one file per gate, and `GATES` lists them. The part that measures on a server lies in
`validators/execution/gates/`. No other module compares the name of a gate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from registry.core.attestations import Measured
from registry.core.schema import Problem, Record
from validators.core.envelope_values import Reader

Section = Mapping[str, Any]
Evidence = Mapping[str, Any]

#: Facts of the place of a measurement, in words. A policy chooses those that must be alike.
FACTS: Final = {
    "image": "runtime image",
    "machine": "architecture",
    "gpu": "GPU",
    "driver": "GPU driver",
    "tensorrt": "TensorRT",
    "cpu_model": "CPU",
    "cpu_count": "CPU count",
    "kernel": "kernel",
}
#: Facts that depend on a GPU.
OF_GPU: Final = frozenset({"gpu", "driver", "tensorrt"})
#: Facts that answers depend on. Numbers in answers also depend on the CPU's instructions, times on every fact.
OF_ANSWERS: Final = frozenset({"image", "machine"}) | OF_GPU
#: Confidence of intervals that no policy sets.
USUAL_CONFIDENCE: Final = 0.95


@dataclass(frozen=True)
class Metric:
    """One number of one gate. `low` and `high` are None if no interval is known. `under`: conditions of the measurement."""

    gate: str
    name: str
    unit: str  # frac, ms, s, MiB, /s
    higher_is_better: bool
    value: float
    low: float | None = None
    high: float | None = None
    n: int | None = None
    under: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Demand:
    """A threshold of a gate. `least_s` to `most_s` seconds; `certifies`: what a pass proves, and what it does not."""

    gate: str
    field: str
    demands: str
    certifies: str
    least_s: float | None = None
    most_s: float | None = None


@dataclass(frozen=True)
class Plan:
    """A policy's document before a run. `items` and `slices`: of the golden set that it names."""

    document: Mapping[str, Any]
    items: int
    slices: Mapping[str, int]


class FormField(NamedTuple):
    """A field of the policy form. `path` is within the section. `kind`: number, text, flag or list."""

    path: str
    label: str
    unit: str
    kind: str = "number"


def _as_read(section: Section, stated: Section, read: Mapping[str, Any], objectives: Mapping[str, Any]) -> Section:
    return section


def _none(*_: Any) -> Iterator[Any]:
    return iter(())


@dataclass(frozen=True, kw_only=True)
class Gate:
    """One gate.

    Attributes:
        name: in policies, reports, addresses and docs.
        section: fields of its section of the policy. A gate with `undecided` may be allowed to end undecided; a gate with
            `timeout_s` takes time limits of the model's requests.
        explain: (section, plan) → demands of the section in words.
        on_demand: runs only if the policy names it; only such a policy has its section.
        complete: (section as read, section as stated, whole policy, objectives) → the section without open fields.
        contradictions: (whole policy as read) → mistakes that no single field shows.
        runs_alone: sends a load, so that it needs the machine to itself and the sizes that users send.
        is_watched: measures times under load, so that GPUs are watched meanwhile.
        watches: judges the GPUs under the watched gates. Its result and theirs hold together or not at all.
        searches: chooses its own load to find a limit. Other gates that send a load send the declared one.
        judges_start: reports a release that never became ready. Its section has `max_s`.
        replays_set: asks the golden set that its section names under `set`, and compares answers with stable's. Without a set
            the default list of gates leaves it out.
        is_compared: its verdict may rest on a comparison with stable.
        depends: facts of FACTS that its result depends on.
        metric_names: names that `metrics` may yield, for conditions on releases.
        metrics: (evidence) → its numbers.
        thresholds: (section) → {metric's name: the policy's limit, or None}.
        confidence: (section) → confidence of its metrics' intervals.
        attests: (evidence, section) → further numbers for the attestation.
        reads: field of `validators.core.envelope_values.VALUES` → reader of the evidence.
        figures: kinds of figure, by name, that `web.pages.gate_plots.FIGURES` draws from the evidence.
        form: fields of the policy form.
    """

    name: str
    section: Record
    explain: Callable[[Section, Plan], Iterator[Demand]]
    on_demand: bool = False
    complete: Callable[[Section, Section, Mapping[str, Any], Mapping[str, Any]], Section] = _as_read
    contradictions: Callable[[Mapping[str, Any]], Iterator[Problem]] = _none
    runs_alone: bool = False
    is_watched: bool = False
    watches: bool = False
    searches: bool = False
    judges_start: bool = False
    replays_set: bool = False
    is_compared: bool = False
    depends: frozenset[str] = frozenset(FACTS)
    metric_names: tuple[str, ...] = ()
    metrics: Callable[[Evidence], Iterator[Metric]] = _none
    thresholds: Callable[[Section], dict[str, float | None]] = lambda section: {}
    confidence: Callable[[Section], float] = lambda section: USUAL_CONFIDENCE
    attests: Callable[[Evidence, Section], Iterator[Measured]] = _none
    reads: Mapping[str, Reader] = field(default_factory=dict)
    figures: tuple[str, ...] = ()
    form: tuple[FormField, ...] = ()


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def wrongly(confidence: float) -> str:
    return f"wrongly in no more than {(1 - confidence) * 100:.3g} % of all runs"
