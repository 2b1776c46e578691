"""Callers' names of releases and models, and their API addresses: `sentiment/r2` is a release."""

from __future__ import annotations

import re
from urllib.parse import quote

from sluicegate.client.errors import ClientError


class BadName(ClientError):
    """The given name is not that of a release. Nothing was sent."""


def release_of(name: str) -> tuple[str, str]:
    """("sentiment", "r2"). Raises BadName with the right form."""
    match = re.fullmatch(r"([a-z0-9][a-z0-9_-]*)/(r?[1-9][0-9]*)", name)
    if not match:
        raise BadName(f"{name!r} does not name a release.", next_step="Write MODEL/rN, such as sentiment/r2.")
    return match[1], match[2] if match[2].startswith("r") else f"r{match[2]}"


def model_path(slug: str) -> str:
    """The model's address under the API's; an odd name stays one name."""
    return f"/models/{quote(slug, safe='').replace('.', '%2E')}"


def release_path(name: str) -> str:
    """The release's address under the API's. Raises BadName."""
    model, release = release_of(name)
    return f"/models/{model}/releases/{release}"
