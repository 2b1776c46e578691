"""What a server keeps on the node's disk: how much that is, and how it is removed, however its own code laid it there.

That code chooses names, modes and depths: folders that may not be listed, paths longer than the kernel takes. So each step goes by
a descriptor of the folder that it is in. The standard library only: the shim imports it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from itertools import count
from pathlib import Path

#: Files that a server may have on the disk, so that the look itself stays short; and how many folders may lie in one another, each
#: of which takes a descriptor while it is looked into.
MOST_FILES, _DEEPEST = 65_536, 128
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class CannotLook(Exception):
    """Something on the disk cannot be counted, and why."""


def size_on_disk(*folders: str) -> tuple[int, int]:
    """How many files and folders lie in these, and the bytes that they take. It ends early above the most that there may be.

    What is not there, or goes meanwhile, takes nothing. Raises CannotLook and OSError: what cannot be seen may be of any size.
    """
    files = size = 0

    def add(name: str, within: int | None, depth: int) -> None:
        nonlocal files, size
        if depth > _DEEPEST:
            raise CannotLook(f"more than {_DEEPEST} folders lie in one another")
        with contextlib.suppress(FileNotFoundError), _opened(name, within) as handle, os.scandir(handle) as entries:
            for entry in entries:
                files += 1
                if files > MOST_FILES:
                    return
                with contextlib.suppress(FileNotFoundError):
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        add(entry.name, handle, depth + 1)

    for folder in folders:
        add(folder, None, 0)
    return files, size


def remove(folder: Path) -> None:
    """Removes the folder with all that lies in it, whatever its modes and however deep. What cannot be removed stays."""
    with contextlib.suppress(OSError), _opened(str(folder), None, is_to_be_ours=True) as top:
        names = (f"{os.urandom(8).hex()}-{number}" for number in count())
        while _empty(top, names):
            pass
    with contextlib.suppress(OSError):
        folder.rmdir()


def _empty(top: int, names: Iterator[str]) -> bool:
    """Removes what lies in the folder, but for what was found a level deeper, which is moved up into it; whether there was such.

    So there is never more than one folder open below, and each is moved once.
    """
    has_moved = False
    for name, is_folder in _listed(top):
        with contextlib.suppress(OSError):
            if not is_folder:
                os.unlink(name, dir_fd=top)
                continue
            with contextlib.suppress(OSError), _opened(name, top, is_to_be_ours=True) as handle:
                has_moved |= _hollow(handle, top, names)
            os.rmdir(name, dir_fd=top)  # another user's, too, if it is empty
    return has_moved


def _hollow(handle: int, top: int, names: Iterator[str]) -> bool:
    """Removes what lies in the folder and moves the folders in it up; whether there was one."""
    has_moved = False
    for name, is_folder in _listed(handle):
        with contextlib.suppress(OSError):
            if not is_folder:
                os.unlink(name, dir_fd=handle)
                continue
            with _opened(name, handle, is_to_be_ours=True):  # one that may not be written to cannot be moved
                os.rename(name, next(names), src_dir_fd=handle, dst_dir_fd=top)
            has_moved = True
    return has_moved


def _listed(handle: int) -> list[tuple[str, bool]]:
    with os.scandir(handle) as entries:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]


@contextlib.contextmanager
def _opened(name: str, within: int | None, *, is_to_be_ours: bool = False) -> Iterator[int]:
    """A descriptor of the folder, to list it; `is_to_be_ours` gives its owner all rights on it before."""
    place = os.open(name, (os.O_PATH if is_to_be_ours else os.O_RDONLY) | _FOLDER, dir_fd=within)
    try:
        if not is_to_be_ours:
            yield place
            return
        itself = f"/proc/self/fd/{place}"  # no name that could be made a link meanwhile
        mode = stat.S_IMODE(os.fstat(place).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(itself, mode | stat.S_IRWXU)
        handle = os.open(itself, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield handle
        finally:
            os.close(handle)
    finally:
        os.close(place)
