"""A tokenizer as its files say it: vocabulary, added tokens and the steps around them.

Source: the tokenizer.json of Hugging Face tokenizers; vocab.txt has one token per line, vocab.json is token → id; a
SentencePiece model is a ModelProto of google/sentencepiece src/sentencepiece_model.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from registry.core.formats import jsons
from registry.core.formats.findings import LARGEST, Malformed

#: What a text goes through besides the vocabulary, in that order; the last two bind it to a length.
STEPS: Final = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "truncation", "padding")
#: Settings of the model itself, besides its vocabulary and merges.
_NOT_SETTINGS: Final = {"vocab", "merges", "type"}
#: The largest file that is read as a tokenizer, in bytes.
LONGEST: Final = 64 << 20


@dataclass(frozen=True)
class Tokenizer:
    """`vocabulary`: token → id, the added tokens among them. `special`: added token → its flags."""

    model: str
    vocabulary: Mapping[str, int]
    special: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    scores: Mapping[str, Any] = field(default_factory=dict)
    merges: tuple[Any, ...] = ()
    steps: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


def is_tokenizer_path(path: str) -> bool:
    """Whether a file of this name is read as a tokenizer."""
    return path.rsplit("/", 1)[-1] in {"tokenizer.json", "vocab.json", "vocab.txt"} or path.endswith(".model")


def read(path: str, data: bytes) -> Tokenizer | None:
    """The tokenizer in these bytes; None where there is none, or none that this version can read. Never raises Malformed."""
    if not is_tokenizer_path(path) or len(data) > LONGEST:
        return None
    if path.endswith(".txt"):
        lines = data.decode("utf-8", "replace").split("\n")
        return Tokenizer("vocab.txt", {line.rstrip("\r"): i for i, line in enumerate(lines) if line})
    try:
        return _of_pieces(data) if path.endswith(".model") else of_document(jsons.parse(data, "the tokenizer"))
    except Malformed:
        return None


def of_document(document: Any) -> Tokenizer | None:
    """The tokenizer that a parsed tokenizer.json or vocab.json is; None when it is neither."""
    if not isinstance(document, dict):
        return None
    if document and all(type(i) is int for i in document.values()):
        return Tokenizer("vocab.json", document)
    model = document.get("model")
    if not isinstance(model, dict):
        return None
    vocabulary, scores = _vocabulary(model.get("vocab"))
    if not vocabulary:
        return None
    special = {}
    added = document.get("added_tokens")
    for one in added if isinstance(added, list) else []:
        if isinstance(one, dict) and isinstance(one.get("content"), str) and type(one.get("id")) is int:
            special[one["content"]] = {name: value for name, value in one.items() if name not in {"content", "id"}}
            vocabulary[one["content"]] = one["id"]
    merges = model.get("merges")
    return Tokenizer(
        model=_kind(model, vocabulary, scores),
        vocabulary=vocabulary,
        special=special,
        scores=scores,
        merges=tuple(" ".join(map(str, m)) if isinstance(m, list) else m for m in merges)
        if isinstance(merges, list)
        else (),
        steps={name: document.get(name) for name in STEPS},
        settings={name: value for name, value in model.items() if name not in _NOT_SETTINGS},
    )


def _vocabulary(vocab: Any) -> tuple[dict[str, int], dict[str, Any]]:
    """(token → id, token → score). Unigram lists [token, score]; every other model maps token → id."""
    if isinstance(vocab, dict):
        return {token: i for token, i in vocab.items() if type(i) is int}, {}
    if not isinstance(vocab, list):
        return {}, {}
    pairs = [pair if isinstance(pair, list) and len(pair) == 2 else ["", 0] for pair in vocab]
    ids = {str(token): i for i, (token, _) in enumerate(pairs)}
    return ids, {str(token): score for token, score in pairs}


def _kind(model: Mapping[str, Any], vocabulary: Mapping[str, int], scores: Mapping[str, Any]) -> str:
    """The model's type, which older files leave out."""
    stated = model.get("type")
    if isinstance(stated, str):
        return stated[:50]
    return "BPE" if "merges" in model else "Unigram" if scores else "WordPiece" if vocabulary else "unknown"


def facts_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """Facts to keep of a tokenizer: its model, the number of tokens, added tokens and merges, and the largest id.

    `max_tokens` is there if the tokenizer cuts longer texts.
    """
    cut = tokenizer.steps.get("truncation")
    most = cut.get("max_length") if isinstance(cut, dict) else None
    return {
        "model": tokenizer.model,
        "vocabulary": len(tokenizer.vocabulary),
        "added_tokens": len(tokenizer.special),
        "merges": len(tokenizer.merges),
        "largest_id": min(max(tokenizer.vocabulary.values()), LARGEST),
        **({"max_tokens": most} if type(most) is int and 0 < most <= LARGEST else {}),
    }


#: Types of a piece that mean something. Source: SentencePiece.Type.
_PIECE_TYPES: Final = {2: "unknown", 3: "control", 4: "user_defined", 5: "unused", 6: "byte"}
_MODEL_TYPES: Final = {1: "Unigram", 2: "BPE", 3: "Word", 4: "Char"}


def _of_pieces(data: bytes) -> Tokenizer | None:
    """The tokenizer in a SentencePiece model; None for bytes that hold no pieces. Raises Malformed."""
    vocabulary, scores, special = dict[str, int](), dict[str, Any](), dict[str, dict[str, Any]]()
    kind, normalizer, i = 1, dict[str, Any](), 0
    for number, value in _wire(data):
        if number == 1 and isinstance(value, bytes):
            piece = dict(_wire(value))
            token = _utf8(piece.get(1, b""))
            vocabulary[token] = i
            if isinstance(score := piece.get(2), float):
                scores[token] = round(score, 6)
            if (what := _PIECE_TYPES.get(piece.get(3, 1))) is not None:  # type: ignore[arg-type]
                special[token] = {"type": what}
            i += 1
        elif number == 2 and isinstance(value, bytes):
            kind = next((v for n, v in _wire(value) if n == 3 and isinstance(v, int)), 1)
        elif number == 3 and isinstance(value, bytes):
            told = dict(_wire(value))
            normalizer = {"name": _utf8(told.get(1, b"")), "charsmap_bytes": len(_bytes(told.get(2, b"")))}
            flags = ("add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces")
            normalizer |= {name: bool(told.get(number, 1)) for number, name in enumerate(flags, 3)}
    if not vocabulary:
        return None
    return Tokenizer(_MODEL_TYPES.get(kind, "unknown"), vocabulary, special, scores, steps={"normalizer": normalizer})


def _wire(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """(number, value) of a message's fields; 32 bits are a float, as in every field that is looked at. Raises Malformed."""
    at, size = 0, len(data)
    while at < size:
        key, at = _varint(data, at)
        wire_type = key & 7
        if wire_type == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        length = {1: 8, 5: 4}.get(wire_type, 0)
        if wire_type == 2:
            length, at = _varint(data, at)
        elif not length:
            raise Malformed("it is no SentencePiece model")
        if at + length > size:
            raise Malformed("it is cut short")
        piece = data[at : at + length]
        at += length
        yield key >> 3, struct.unpack("<f", piece)[0] if wire_type == 5 else piece


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise Malformed("a number in it does not end")


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else b""


def _utf8(value: Any) -> str:
    return _bytes(value).decode("utf-8", "replace")
