"""Where releases run: one platform for each environment, behind one port."""

from __future__ import annotations

from serving.environments.core.platforms import PlatformKind as Kind
from serving.models import Environment
from serving.targets.local import Local
from serving.targets.port import Platform
from serving.targets.static import Static

PLATFORMS: dict[str, Platform] = {Kind.LOCAL: Local(), Kind.STATIC: Static()}


def platform_of(environment: Environment | None) -> Platform:
    """For None the platform that new environments get."""
    return PLATFORMS[Kind.LOCAL if environment is None else environment.platform]
