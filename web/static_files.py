"""The pages' own files under names with a hash of their content (so that browsers keep them for ever), compressed, collected at start."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.staticfiles.finders import get_finders
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from whitenoise.storage import CompressedManifestStaticFilesStorage

#: Beside what was collected: the digest of what it was made from.
_MADE_FROM = ".made-from"


class HashedFiles(CompressedManifestStaticFilesStorage):
    """`web/base.css` is served as `web/base.<digest>.css`, and so are the modules that scripts import."""

    support_js_module_import_aggregation = True

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._addresses: dict[str, str] = {}

    def url(self, name: str, force: bool = False) -> str:
        """Looked up once: a page asks some fifteen times, one with many icons hundreds."""
        if force:
            return super().url(name, force)
        if name not in self._addresses:
            self._addresses[name] = super().url(name)
        return self._addresses[name]


def collect() -> bool:
    """Collects the files into `STATIC_ROOT`, unless they lie there as they are now; whether there was something to do.

    The web process calls it before it serves, so that no installation needs a step for it. Two that start at once wait for each
    other. Raises ImproperlyConfigured if the folder is read-only and lacks them.
    """
    if settings.DEBUG:
        return False  # served from their source folder
    root = Path(settings.STATIC_ROOT)
    wanted = _digest_of_sources()
    if _made_from(root) == wanted:
        return False
    try:
        root.mkdir(parents=True, exist_ok=True)
        with (root / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _made_from(root) == wanted:
                return False
            call_command("collectstatic", interactive=False, verbosity=0)
            fresh = root / f"{_MADE_FROM}.{os.getpid()}"
            fresh.write_text(wanted)
            fresh.replace(root / _MADE_FROM)
    except OSError as error:
        if {name for name, _ in _sources()} <= _collected(root):
            return False  # already collected, for a web process that may not write
        raise ImproperlyConfigured(
            f"The pages' files cannot be collected into {root}: {error}. Make that folder writable for the web process, or run "
            "`manage.py collectstatic` with the same SLUICEGATE_STATE_DIR before."
        ) from error
    return True


def _made_from(root: Path) -> str:
    try:
        return (root / _MADE_FROM).read_text()
    except OSError:
        return ""


def _collected(root: Path) -> set[str]:
    """The names of the files that lie there."""
    try:
        return set(json.loads((root / HashedFiles.manifest_name).read_text())["paths"])
    except (OSError, ValueError, KeyError):
        return set()


def _digest_of_sources() -> str:
    """sha256 over the names and bytes of every file that would be collected."""
    told = hashlib.sha256()
    for name, path in sorted(_sources()):
        content = Path(path).read_bytes()
        told.update(f"{name}\0{len(content)}\0".encode() + content)
    return told.hexdigest()


def _sources() -> Iterator[tuple[str, str]]:
    for finder in get_finders():
        for name, storage in finder.list(ignore_patterns=None):
            yield name, storage.path(name)
