"""What differs between two releases: files by digest, configuration by field, tensors and graphs by their headers.

Everything here is computed from the two manifests and from what was read of the files' headers; no weights are read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from registry.core import coupling
from registry.core.kinds import runtime_of

#: The parts of a manifest that are compared by field, in the order in which people ask.
PARTS: Final = ("runtime", "serving", "envelope", "provenance")
#: Changes and examples that one answer names; the counts are whole.
MOST_CHANGES: Final = 5000
MOST_EXAMPLES: Final = 50
#: Levels of a value that an answer shows.
MOST_DEPTH: Final = 20
#: Facts that have a section of their own, or follow from the graph that the other facts describe.
_NOT_SHOWN: Final = frozenset({"tensors", "inputs", "outputs", "activations", "weights_bytes"})
#: Fields that can serve as a list's key: used where every member has the field and its values are unique.
_KEYS: Final = (("name",), ("kind",), ("input",), ("hardware", "workload"))
Facts = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Change:
    """`kind`: added, removed, changed or renamed. `field` is the path of a file, or of a member inside its part."""

    part: str
    field: str
    kind: str
    old: Any
    new: Any


@dataclass(frozen=True)
class TensorChanges:
    """Tensors of one file format, over all files that are not the same bytes in both releases."""

    format: str
    same: int  # the name, data type and shape are; the numbers may not be
    added: int
    removed: int
    changed: int
    examples: tuple[Change, ...] = ()


@dataclass(frozen=True)
class Diff:
    """`unread`: changed files whose headers are not known, path → why."""

    changes: tuple[Change, ...]
    left_off: int = 0
    tensors: tuple[TensorChanges, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)
    coupled: tuple[str, ...] = ()
    warning: str = ""

    @property
    def is_same(self) -> bool:
        """Whether the two manifests say the same."""
        return not self.changes

    def as_json(self) -> dict[str, Any]:
        return {
            "is_same": self.is_same,
            "changes": [dict(change.__dict__) for change in self.changes],
            "changes_left_off": self.left_off,
            "tensors": [asdict(one) for one in self.tensors],
            "unread": dict(self.unread),
            "coupled": {"parts": list(self.coupled), "warning": self.warning},
        }


def compare(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    *,
    names: tuple[str, str],
    old_facts: Facts,
    new_facts: Facts,
) -> Diff:
    """What the second manifest changes against the first.

    Args:
        names: of the two releases, for sentences.
        old_facts, new_facts: path → {"kind", …facts of `registry.core.formats`} of those files in `differing` that are known.
    """
    before, after = differing(old, new)
    unread = {path: "its header was not read" for path in after if path not in new_facts}
    unread |= {path: "its header was not read" for path in before if path not in old_facts}
    found = [
        *_files(before, after),
        *_headers(old_facts, new_facts),
        *(change for part in PARTS for change in fields(part, _part(old, part), _part(new, part))),
    ]
    parts = coupling.changed_parts(old, new)
    return Diff(
        changes=tuple(found[:MOST_CHANGES]),
        left_off=max(0, len(found) - MOST_CHANGES),
        tensors=tuple(_tensors(old_facts, new_facts)),
        unread=unread,
        coupled=parts if len(parts) > 1 else (),
        warning=coupling.warning(parts, names[1], names[0]),
    )


def _part(manifest: Mapping[str, Any], part: str) -> Any:
    """The part in words of today: a backend that was renamed is no change."""
    return runtime_of(manifest) if part == "runtime" else manifest.get(part)


def differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(path → entry of the files that only the first has as they are, likewise of the second)."""
    before, after = ({file["path"]: file for file in manifest["files"]} for manifest in (old, new))
    return (
        {path: file for path, file in before.items() if not _is_same(file, after.get(path))},
        {path: file for path, file in after.items() if not _is_same(file, before.get(path))},
    )


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any] | None) -> bool:
    return other is not None and one["sha256"] == other["sha256"]


def _files(before: dict[str, Any], after: dict[str, Any]) -> Iterator[Change]:
    """By path; a file that went and came with the same bytes was renamed."""
    gone: dict[str, list[str]] = {}
    for path in sorted(before.keys() - after.keys()):
        gone.setdefault(before[path]["sha256"], []).append(path)
    renamed = {path: gone[after[path]["sha256"]].pop(0) for path in sorted(after.keys() - before.keys())
               if gone.get(after[path]["sha256"])}  # fmt: skip
    moved = set(renamed.values())
    for path in sorted((before.keys() | after.keys()) - moved):
        if path in renamed:
            yield Change("files", path, "renamed", _file(before[renamed[path]]), _file(after[path]))
        else:
            yield _change("files", path, _file(before.get(path)), _file(after.get(path)))


def _file(entry: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if entry is None else {name: entry[name] for name in ("path", "sha256", "size_bytes", "role")}


def showable(value: Any, depth: int = 0) -> Any:
    """The value as an answer in JSON can hold it: finite numbers, text that has a UTF-8 form, not deeper than MOST_DEPTH."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return value if not any("\ud800" <= char <= "\udfff" for char in value) else ascii(value)[1:-1]
    if isinstance(value, (list, tuple, Mapping)) and depth >= MOST_DEPTH:
        return "…"
    if isinstance(value, (list, tuple)):
        return [showable(one, depth + 1) for one in value]
    if isinstance(value, Mapping):
        return {showable(str(name)): showable(one, depth + 1) for name, one in value.items()}
    return value


def fields(part: str, old: Any, new: Any, at: str = "") -> Iterator[Change]:
    """The members that differ, as deep as both sides have them; members of lists are told apart by their names."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in sorted(old.keys() | new.keys()):
            yield from fields(part, old.get(name), new.get(name), f"{at}.{name}" if at else str(name))
    elif isinstance(old, list) and isinstance(new, list) and (keyed := _keyed(old, new)):
        before, after = keyed
        for key in [*before, *(key for key in after if key not in before)]:
            yield from fields(part, before.get(key), after.get(key), f"{at}[{key}]")
    elif old != new or type(old) is not type(new):
        yield _change(part, at, old, new)


def _keyed(old: list[Any], new: list[Any]) -> tuple[dict[Any, Any], dict[Any, Any]] | None:
    """Both lists keyed by a unique field, or by position; None where neither identifies the members."""
    if not all(isinstance(one, Mapping) for one in [*old, *new]):
        return None
    for names in _KEYS:
        keys = [[tuple(one.get(name) for name in names) for one in side] for side in (old, new)]
        is_told = all(isinstance(part, Hashable) and part is not None for side in keys for key in side for part in key)
        if is_told and all(len(set(side)) == len(side) for side in keys):
            words = [[", ".join(map(str, key)) for key in side] for side in keys]
            return dict(zip(words[0], old, strict=True)), dict(zip(words[1], new, strict=True))
    return dict(enumerate(old)), dict(enumerate(new))


def _change(part: str, at: str, old: Any, new: Any) -> Change:
    kind = "added" if old is None else "removed" if new is None else "changed"
    return Change(part, at, kind, old, new)


def _headers(old: Facts, new: Facts) -> Iterator[Change]:
    """What the headers of a file that stayed in its place say besides their tensors."""
    for path in sorted(old.keys() & new.keys()):
        yield from fields("headers", _header_facts(old[path]), _header_facts(new[path]), path)


def _header_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts without tensors and what follows from them; a graph's inputs and outputs by their names."""
    plain = {name: value for name, value in facts.items() if name not in _NOT_SHOWN}
    for side in ("inputs", "outputs"):
        if side in facts:
            plain[side] = {name: {"data_type": kind, "dims": dims} for name, kind, dims in facts[side]}
    return plain


def _tensors(old: Facts, new: Facts) -> Iterator[TensorChanges]:
    before, after = _by_format(old), _by_format(new)
    for kind in sorted(before.keys() | after.keys()):
        a, b = before.get(kind, {}), after.get(kind, {})
        added, removed = sorted(b.keys() - a.keys()), sorted(a.keys() - b.keys())
        both = a.keys() & b.keys()
        changed = sorted(name for name in both if a[name] != b[name])
        named = _some_of_each({"changed": changed, "added": added, "removed": removed})
        examples = [Change("tensors", name, how, _tensor(a.get(name)), _tensor(b.get(name))) for name, how in named]
        counts = len(both) - len(changed), len(added), len(removed), len(changed)
        yield TensorChanges(kind, *counts, tuple(examples))


def _some_of_each(names: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """(name, how it changed) of MOST_EXAMPLES at most, the same number of each kind while it has some; kind by kind."""
    ranks = sorted((rank, how) for how, its in names.items() for rank in range(min(len(its), MOST_EXAMPLES)))
    shown = Counter(how for _, how in ranks[:MOST_EXAMPLES])
    return [(name, how) for how, its in names.items() for name in its[: shown[how]]]


def _by_format(facts: Facts) -> dict[str, dict[str, list[Any]]]:
    """Format → tensor → [its name, data type, shape], whichever of a model's files it lies in."""
    found: dict[str, dict[str, list[Any]]] = {}
    for told in facts.values():
        if "tensors" in told:
            found.setdefault(str(told["kind"]), {}).update({tensor[0]: tensor for tensor in told["tensors"]})
    return found


def _tensor(told: list[Any] | None) -> dict[str, Any] | None:
    return None if told is None else {"data_type": told[1], "shape": told[2]}
