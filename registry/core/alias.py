"""Names of aliases: which there may be. None may look like a release name (`r14`) or like `latest`."""

from __future__ import annotations

import re
from typing import Final

from registry.core.schema import Problem

_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,38}[a-z0-9]|[a-z]")
_LIKE_A_RELEASE: Final = re.compile(r"r[0-9]+")
#: What a route says of releases, and what "the newest" would mean: an alias of that name would be taken for the truth.
RESERVED: Final = {
    "latest": "there is no latest release: whoever names a release says which",
    "newest": "there is no newest release: whoever names a release says which",
    "stable": "which release is stable is what an environment's route says",
    "candidate": "which release is the candidate is what an environment's route says",
    "draft": "a draft has no name yet",
    "none": "it would read as no alias at all",
}


def name_problems(name: str) -> list[Problem]:
    """Why this cannot be the name of an alias."""
    if name in RESERVED:
        return [Problem("name", f"{name} is reserved: {RESERVED[name]}.", "Choose another name, such as champion.")]
    if _LIKE_A_RELEASE.fullmatch(name):
        return [Problem("name", f"{name} would read as a release.", "Choose another name, such as champion.")]
    if not _NAME.fullmatch(name):
        return [
            Problem(
                "name",
                f"{ascii(name)[:60]} is no name of an alias.",
                "Use 1 to 40 lower-case letters, digits and hyphens, beginning with a letter and not ending with a hyphen, "
                "such as champion.",
            )
        ]
    return []
