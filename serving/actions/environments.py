"""The verb of environments."""

from __future__ import annotations

from typing import Any

from serving.models import Environment


def ensure_environment(*, slug: str, rules: dict[str, Any]) -> Environment:
    """The environment by this name, made with these rules if there was none. For whoever sets up an installation."""
    return Environment.objects.get_or_create(slug=slug, defaults=rules)[0]
