"""The life of a blob.

    verified ⇄ quarantined

`verified` bytes were read once from end to end, and are what their sha256 says. `quarantined` ones were found to be otherwise
later; they are verified again when the right bytes are uploaded, or restored and read.
"""

from __future__ import annotations

from enum import StrEnum


class BlobState(StrEnum):
    VERIFIED = "verified"
    QUARANTINED = "quarantined"


MOVES: dict[BlobState, frozenset[BlobState]] = {
    BlobState.VERIFIED: frozenset({BlobState.QUARANTINED}),
    BlobState.QUARANTINED: frozenset({BlobState.VERIFIED}),
}
