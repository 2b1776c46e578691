"""YAML files that people write, as the JSON that the API takes: anything that JSON cannot express is refused with its line."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

from ledger.adapters.files import write_whole
from registry.adapters.json_yaml import YamlMistake, read_text
from sluicegate.client.errors import Mistake, refuse


def read_yaml(path: Path) -> dict[str, Any]:
    """The file's mapping. Raises Mistake naming the line of every mistake, and its fix.

    A date stays the text that was written, as in YAML 1.2's core schema: JSON has none.
    """
    document = document_of(text_of(path), str(path))
    if not isinstance(document, dict):
        raise refuse(f"{path} must be a mapping of fields.", "Compare it with examples/sentiment.")
    return document


def document_of(text: str, name: str) -> Any:
    """Returns the value that a YAML or JSON text holds. Raises Mistake, which calls the text by its name."""
    read = read_text(text)
    if read.mistakes:
        raise _mistakes(name, read.mistakes)
    return read.document


def text_of(path: Path) -> str:
    """The file as text. Raises Mistake for an unreadable file."""
    try:
        return path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
        raise refuse(f"{path} cannot be read: {said}.", "Mend it, then repeat the command.") from error


def put_text(path: Path, text: str) -> None:
    """Rewrites the file, whole or not at all, and keeps its line ends and mode. Raises Mistake on failure."""
    try:
        before, mode = path.read_bytes(), stat.S_IMODE(path.stat().st_mode)
        is_crlf = b"\n" in before and before.count(b"\n") == before.count(b"\r\n")
        write_whole(path, (text.replace("\n", "\r\n") if is_crlf else text).encode())
        path.chmod(mode)
    except OSError as error:
        raise refuse(
            f"{path} cannot be written: {error.strerror}.", "Make it writable, then repeat the command."
        ) from error


def _mistakes(name: str, mistakes: tuple[YamlMistake, ...]) -> Mistake:
    said = [f"{name}{_where(one)}: {one.message}." for one in mistakes]
    errors = [
        {"field": f"{Path(name).name}{_where(one)}", "message": f"{one.message}.", "fix": ""} for one in mistakes[1:]
    ]
    return refuse(said[0], "Mend it, then repeat the command.", **({"errors": errors} if errors else {}))


def _where(one: YamlMistake) -> str:
    return f", line {one.place.line}, column {one.place.column}" if one.place else ""
