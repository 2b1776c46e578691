"""Files that readers never see half of. The standard library only: the process that keeps a server imports it."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path


def keep_private() -> None:
    """What this process and its children make from now on is for its own user alone: files 0600, folders 0700."""
    os.umask(0o077)


def write_whole(
    path: Path, data: str | bytes, *, mode: int = 0o666, is_durable: bool = False, keeps_first: bool = False
) -> None:
    """Puts `data` at `path`, whole or not at all, in place of what was there.

    `mode` (less the umask) holds from the first byte on. `is_durable`: on the disk, under its name, when this returns.
    `keeps_first`: a file that is there already stays as it is. Raises OSError, and leaves no draft behind then. The folder must exist.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}")
    draft.unlink(missing_ok=True)  # of a process that had this number before, and was killed
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        if keeps_first:
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
        else:
            draft.replace(path)
        if is_durable:
            _sync_folder(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """A name is on the disk when its folder is."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
