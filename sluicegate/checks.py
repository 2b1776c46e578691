"""Deployment checks: `manage.py check --deploy` prints them, and the web process does not start unless they pass."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import Error, Tags, register
from django.core.exceptions import ImproperlyConfigured

#: Known to everyone who can read the source.
INSECURE_PREFIX = "insecure-"
LEAST_SECRET_CHARACTERS = 32


@register(Tags.security, deploy=True)
def secret_key_is_secret(app_configs: Any = None, **_: Any) -> list[Error]:
    """An error while DEBUG is off and the secret key is the built-in one, or a short one."""
    key = settings.SECRET_KEY
    if settings.DEBUG or (not key.startswith(INSECURE_PREFIX) and len(key) >= LEAST_SECRET_CHARACTERS):
        return []
    return [
        Error(
            "SLUICEGATE_SECRET_KEY is the built-in key or shorter than 32 characters, so anyone can forge sessions.",
            hint="Set SLUICEGATE_SECRET_KEY, or SLUICEGATE_SECRET_KEY_FILE, to at least 32 random characters. "
            "`sluicegate up` makes one by itself.",
            id="sluicegate.E001",
        )
    ]


def refuse_unsafe_start() -> None:
    """Raises ImproperlyConfigured, with what to do, unless the checks above pass."""
    for error in secret_key_is_secret():
        raise ImproperlyConfigured(f"{error.msg} {error.hint}")
