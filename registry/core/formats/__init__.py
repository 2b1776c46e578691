"""What a file says of itself, read from its bytes and never run: `inspect` is the one way in.

Every reader is bounded in size, depth and requests, and total: any bytes give facts or a problem that says what to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from registry.core.file_rules import ending_of
from registry.core.formats import gguf, jsons, onnx, pickles, safetensors, tensorrt, torchscript, transformer
from registry.core.formats.findings import Findings, Malformed, shown
from registry.core.formats.source import facts_of_source
from registry.core.formats.tokenizers import LONGEST as LONGEST_JSON
from registry.core.formats.tokenizers import facts_of, of_document
from registry.core.formats.torchscript import MOST_READ, zipped_imports
from registry.core.formats.window import MOST_FETCHES, Seekable, Window
from registry.core.formats.zipped import members
from registry.core.schema import Json, Problem

#: Version of a reader's output, by kind: bump it when its facts change, so that cached headers are read again.
READERS: Final = {"python": 4, "safetensors": 3, "tensorrt": 3, "onnx": 4, "json": 3, "torchscript": 3, "pickle": 4}
_FIRST_READER: Final = 2
#: The first bytes, by which content is recognised.
HEAD_BYTES: Final = 1 << 16
_TEXTS: Final = (
    ".jsonl", ".txt", ".vocab", ".merges", ".csv", ".tsv", ".md", ".pbtxt", ".tiktoken", ".codes", ".jinja", ".j2", ".toml",
    ".cfg", ".ini", ".xml",
)  # fmt: skip
_KINDS: Final[dict[str, str]] = {
    ".safetensors": "safetensors",
    ".onnx": "onnx",
    ".gguf": "gguf",
    ".plan": "tensorrt",
    ".pt": "torchscript",
    ".json": "json",
    ".py": "python",
    **dict.fromkeys((".data", ".index", ".pb"), "raw"),
    **dict.fromkeys((".mar", ".keras", ".pt2"), "archive"),
    ".model": "raw",
    **dict.fromkeys(_TEXTS, "text"),
    **dict.fromkeys((".yaml", ".yml"), "yaml"),
    **dict.fromkeys((".pkl", ".pickle", ".joblib", ".pth", ".ckpt", ".bin", ".dill"), "pickle"),
}
KINDS: Final = frozenset(_KINDS.values())
#: Tags may be written with %xx (YAML 1.2, 5.6 and 6.8.2), and a %TAG directive gives them other names.
_PYTHON_TAG: Final = re.compile(rb"(!!|tag:yaml\.org,2002:)python/")
_TAG_DIRECTIVE: Final = re.compile(rb"^(?:\xef\xbb\xbf)?%TAG\b", re.MULTILINE)
#: Kinds of which a file without a byte is in order.
_MAY_BE_EMPTY: Final = frozenset({"text", "yaml", "python", "raw"})
#: First bytes of what is neither data nor text, and what to call it.
_MAGICS: Final[tuple[tuple[bytes, str], ...]] = (
    (b"\x7fELF", "a program (ELF)"),
    (b"PK\x03\x04", "a zip archive"),
    (b"PK\x05\x06", "a zip archive"),
    (b"\x1f\x8b\x08", "a gzip archive"),
    (b"\xfd7zXZ\x00", "an xz archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"\x93NUMPY", "a NumPy file"),
    (b"\xca\xfe\xba\xbe", "a program (Mach-O or Java)"),
    (b"\xcf\xfa\xed\xfe", "a program (Mach-O)"),
)


def reader_of(kind: str) -> int:
    """The version of the reader whose facts of this kind still hold."""
    return READERS.get(kind, _FIRST_READER)


def kind_of(path: str) -> str:
    """What the file's name promises; "raw" for a name that promises nothing."""
    return _KINDS.get(ending_of(path), "raw")


def inspect(path: str, readable: Seekable, size_bytes: int, *, most_fetches: int = MOST_FETCHES) -> Findings:
    """What this file is. Its problems, if any, refuse it; their field is the path.

    Reads headers only, but whole JSON up to 64 MiB, from an open file that can seek, by at most `most_fetches` reads. Never
    raises for what the bytes are; an error of the readable itself, such as OSError, passes through.
    """
    kind, head = kind_of(path), b""
    try:
        window = Window(readable, size_bytes, most_fetches=most_fetches)
        head = window.head(HEAD_BYTES)
        if not size_bytes and kind not in _MAY_BE_EMPTY:
            raise Malformed("it is empty", "Send the file with its contents, or leave it out.")
        window.at = 0
        facts = _READERS[kind](window)
        problems: list[Problem] = []
        Json().read(facts, path, problems)
        if problems:
            raise Malformed("a name in it cannot be stored", "Use text without NUL for names.")
    except Malformed as error:
        is_data = len(head) == min(size_bytes, HEAD_BYTES) and not disguise_of(head)
        return Findings(kind, (_problem(path, kind, head, error),), can_be_data=is_data)
    return Findings(kind, facts=facts)


def _problem(path: str, kind: str, head: bytes, error: Malformed) -> Problem:
    promised = _PROMISES[kind]
    disguise = "" if kind in {"pickle", "torchscript", "archive"} else disguise_of(head)
    if disguise:
        return Problem(
            path,
            f"{shown(path)} is {disguise}, and its name says {promised}.",
            "Give a pickle its own ending (.pkl) and ask for a waiver, or convert the weights to safetensors or ONNX."
            if "pickle" in disguise
            else "Send the file that the name says, unpacked.",
        )
    return Problem(path, f"{shown(path)} cannot be {promised}: {error.message}.", error.fix or "Send the right file.")


_PROMISES: Final[dict[str, str]] = {
    "safetensors": "a safetensors file", "onnx": "an ONNX graph", "gguf": "a GGUF file", "tensorrt": "a TensorRT plan",
    "torchscript": "a TorchScript archive", "json": "JSON", "python": "Python source", "raw": "data", "text": "text",
    "yaml": "YAML text", "pickle": "a pickle", "archive": "a zip archive",
}  # fmt: skip


def disguise_of(head: bytes) -> str:
    """What these first bytes are, where that is something that runs or must be unpacked; else empty."""
    if pickles.is_pickle(head):
        return "a pickle stream, which can run code while it is read"
    return next((name for magic, name in _MAGICS if head.startswith(magic)), "")


def _read_json(window: Window) -> dict[str, Any]:
    if window.size > LONGEST_JSON:  # a JSON file this large is data, not configuration
        return _read_raw(window)
    document = jsons.parse(window.read(window.size), "it")
    tokenizer = of_document(document)
    if tokenizer is None or "model" not in document:
        return transformer.facts_of(document)
    return {"tokenizer": facts_of(tokenizer)}


def _read_text(window: Window) -> dict[str, Any]:
    _read_raw(window)
    if b"\x00" in window.head(HEAD_BYTES):
        raise Malformed("it holds NUL bytes", "Send text, or give the file the ending of its format.")
    return {}


def _read_source(window: Window) -> dict[str, Any]:
    _read_text(window)
    return facts_of_source(window)


def _read_yaml(window: Window) -> dict[str, Any]:
    _read_text(window)
    text = window.head(LONGEST_JSON)
    if _PYTHON_TAG.search(unquote_to_bytes(text)) or _TAG_DIRECTIVE.search(text):
        raise Malformed("it holds a tag that makes Python objects, or renames tags", "Write plain values.")
    return {}


def _read_raw(window: Window) -> dict[str, Any]:
    if disguise_of(window.head(HEAD_BYTES)):
        raise Malformed("its content is something else")  # which the problem names
    return {}


def _read_pickle(window: Window) -> dict[str, Any]:
    """{"imports", "is_plain"}. `imports`: the names that unpickling would import, read from the first MiB.

    `is_plain`: the bytes are no pickle, archive or program, so that they can be a graph's external data.
    """
    head = window.head(MOST_READ)
    if head.startswith(b"PK\x03\x04"):
        return {"imports": zipped_imports(window, "data.pkl"), "is_plain": False}
    names = pickles.imports(head, is_whole=window.size <= MOST_READ)
    is_plain = not disguise_of(head[:HEAD_BYTES]) and not set(names) - {pickles.HIDDEN}
    return {"imports": names, "is_plain": is_plain}


def _read_archive(window: Window) -> dict[str, Any]:
    """{"members", "imports"}. `imports`: the names that its pickles would import."""
    return {"members": len(members(window)), "imports": zipped_imports(window, ".pkl")}


_READERS: Final[dict[str, Callable[[Window], dict[str, Any]]]] = {
    "safetensors": safetensors.read,
    "onnx": onnx.read,
    "gguf": gguf.read,
    "tensorrt": tensorrt.read,
    "torchscript": torchscript.read,
    "json": _read_json,
    "python": _read_source,
    "text": _read_text,
    "yaml": _read_yaml,
    "raw": _read_raw,
    "pickle": _read_pickle,
    "archive": _read_archive,
}

__all__ = ["KINDS", "Findings", "disguise_of", "inspect", "kind_of", "reader_of"]
