"""Do two sets of machines compute alike? What differs between them could make one release slower than another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: What of a node's facts decides how fast a model is, in words.
_DECIDES = {"gpus": "GPU", "driver": "driver", "cpu_model": "CPU", "cpu_count": "CPU count"}


def difference(
    candidate: Iterable[Mapping[str, Any]], stable: Iterable[Mapping[str, Any]], *, names: tuple[str, str]
) -> str:
    """Half a sentence that names the first difference between the nodes of two releases; empty where none is known.

    Each item is a node's facts. A fact that a node does not report is unknown, and unknown counts as equal.
    """
    arms = (list(candidate), list(stable))
    for key, words in _DECIDES.items():
        told = [{_in_words(facts[key]) for facts in arm if facts.get(key) not in (None, "", [])} for arm in arms]
        if all(told) and told[0] != told[1]:
            mine, theirs = (", ".join(sorted(one)) for one in told)
            return f"{names[0]} runs on {words} {mine} and {names[1]} on {theirs}"
    return ""


def _in_words(fact: Any) -> str:
    return " + ".join(sorted(map(str, fact))) if isinstance(fact, (list, tuple)) else str(fact)
