"""Files that readers never see half of. The standard library only: the process that keeps a server imports it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from pathlib import Path

_DRAFT = re.compile(r"\.(?P<of>.+)\.[0-9a-f]{16}\.draft", re.DOTALL)


def keep_private() -> None:
    """What this process and its children make from now on is for its own user alone: files 0600, folders 0700."""
    os.umask(0o077)


def write_whole(
    path: Path, data: str | bytes, *, mode: int = 0o666, is_durable: bool = False, keeps_first: bool = False
) -> None:
    """Puts `data` at `path`, whole or not at all, in place of what was there.

    `mode` (less the umask) holds from the first byte on. `is_durable`: on the disk, under its name, when this returns.
    `keeps_first`: a file that is there already stays as it is. Raises OSError, and leaves no draft behind then; one that a killed
    process left is removed by whoever writes there next. The folder must exist.
    """
    _remove_drafts_of_the_dead(path)
    draft, opened = _new_draft(path, mode)
    try:
        with os.fdopen(opened, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            if is_durable:
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


def _new_draft(path: Path, mode: int) -> tuple[Path, int]:
    """A draft of the file, opened, and locked for as long as its writer lives."""
    while True:
        draft = path.with_name(f".{path.name}.{os.urandom(8).hex()}.draft")
        opened = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        if _is_locked(opened) and os.fstat(opened).st_nlink:
            return draft, opened
        os.close(opened)  # before it was locked, it was taken for one of a dead writer


def _is_locked(opened: int) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # no locks on this file system: nobody takes a draft for one of a dead writer
        return True
    return True


def _remove_drafts_of_the_dead(path: Path) -> None:
    names: list[str] = []
    with contextlib.suppress(PermissionError):  # into a folder that may not be read files are written all the same
        names = os.listdir(path.parent)
    for name in names:
        found = _DRAFT.fullmatch(name)
        if found is None or found["of"] != path.name:
            continue
        with contextlib.suppress(OSError):  # it is locked: its writer lives; or it is gone, or another user's
            opened = os.open(path.with_name(name), os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.with_name(name).unlink()
            finally:
                os.close(opened)


def _sync_folder(folder: Path) -> None:
    """A name is on the disk when its folder is."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
