"""Tensors by layer: `encoder.layer.3` is one group, and what has no number is grouped by the part before its last name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

#: Groups of one answer, and tensors that one group names; counts are whole.
MOST_GROUPS: Final = 200
MOST_NAMED: Final = 20
_NUMBER: Final = re.compile(r"\d+")
_LONGEST_NAME: Final = 300


@dataclass(frozen=True)
class TensorGroup:
    """Tensors of one layer. `named`: [name, data type, shape] of the first."""

    name: str
    count: int
    named: tuple[Sequence[Any], ...]


@dataclass(frozen=True)
class LayerChanges:
    """What differs between two releases within one layer. `named`: (how, tensor, before, after) of the first."""

    layer: str
    same: int
    changed: int
    added: int
    removed: int
    named: tuple[tuple[str, str, str, str], ...] = ()


def layer_of(name: str) -> str:
    """The layer that a tensor's name tells: up to its first number that stands by itself, else all but its last part."""
    parts = name[:_LONGEST_NAME].replace("/", ".").split(".")
    for at, part in enumerate(parts[:-1]):
        if at and _NUMBER.fullmatch(part):
            return ".".join(parts[: at + 1])
    return ".".join(parts[:-1]) or "(top)"


def grouped(tensors: Iterable[Sequence[Any]]) -> tuple[list[TensorGroup], int]:
    """(the first groups by layer, how many more there are), in the order of their names, numbers by size."""
    found: dict[str, list[Sequence[Any]]] = {}
    for tensor in tensors:
        found.setdefault(layer_of(str(tensor[0])), []).append(tensor)
    ordered = sorted(found, key=_natural)
    groups = [TensorGroup(name, len(found[name]), tuple(found[name][:MOST_NAMED])) for name in ordered[:MOST_GROUPS]]
    return groups, max(0, len(ordered) - MOST_GROUPS)


def changed_layers(
    before: Mapping[str, Sequence[Any]], after: Mapping[str, Sequence[Any]]
) -> tuple[list[LayerChanges], int]:
    """(layers in which a tensor is added, removed or of another type or shape, how many more there are)."""
    found: dict[str, dict[str, list[str]]] = {}
    for name in sorted(before.keys() | after.keys()):
        a, b = before.get(name), after.get(name)
        how = "added" if a is None else "removed" if b is None else "same" if list(a) == list(b) else "changed"
        found.setdefault(layer_of(name), {}).setdefault(how, []).append(name)
    differing = sorted((layer for layer, hows in found.items() if hows.keys() - {"same"}), key=_natural)
    told = [_changes_of(layer, found[layer], before, after) for layer in differing[:MOST_GROUPS]]
    return told, max(0, len(differing) - MOST_GROUPS)


def _changes_of(
    layer: str, hows: Mapping[str, list[str]], before: Mapping[str, Sequence[Any]], after: Mapping[str, Sequence[Any]]
) -> LayerChanges:
    named = [
        (how, name, _typed(before.get(name)), _typed(after.get(name)))
        for how in ("changed", "added", "removed")
        for name in hows.get(how, [])[:MOST_NAMED]
    ]
    counts = {how: len(hows.get(how, [])) for how in ("same", "changed", "added", "removed")}
    return LayerChanges(layer, **counts, named=tuple(named[:MOST_NAMED]))


def _typed(tensor: Sequence[Any] | None) -> str:
    return "" if tensor is None else f"{tensor[1]} {list(tensor[2])}"


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Sorts layer.2 before layer.10."""
    return [(0, int(part[:18]), "") if _NUMBER.fullmatch(part) else (1, 0, part) for part in name.split(".")]
