"""Secrets that are made on the first start and read on every later one."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def remembered(file: Path) -> str:
    """The secret in `file` (48 URL-safe characters), made and written with mode 0600 when there is none."""
    if not file.exists():
        write(file, secrets.token_urlsafe(36))
    return file.read_text().strip()


def write(file: Path, secret: str) -> None:
    """Puts the secret in place in one step; nobody but the owner may read the file or list its folder."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = file.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(secret + "\n")
    draft.replace(file)
