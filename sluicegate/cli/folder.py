"""A release folder on disk: read, checked and hashed before anything is sent."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sluicegate.cli.errors import refuse

CHUNK_BYTES = 1 << 20
DOCUMENT = "release.yaml"
#: The parts of a release folder that are sent.
PARTS = ("artifact", "tokenizer")
#: Sent too, where it is there: the server compares it with `serving`.
CONFIG = "config.pbtxt"


@dataclass(frozen=True)
class LocalFile:
    path: str  # relative, with forward slashes
    source: Path
    sha256: str  # 64 hex digits
    size_bytes: int

    def as_json(self) -> dict[str, Any]:
        return {"path": self.path, "sha256": self.sha256, "size_bytes": self.size_bytes}


def read_document(folder: Path) -> dict[str, Any]:
    """release.yaml as a mapping. Raises CommandError (exit 3) naming the line of a mistake."""
    path = folder / DOCUMENT
    if not folder.is_dir():
        raise refuse(f"{folder} is not a folder.", "Name the release folder, which holds release.yaml and artifact/.")
    if path.is_symlink() or not path.is_file():
        raise refuse(f"{folder} has no {DOCUMENT}.", "Write one; examples/sentiment/build.py makes examples.")
    return read_yaml(path)


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=_OnceLoader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise refuse(
            f"{path} cannot be read: {' '.join(str(error).split())}.", "Mend it, then repeat the command."
        ) from error
    if not isinstance(document, dict):
        raise refuse(f"{path} must be a mapping of fields.", "Compare it with examples/sentiment.")
    return document


class _OnceLoader(yaml.SafeLoader):
    """Refuses a field that is written twice: YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:str":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the field {key.value!r} occurs twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def find_files(folder: Path) -> list[tuple[str, Path]]:
    """(path in the release, path on disk) of config.pbtxt and of every file under artifact/ and tokenizer/, by path.

    Loose files beside them, such as notes, are not sent. Raises CommandError for symbolic links (what they point at may
    change, and may lie outside), for special files, for other folders (a misspelt tokenizer/ must not be left behind),
    and when there is nothing under artifact/.
    """
    found = []
    for entry in sorted(folder.iterdir()):
        if entry.name == CONFIG:
            if entry.is_symlink():
                raise _refuse_link(entry)
            found.append((CONFIG, entry))
        elif entry.is_dir() and entry.name not in PARTS and not entry.name.startswith("."):
            raise refuse(
                f"{entry} is neither artifact/ nor tokenizer/, and would not be sent.",
                "Move it under one of the two, or out of the release folder.",
            )
    for part in PARTS:
        if (folder / part).is_symlink():
            raise _refuse_link(folder / part)
        for root, folders, files in os.walk(folder / part, followlinks=False):
            for name in sorted(folders + files):
                path = Path(root, name)
                if path.is_symlink():
                    raise _refuse_link(path)
                if name in files:
                    if not path.is_file():
                        raise refuse(f"{path} is not an ordinary file.", "Remove it from the release folder.")
                    found.append((path.relative_to(folder).as_posix(), path))
    if not any(path.startswith("artifact/") for path, _ in found):
        raise refuse(
            f"{folder} has no file under artifact/.", "Put what the server loads there, such as artifact/model.onnx."
        )
    return sorted(found)


def _refuse_link(path: Path) -> Exception:
    return refuse(
        f"{path} is a symbolic link; releases hold bytes, not pointers.", "Replace it with a copy of the file."
    )


def hash_files(found: list[tuple[str, Path]], progress: Callable[[int, int, str], None]) -> list[LocalFile]:
    """The files with their sha256 and sizes; `progress(done, total, path)` counts bytes."""
    total = sum(source.stat().st_size for _, source in found)
    done, files = 0, []
    for path, source in found:
        digest, size = hashlib.sha256(), 0
        for chunk in chunks_of(source):
            digest.update(chunk)
            size += len(chunk)
            done += len(chunk)
            progress(done, total, "")
        files.append(LocalFile(path, source, digest.hexdigest(), size))
    return files


def chunks_of(source: Path) -> Iterator[bytes]:
    with source.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk
