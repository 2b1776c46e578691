"""The life of a release.

    draft → sealed ⇄ retired

A draft has no number and no digest; sealing gives it both, in one transaction. Nothing of a sealed release changes
but its state. Nothing may begin to use a retired one; it can be restored for as long as its bytes are there.
"""

from __future__ import annotations

from enum import StrEnum


class ReleaseState(StrEnum):
    DRAFT = "draft"
    SEALED = "sealed"
    RETIRED = "retired"


class FileRole(StrEnum):
    ARTIFACT = "artifact"
    TOKENIZER = "tokenizer"
    CONFIG = "config"
    CODE = "code"
    DOC = "doc"


MOVES: dict[ReleaseState, frozenset[ReleaseState]] = {
    ReleaseState.DRAFT: frozenset({ReleaseState.SEALED}),
    ReleaseState.SEALED: frozenset({ReleaseState.RETIRED}),
    ReleaseState.RETIRED: frozenset({ReleaseState.SEALED}),
}
