"""What differs between two manifests: files by digest, everything else field by field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sluicegate.cli.output import bytes_text, short

Change = dict[str, Any]
#: The parts of a manifest that are compared by field, in the order in which people ask.
PARTS = ("runtime", "serving", "envelope", "provenance")


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[Change]:
    """[{part, field, kind: added|removed|changed, old, new}]; files come first, `field` being their path."""
    return [
        *_files(old, new),
        *(change for part in PARTS for change in _fields(part, "", old.get(part), new.get(part))),
    ]


def _files(old: dict[str, Any], new: dict[str, Any]) -> Iterator[Change]:
    before = {file["path"]: file for file in old["files"]}
    after = {file["path"]: file for file in new["files"]}
    for path in sorted(before | after):
        a, b = before.get(path), after.get(path)
        if a is None or b is None or a["sha256"] != b["sha256"]:
            yield _change("files", path, _file(a), _file(b))


def _file(entry: dict[str, Any] | None) -> dict[str, Any] | None:
    return (
        None if entry is None else {"sha256": entry["sha256"], "size_bytes": entry["size_bytes"], "role": entry["role"]}
    )


def _fields(part: str, at: str, old: Any, new: Any) -> Iterator[Change]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old | new):
            yield from _fields(part, f"{at}.{name}" if at else name, old.get(name), new.get(name))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from _fields(part, f"{at}[{i}]", a, b)
    elif old != new:
        yield _change(part, at, old, new)


def _change(part: str, field: str, old: Any, new: Any) -> Change:
    kind = "added" if old is None else "removed" if new is None else "changed"
    return {"part": part, "field": field, "kind": kind, "old": old, "new": new}


def lines(found: list[Change]) -> list[str]:
    """One line per change: `~ files artifact/model.onnx  1f0c… 90.9 MB → 7a2b… 23.0 MB`."""
    signs = {"added": "+", "removed": "-", "changed": "~"}
    return [f"{signs[c['kind']]} {c['part']} {c['field']}  {_sides(c)}" for c in found]


def _sides(change: Change) -> str:
    sides = [_shown(change["part"], change[side]) for side in ("old", "new") if change[side] is not None]
    return " → ".join(sides)


def _shown(part: str, value: Any) -> str:
    if part == "files":
        return f"{short(value['sha256'])} {bytes_text(value['size_bytes'])}"
    return str(value)
