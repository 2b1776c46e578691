"""What changed within the text files of two releases, line by line; bounded over all files together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from registry.core.diff import differing
from registry.core.formats import kind_of
from registry.core.text_diff import LONGEST_BYTES, MOST_LINES, TextDiff, compare_texts, sorted_json
from registry.models import Blob
from registry.queries.file_text import FileText, text_of

#: Files of one answer that are compared; the others are named.
MOST_FILES: Final = 20
#: Lines of all of them together.
_MOST_LINES_OF_ALL: Final = 2 * MOST_LINES
#: Kinds that are never text, whatever their bytes look like.
_BINARY: Final = frozenset({"safetensors", "onnx", "gguf", "tensorrt", "torchscript", "pickle", "archive"})


@dataclass(frozen=True)
class FileChange:
    """One file that differs. `how`: added, removed or changed. `why_not`: why its text is not compared; "" where `diff` is.

    `note` says what was done to the texts before. `old_sha256` and `new_sha256` are "" where there is no such side.
    """

    path: str
    how: str
    old_sha256: str
    new_sha256: str
    diff: TextDiff | None = None
    why_not: str = ""
    note: str = ""


def text_changes(old: Mapping[str, Any], new: Mapping[str, Any], only: str = "") -> tuple[list[FileChange], int]:
    """(the text files that differ between two manifests, how many more there are); of the path `only`, where it is named.

    Two queries at most. Files that were renamed and are the same bytes are left out, and those that are no text.
    """
    before, after = differing(old, new)
    same = {file["sha256"] for file in before.values()} & {file["sha256"] for file in after.values()}
    paths = [path for path in sorted(before.keys() | after.keys()) if kind_of(path) not in _BINARY]
    paths = [path for path in paths if not _is_moved(path, before, after, same)]
    if only:
        paths = [path for path in paths if path == only]
    shown = paths[:MOST_FILES]
    named = {file["sha256"] for path in shown for file in (before.get(path), after.get(path)) if file}
    blobs = {blob.sha256: blob for blob in Blob.objects.filter(pk__in=named)}
    found, left = [], _MOST_LINES_OF_ALL
    for path in shown:
        change = _change(path, before.get(path), after.get(path), blobs, min(left, MOST_LINES))
        left -= change.diff.lines if change.diff else 0
        if change.diff is not None or change.why_not:
            found.append(change)
    return found, len(paths) - len(shown)


def _is_moved(path: str, before: Mapping[str, Any], after: Mapping[str, Any], same: Iterable[str]) -> bool:
    only = before.get(path) if path not in after else after.get(path) if path not in before else None
    return only is not None and only["sha256"] in same


def _change(
    path: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None, blobs: Mapping[str, Blob], most_lines: int
) -> FileChange:
    how = "added" if old is None else "removed" if new is None else "changed"
    made = FileChange(path, how, old["sha256"] if old else "", new["sha256"] if new else "")
    texts = list(
        _texts(
            [made.old_sha256, made.new_sha256], blobs, is_named_text=kind_of(path) in {"python", "json", "yaml", "text"}
        )
    )
    wrong = next((one.why_not for one in texts if one.text is None), "")
    if wrong:  # a binary file is told by its size and digest elsewhere; what is missing is said
        return replace(made, why_not="" if wrong.startswith("Binary") else wrong)
    if not all(one.is_whole for one in texts):
        why_not = f"It is longer than {LONGEST_BYTES >> 10} KiB: take the whole files."
        return replace(made, why_not=why_not)
    before, after, note = texts[0].text or "", texts[1].text or "", ""
    if path.endswith(".json") and how == "changed":
        before, after, note = _as_json(before, after)
    diff = compare_texts(before, after, most_lines=most_lines)
    return replace(made, diff=None if diff.why_not else diff, why_not=diff.why_not, note=note)


def _texts(sides: list[str], blobs: Mapping[str, Blob], *, is_named_text: bool) -> Iterator[FileText]:
    for sha256 in sides:
        if not sha256:
            yield FileText("")
        elif sha256 not in blobs:
            yield FileText(None, "Its bytes are not known here any more.")
        else:
            yield text_of(blobs[sha256], is_named_text=is_named_text)


def _as_json(before: str, after: str) -> tuple[str, str, str]:
    """Both written anew, members sorted, where both can be; and what is said of that."""
    written = sorted_json(before), sorted_json(after)
    if written[0] is None or written[1] is None:
        return before, after, ""
    if written[0] == written[1]:
        return before, after, "The two say the same: only order, spacing or the writing of numbers differ."
    return written[0], written[1], "Members were sorted and put on lines of their own before the two were compared."
