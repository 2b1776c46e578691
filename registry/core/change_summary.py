"""What a release changes against another, in three lines: its files, its runtime and configuration, its envelope."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from accounts.core.quantities import size_text
from registry.core.kinds import backend_of

#: Names that one line holds.
MOST_NAMES = 4


def summary_of(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> tuple[str, str, str]:
    """Three sentences from two manifests; `old` is None for a model's first release in an environment.

    Computed from the manifests alone: nothing is read of any file.
    """
    if old is None:
        files = new.get("files", [])
        size = sum(one.get("size_bytes", 0) for one in files)
        return (
            f"Files: {len(files)}, {size_text(size)}; there is nothing before to compare with.",
            f"Runtime: {_image(new)}.",
            _declared(new.get("envelope") or {}),
        )
    return _files(old, new), _settings(old, new), _envelope(old, new)


def _files(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    before, after = ({one["path"]: one for one in manifest.get("files", [])} for manifest in (old, new))
    changed = [path for path in after if path in before and after[path]["sha256"] != before[path]["sha256"]]
    added, removed = [path for path in after if path not in before], [path for path in before if path not in after]
    if not changed and not added and not removed:
        return f"Files: the same {len(after)}, byte for byte."
    roles = Counter({**before, **after}[path].get("role", "file") for path in [*changed, *added, *removed])
    said = [
        f"{len(paths)} {word} ({_named(paths)})"
        for word, paths in (("changed", changed), ("added", added), ("removed", removed))
        if paths
    ]
    return f"Files: {', '.join(said)}; {', '.join(f'{count} of role {role}' for role, count in sorted(roles.items()))}."


def _settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    fields = [*_fields("runtime", old, new), *_fields("serving", old, new)]
    return f"Runtime and configuration: {_named(fields)} changed." if fields else "Runtime and configuration: the same."


def _envelope(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    fields = _fields("envelope", old, new)
    return f"Envelope: {_named(fields)} changed." if fields else "Envelope: the same."


def _fields(part: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    before, after = old.get(part) or {}, new.get(part) or {}
    names = sorted({*before, *after})
    return [_change(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]


def _change(name: str, old: Any, new: Any) -> str:
    """`max_batch_size 16 → 32`, or the bare name where a value is none that fits into a line."""
    if all(isinstance(one, bool | int | float) for one in (old, new)):
        return f"{name} {old} → {new}"
    return name


def _named(names: list[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _image(manifest: Mapping[str, Any]) -> str:
    runtime = manifest.get("runtime") or {}
    return f"{backend_of(manifest) or 'unknown'} in {str(runtime.get('image', 'unknown'))[:60]}"


def _declared(envelope: Mapping[str, Any]) -> str:
    return f"Envelope: declares {_named(sorted(envelope))}." if envelope else "Envelope: declares nothing."
