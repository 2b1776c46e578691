"""Which shapes an engine plan must take: an optimization profile from what a release declares.

The shapes of an input that `envelope.engine.optimization_profiles` names are taken from there; `registry.core.engine_lint` holds them
against serving. Else the batch goes from 1 to `serving.max_batch_size` and is tuned for the largest preferred size, and a dimension of
any size goes from 1 to the size in `envelope.limits.max_input_dims`, and is tuned for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from registry.core.schema import Problem, repeated

_AT = "envelope.engine.optimization_profiles"


@dataclass(frozen=True)
class InputProfile:
    """The least, the usual and the largest shape of one input, with the batch axis in front where the model has one."""

    input: str
    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]

    def fits(self, graph: Sequence[int]) -> bool:
        """Whether the graph's input, with -1 where it takes any size, can have each of the three."""
        return all(
            len(shape) == len(graph) and all(own in (-1, size) for own, size in zip(graph, shape, strict=True))
            for shape in (self.min, self.opt, self.max)
        )

    def as_json(self) -> dict[str, Any]:
        """An entry of `envelope.engine.optimization_profiles`."""
        return {"input": self.input, "min": list(self.min), "opt": list(self.opt), "max": list(self.max)}


def profile_of(
    serving: Mapping[str, Any], envelope: Mapping[str, Any]
) -> tuple[tuple[InputProfile, ...], list[Problem]]:
    """(one profile for each of serving's inputs, every reason why there can be none). Both must have been read and linted."""
    declared = envelope.get("engine", {}).get("optimization_profiles", [])
    problems = [
        Problem(_AT, f"{name} has several profiles, and one is built.", "Keep one.")
        for name in repeated(one["input"] for one in declared)
    ]
    stated = {one["input"]: one for one in declared}
    profiles = []
    for at, tensor in enumerate(serving["inputs"]):
        if tensor["data_type"] == "BYTES":
            said = "TensorRT has no texts."
            problems.append(Problem(f"serving.inputs[{at}]", said, "Declare what the tokenizer makes of them."))
        elif tensor["name"] in stated:
            one = stated[tensor["name"]]
            profiles.append(InputProfile(one["input"], tuple(one["min"]), tuple(one["opt"]), tuple(one["max"])))
        else:
            most = envelope.get("limits", {}).get("max_input_dims", {}).get(tensor["name"])
            if -1 in tensor["dims"] and most is None:
                field = f"envelope.limits.max_input_dims.{tensor['name']}"
                said = f"serving.inputs[{at}] has a dimension of any size, and a plan needs to know the largest."
                problems.append(Problem(field, said, f"Declare it, or the shapes in {_AT}."))
            else:
                profiles.append(_from_limits(tensor, most or tensor["dims"], serving))
    return tuple(profiles), problems


def _from_limits(tensor: Mapping[str, Any], most: list[int], serving: Mapping[str, Any]) -> InputProfile:
    least = [1 if size == -1 else size for size in tensor["dims"]]
    largest = serving["max_batch_size"]
    if not largest:
        return InputProfile(tensor["name"], tuple(least), tuple(most), tuple(most))
    usual = max((serving.get("dynamic_batching") or {}).get("preferred_batch_size") or [largest])
    return InputProfile(tensor["name"], (1, *least), (usual, *most), (largest, *most))
