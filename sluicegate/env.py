"""Typed readers of environment variables: they refuse odd values, and read `NAME_FILE` for secrets."""

from __future__ import annotations

import os
from ipaddress import IPv4Network
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured


def text(name: str, default: str = "") -> str:
    """The variable, or the content of the file that `<name>_FILE` names, or the default."""
    if f"{name}_FILE" in os.environ:
        path = Path(os.environ[f"{name}_FILE"])
        if not path.is_file():
            raise ImproperlyConfigured(f"{name}_FILE names {path}, which is not a file.")
        return path.read_text().strip()
    return os.environ.get(name, default)


def flag(name: str, default: bool = False) -> bool:
    """1/true/yes/on or 0/false/no/off."""
    value = text(name, "1" if default else "0").lower()
    if value in {"1", "true", "yes", "on"}:
        return True
    if value in {"0", "false", "no", "off", ""}:
        return False
    raise ImproperlyConfigured(f"{name}={value!r} is neither true nor false; write 1 or 0.")


def number(name: str, default: float, *, least: float = 0.0, most: float = float("inf")) -> float:
    raw = text(name, str(default))
    try:
        value = float(raw)
    except ValueError:
        raise ImproperlyConfigured(f"{name}={raw!r} is not a number.") from None
    if not least <= value <= most:
        raise ImproperlyConfigured(f"{name}={raw} must lie between {least} and {most}.")
    return value


def networks(name: str) -> list[str]:
    """A comma-separated list of IPv4 networks, such as 10.20.0.0/16."""
    found = []
    for one in names(name):
        try:
            found.append(str(IPv4Network(one)))  # a netmask may be written too; readers are to find its length
        except ValueError as error:
            raise ImproperlyConfigured(f"{name}: {error}; write networks such as 10.20.0.0/16.") from None
    return found


def names(name: str, default: str = "") -> list[str]:
    """A comma-separated list."""
    return [item.strip() for item in text(name, default).split(",") if item.strip()]
