"""Platforms: the systems that run an environment's replicas."""

from __future__ import annotations

from enum import StrEnum


class PlatformKind(StrEnum):
    """`local`: our agent starts servers on its machine · `static`: servers at addresses, which their
    owner runs."""

    LOCAL = "local"
    STATIC = "static"
