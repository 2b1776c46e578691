"""What differs between two tokenizers: tokens, their ids, and the steps around them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from registry.core.formats.tokenizers import STEPS, Tokenizer

#: Examples of a kind of change that an answer names; the counts are whole.
MOST_EXAMPLES: Final = 20


def difference(old: Tokenizer, new: Tokenizer) -> dict[str, Any]:
    """What differs, in JSON: vocabulary sizes and tokens, and every step and setting that is not the same.

    {"vocabulary": {"old", "new", "added", "removed", "changed"}, "tokens": {"added": […], …}, "fields": [{field, old, new}]}.
    A token is changed when its id, score or flags are others. Tokens are examples, the lowest ids first.
    """
    before, after = old.vocabulary, new.vocabulary
    added = sorted(after.keys() - before.keys(), key=lambda token: (after[token], token))
    removed = sorted(before.keys() - after.keys(), key=lambda token: (before[token], token))
    changed = sorted(
        (token for token in before.keys() & after.keys() if _differs(old, new, token)),
        key=lambda token: (before[token], token),
    )
    return {
        "vocabulary": {
            "old": len(before),
            "new": len(after),
            "added": len(added),
            "removed": len(removed),
            "changed": len(changed),
        },
        "tokens": {
            "added": [{"token": clean(t), "new": _token_facts(new, t)} for t in added[:MOST_EXAMPLES]],
            "removed": [{"token": clean(t), "old": _token_facts(old, t)} for t in removed[:MOST_EXAMPLES]],
            "changed": [
                {"token": clean(t), "old": _token_facts(old, t), "new": _token_facts(new, t)}
                for t in changed[:MOST_EXAMPLES]
            ],
        },
        "fields": _fields(old, new),
    }


def is_same(found: Mapping[str, Any]) -> bool:
    """Whether `difference` found none: the files differ in their bytes alone."""
    counts = found["vocabulary"]
    return not (counts["added"] or counts["removed"] or counts["changed"] or found["fields"])


def _differs(old: Tokenizer, new: Tokenizer, token: str) -> bool:
    return (
        old.vocabulary[token] != new.vocabulary[token]
        or old.scores.get(token) != new.scores.get(token)
        or old.special.get(token) != new.special.get(token)
    )


def _token_facts(tokenizer: Tokenizer, token: str) -> dict[str, Any]:
    told: dict[str, Any] = {"id": tokenizer.vocabulary[token]}
    if token in tokenizer.scores:
        told["score"] = tokenizer.scores[token]
    return {**told, **tokenizer.special.get(token, {})}


def _fields(old: Tokenizer, new: Tokenizer) -> list[dict[str, Any]]:
    pairs: list[tuple[str, Any, Any]] = [("model", old.model, new.model)]
    pairs += [(name, old.steps.get(name), new.steps.get(name)) for name in STEPS]
    names = sorted(old.settings.keys() | new.settings.keys())
    pairs += [(f"model.{name}", old.settings.get(name), new.settings.get(name)) for name in names]
    found = [{"field": name, "old": a, "new": b} for name, a, b in pairs if a != b]
    if old.merges != new.merges:
        common = set(old.merges) & set(new.merges)
        found.append({"field": "merges", "old": _merges(old, common), "new": _merges(new, common)})
    return found


def _merges(tokenizer: Tokenizer, common: set[Any]) -> str:
    alone = len(set(tokenizer.merges) - common)
    return (
        f"{len(tokenizer.merges)} merges, {alone} of them only here"
        if alone
        else f"{len(tokenizer.merges)} in this order"
    )


def clean(token: str) -> str:
    """The token as JSON and a terminal can show it."""
    return token if token.isprintable() else ascii(token)[1:-1]
