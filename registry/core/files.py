"""The announcement of a release's files: [{path, sha256, size_bytes}], sent with the draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from registry.core.file_rules import MOST_FILES, backend_problems, set_problems
from registry.core.folder_rules import problem_of
from registry.core.schema import Integer, ListOf, Problem, Record, Text, need

SHA256: Final = Text(
    71,
    pattern=r"(sha256:)?[0-9a-f]{64}",
    like="the first word that `sha256sum` prints",
    says="a sha256",
    rule="64 hex digits in lower case",
)
_FILES: Final = ListOf(
    Record({"path": need(Text(10_000)), "sha256": need(SHA256), "size_bytes": need(Integer(0, unit="bytes"))}),
    most=MOST_FILES,
)


def bare_sha256(text: str) -> str:
    """64 hex digits, also of `sha256:<64 hex>`."""
    return text.removeprefix("sha256:")


def read_files(files: Sequence[Any], backend: str | None, max_bytes: int) -> tuple[list[dict[str, Any]], list[Problem]]:
    """(the announced files by path, every problem). `backend` is None when it could not be read."""
    problems: list[Problem] = []
    if len(files) > MOST_FILES:
        return [], [problem_of("", "too_many_files", count=len(files), most=MOST_FILES).problem]
    read = _FILES.read(files, "files", problems)
    if problems:
        return [], problems
    paths = [file["path"] for file in read]
    problems += set_problems(paths)
    problems += [
        Problem(
            f"files[{i}].size_bytes",
            f"{file['size_bytes']} bytes are more than the {max_bytes} that this installation takes.",
            "Send a smaller file, or ask for a higher SLUICEGATE_MAX_UPLOAD_BYTES.",
        )
        for i, file in enumerate(read)
        if file["size_bytes"] > max_bytes
    ]
    if backend is not None:
        problems += [problem.at("files") for problem in backend_problems(backend, paths)]
    listed = [{**file, "sha256": bare_sha256(file["sha256"])} for file in read]
    return sorted(listed, key=lambda file: file["path"]), problems
