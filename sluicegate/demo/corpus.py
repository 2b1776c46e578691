"""What the demo's users write: mostly sentences, some paragraphs, a few letters.

Neither a golden sentence nor the longest text that the releases declare is as long as a paragraph: that is the gap
between gates and real traffic, and what r4 and r5 fall into.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

#: Share of requests by kind.
MIX = {"sentence": 0.86, "paragraph": 0.09, "letter": 0.05}
#: More than the 128 tokens that examples/sentiment/build.py declares as the longest input.
PARAGRAPH_WORDS = 140
LETTER_BYTES = 3000


@dataclass(frozen=True)
class Text:
    kind: str
    text: str


def read_sentences(golden: Path) -> list[str]:
    """The sentences of a golden set's file."""
    return [
        json.loads(line)["inputs"]["text"] for line in golden.read_text(encoding="utf-8").splitlines() if line.strip()
    ]


def write_one(sentences: list[str], chance: random.Random) -> Text:
    """One text of a kind drawn from MIX: a sentence as it is, or as many of them as the kind takes."""
    kind = chance.choices(list(MIX), weights=list(MIX.values()))[0]
    text = chance.choice(sentences)
    while (kind == "paragraph" and len(text.split()) < PARAGRAPH_WORDS) or (
        kind == "letter" and len(text.encode()) < LETTER_BYTES
    ):
        text = f"{text} {chance.choice(sentences)}"
    return Text(kind, text)
