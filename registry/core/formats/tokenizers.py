"""A tokenizer as its files say it: vocabulary, added tokens and the steps around them.

Source: the tokenizer.json of Hugging Face tokenizers; vocab.txt has one token per line, vocab.json is token → id.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    return path.rsplit("/", 1)[-1] in {"tokenizer.json", "vocab.json", "vocab.txt"}


def read(path: str, data: bytes) -> Tokenizer | None:
    """The tokenizer in these bytes; None where there is none, or none that this version can read. Never raises Malformed."""
    if not is_tokenizer_path(path) or len(data) > LONGEST:
        return None
    if path.endswith(".txt"):
        lines = data.decode("utf-8", "replace").split("\n")
        return Tokenizer("vocab.txt", {line.rstrip("\r"): i for i, line in enumerate(lines) if line})
    try:
        return of_document(jsons.parse(data, "the tokenizer"))
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
    """What is remembered of a tokenizer: its model, the number of tokens, added tokens and merges, and the largest id."""
    return {
        "model": tokenizer.model,
        "vocabulary": len(tokenizer.vocabulary),
        "added_tokens": len(tokenizer.special),
        "merges": len(tokenizer.merges),
        "largest_id": min(max(tokenizer.vocabulary.values()), LARGEST),
    }
