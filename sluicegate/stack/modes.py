"""Who may pass into a state folder: its owner alone, and where root starts the stack, the unprivileged users that it runs parts as.

New files are private by the umask (`ledger.adapters.files.keep_private`); `tighten` does the same for a folder of an older version, and
`make_own` for a folder in a place where others may make some, too.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

#: Folders that other users have to pass through where root runs parts as them. Passing is not listing.
_PASSED_AS_ROOT = frozenset({"postgres", "servers"})
#: Below these modes are somebody else's business: that of the database's user, and of servers that may have users of their own. A
#: node's copies of blobs are hard links to the files under its servers; the folder above closes them.
_THEIR_OWN_BELOW = frozenset({"postgres", "servers", "blob-cache"})


def tighten(state: Path) -> None:
    """Takes from everybody but the owner what they may do in a state folder, files and folders, without following links.

    A folder that was closed already is not looked into. Raises PermissionError where something belongs to another user than the one
    who starts the stack.
    """
    passed = 0o011 if os.geteuid() == 0 else 0
    _close(state, keeps=passed)
    for entry in sorted(state.iterdir()):
        was_open = _close(entry, keeps=passed if entry.name in _PASSED_AS_ROOT else 0)
        if not was_open or not entry.is_dir() or entry.is_symlink():
            continue
        if entry.name in _THEIR_OWN_BELOW:  # files in it are ours, such as the lock that agents take turns by
            for file in entry.iterdir():
                if file.is_file():
                    _close(file)
            continue
        for above, folders, files in os.walk(entry, followlinks=False):
            for name in (*folders, *files):
                _close(Path(above, name))


def make_own(folder: Path, otherwise: str) -> None:
    """Makes a folder for its owner alone, or takes over one that is this user's.

    Under the system's temporary folder anybody may have made it before us, and could put something else in the place of whatever is in
    it: then, and where it is a link, it is refused. Raises RuntimeError, which ends with `otherwise`: what to do instead of removing it.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise RuntimeError(f"{folder} is not a folder of this user. Remove it, or {otherwise}.")
    folder.chmod(0o700)


def _close(path: Path, *, keeps: int = 0) -> bool:
    """Clears the rights of group and others, but for those in `keeps`; whether there were any."""
    try:
        mode = path.lstat().st_mode
        extra = mode & 0o077 & ~keeps
        if not extra or stat.S_ISLNK(mode):
            return False
        path.chmod(stat.S_IMODE(mode) & ~extra)
    except FileNotFoundError:
        return False  # a process of an earlier run has just removed it
    return True
