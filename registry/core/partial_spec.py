"""A release.yaml that has mistakes, as far as it can still be compared with the files, the model and config.pbtxt.

A person should see all mistakes in one round. A comparison therefore runs on all readable fields, and its findings about fields
that are wrong themselves are dropped, because they would only repeat or contradict the first mistake.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from registry.core import serving as serving_rules
from registry.core.schema import Problem
from registry.core.spec import DOCUMENT, Spec, read_spec

_SIDES: Final = ("inputs", "outputs")
#: Stands for a member of a tensor that could not be read. No finding about that member is kept.
_UNREAD: Final[Mapping[str, Any]] = {"name": "", "data_type": "", "dims": [-1]}


@dataclass(frozen=True)
class PartialSpec:
    """The readable fields of a document, mistakes or not.

    `spec` is None if there is a mistake. `serving` always has `inputs`, `outputs` and `max_batch_size`, made up if they could not be
    read. `backend` is None if it could not be read. `mistaken`: the members of `serving` that have a mistake.
    """

    spec: Spec | None
    problems: tuple[Problem, ...]
    serving: Mapping[str, Any]
    envelope: Mapping[str, Any]
    backend: str | None
    mistaken: frozenset[str] = frozenset()

    def certain(self, problems: Iterable[Problem]) -> list[Problem]:
        """Those of the findings that rest on nothing that is wrong itself."""
        wrong = {problem.field for problem in self.problems}
        return [problem for problem in problems if not any(self._touches(problem.field, other) for other in wrong)]

    def _touches(self, at: str, wrong: str) -> bool:
        """Whether a finding at one field may come from the mistake at another."""
        if at == wrong or _is_below(at, wrong):
            return True
        if wrong == "serving.max_batch_size" and at.startswith("serving.") and at.endswith(".dims"):
            return True
        if self.backend is None and at.startswith("envelope.") and "memory" in at:
            return True
        if at in ("serving.inputs", "serving.outputs"):  # a tensor is missing, perhaps because its name is wrong
            return _is_below(wrong, at) and (wrong.endswith((".name", "]")))
        return _is_below(wrong, at)


def read_partial(document: Mapping[str, Any]) -> PartialSpec:
    """The document, its mistakes and its comparable fields."""
    spec, problems = read_spec(document)
    if spec is not None:
        return PartialSpec(spec, (), spec.serving, spec.envelope, spec.backend)
    read = DOCUMENT.read(document, "", [])
    read = read if isinstance(read, dict) else {}
    serving, runtime, envelope = (_mapping(read.get(part)) for part in ("serving", "runtime", "envelope"))
    wrong = {problem.field for problem in problems}
    if any(_is_below(one, "envelope.performance") for one in wrong):
        envelope = {name: value for name, value in envelope.items() if name != "performance"}
    mistaken = frozenset(
        name
        for name in serving_rules.SERVING.members
        if name not in serving or any(one == f"serving.{name}" or _is_below(one, f"serving.{name}") for one in wrong)
    )
    filled = {**serving, "max_batch_size": serving.get("max_batch_size", 1)}
    filled |= {side: [{**_UNREAD, **_mapping(one)} for one in serving.get(side) or []] for side in _SIDES}
    backend = runtime.get("backend")
    return PartialSpec(None, tuple(problems), serving_rules.normal(filled), envelope, backend, mistaken)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_below(field_name: str, parent: str) -> bool:
    return field_name.startswith((f"{parent}.", f"{parent}["))
