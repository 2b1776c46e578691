"""What another user of this machine gets at in a folder: tried as such a user where root can become one, else told from the modes."""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

#: Nobody's number: not that of a process of the stack, nor of PostgreSQL's.
STRANGER = 54_321


def everything_in(folder: Path) -> list[Path]:
    """The folder and all that is in it, links not followed."""
    found = [folder]
    for above, folders, files in os.walk(folder, followlinks=False):
        found += [Path(above, name) for name in (*folders, *files)]
    return found


def trespasses(folder: Path) -> list[str]:
    """`lists X`, `reads X`, `writes X`, `connects to X` for each thing that another user can do in the folder, whatever names he knows."""
    paths = everything_in(folder)
    return as_stranger(lambda: attempts(paths)) if os.geteuid() == 0 else sorted(told_by_modes(folder, paths))


def as_stranger(work: Callable[[], Iterable[str]]) -> list[str]:
    """What `work` finds in a process of a user that nobody is. Takes root."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        code = 1
        try:
            os.close(read)
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            with os.fdopen(write, "w") as out:
                json.dump(sorted(work()), out)
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read) as told:
        said = told.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the stranger broke down"
    found: list[str] = json.loads(said)
    return found


def attempts(paths: Iterable[Path]) -> Iterable[str]:
    for path in paths:
        try:
            mode = path.lstat().st_mode
        except OSError:
            continue  # not even that is told
        if stat.S_ISDIR(mode):
            yield from _if_done(f"lists {path}", lambda path=path: os.listdir(path))
            if os.access(path, os.W_OK):
                yield f"writes {path}"
        elif stat.S_ISREG(mode):
            for what, flags in (("reads", os.O_RDONLY), ("writes", os.O_WRONLY)):
                yield from _if_done(f"{what} {path}", lambda path=path, flags=flags: os.close(os.open(path, flags)))
        elif stat.S_ISSOCK(mode):
            yield from _if_done(f"connects to {path}", lambda path=path: _connect(path))


def _if_done(what: str, act: Callable[[], object]) -> Iterable[str]:
    try:
        act()
    except OSError:
        return
    yield what


def _connect(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(str(path))


def told_by_modes(folder: Path, paths: Iterable[Path]) -> Iterable[str]:
    """The same from the rights of group and others; what lies below a folder that they cannot pass is out of reach."""
    closed = set()
    for path in paths:  # a folder comes before what is in it
        try:
            mode = path.lstat().st_mode
        except OSError:
            continue
        if path != folder and (path.parent in closed):
            if stat.S_ISDIR(mode):
                closed.add(path)
            continue
        if stat.S_ISDIR(mode) and not mode & 0o011:
            closed.add(path)
        if not stat.S_ISLNK(mode):
            yield from (f"{what} {path}" for what, bits in (("reads", 0o044), ("writes", 0o022)) if mode & bits)
