"""Secrets that are made on the first start and read on every later one."""

from __future__ import annotations

import secrets
from pathlib import Path

from ledger.adapters.files import write_whole


def remembered(file: Path) -> str:
    """The secret in `file` (48 URL-safe characters), made and written with mode 0600 when there is none."""
    if not file.exists():
        write(file, secrets.token_urlsafe(36))
    return file.read_text().strip()


def kept(file: Path, secret: str) -> str:
    """The file's path, as NAME_FILE wants it, once it holds this secret: environments are copied into more places than files."""
    write(file, secret)
    return str(file)


def write(file: Path, secret: str) -> None:
    """Puts the secret in place in a single step; only the owner may read the file or list its folder."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(file, secret + "\n", mode=0o600)
