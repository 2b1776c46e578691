"""The human-rated sentences of the vaderSentiment source distribution, and the split into training and golden items.

Ratings run from -4 to 4, the mean of about 20 people. A sentence counts as positive from 0.5 up, as negative from -0.5
down; what lies between is left out.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import dataclass
from pathlib import Path

SLICES = {
    "tweets": "tweets_GroundTruth.txt",
    "movies": "movieReviewSnippets_GroundTruth.txt",
    "products": "amazonReviewSnippets_GroundTruth.txt",
    "news": "nytEditorialSnippets_GroundTruth.txt",
}
NEGATIVE, POSITIVE = 0, 1
CLEAR_RATING = 0.5
#: How many sentences of each slice are kept out of training for the golden set.
GOLDEN_PER_SLICE = 200


@dataclass(frozen=True)
class Sentence:
    id: str
    text: str
    label: int  # NEGATIVE or POSITIVE
    slice: str


def read_sentences(sdist: Path) -> list[Sentence]:
    """Every clearly rated sentence of the sdist (a .tar.gz with a .tar.gz in it), in file order."""
    with tarfile.open(sdist) as outer:
        member = next(name for name in outer.getnames() if name.endswith("hutto_ICWSM_2014.tar.gz"))
        packed = outer.extractfile(member)
        assert packed is not None
        inner_bytes = io.BytesIO(packed.read())
    sentences = []
    with tarfile.open(fileobj=inner_bytes) as inner:
        for slice_name, file_name in SLICES.items():
            raw = inner.extractfile(f"hutto_ICWSM_2014/{file_name}")
            assert raw is not None
            sentences += _clear_sentences(slice_name, raw.read().decode("utf-8", "replace"))
    return sentences


def _clear_sentences(slice_name: str, text: str) -> list[Sentence]:
    found = []
    for line in text.splitlines():
        number, _, rest = line.partition("\t")
        rating, _, sentence = rest.partition("\t")
        sentence = " ".join(sentence.split())
        if not sentence or "\ufffd" in sentence or abs(float(rating)) < CLEAR_RATING:
            continue
        found.append(
            Sentence(f"{slice_name}-{number}", sentence, POSITIVE if float(rating) > 0 else NEGATIVE, slice_name)
        )
    return found


def split(sentences: list[Sentence]) -> tuple[list[Sentence], list[Sentence]]:
    """(training, golden). Golden items are GOLDEN_PER_SLICE of each slice, picked by the hash of their id and dealt
    in turn, so that any prefix whose length is a multiple of four is stratified too.
    """
    queues = {name: sorted((s for s in sentences if s.slice == name), key=_shuffled) for name in SLICES}
    golden = [queues[name][i] for i in range(GOLDEN_PER_SLICE) for name in SLICES]
    kept_out = {sentence.text for sentence in golden}  # by text: a sentence that occurs twice must not leak
    return [s for s in sentences if s.text not in kept_out], golden


def _shuffled(sentence: Sentence) -> str:
    return hashlib.sha256(sentence.id.encode()).hexdigest()
