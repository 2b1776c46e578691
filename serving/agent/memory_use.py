"""How much memory a server takes: measured on the processes that it is, from /proc."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")


def memory_of(roots: Iterable[int], proc: Path = _PROC) -> dict[int, int]:
    """Bytes that each of these processes holds with all that it started, by its pid; those of which nothing can be read are left out.

    A page that several processes share counts for each with its part (proportional set size), so that the sum is what would be
    free without them; where that may not be read, pages in memory count whole. Source: proc_pid_smaps(5), proc_pid_status(5).
    """
    children = _children(proc)
    found = {}
    for root in roots:
        sizes = [size for pid in _family(root, children) if (size := _size_of(pid, proc)) is not None]
        if sizes:
            found[root] = sum(sizes)
    return found


def _children(proc: Path) -> dict[int, list[int]]:
    """Processes by their parent."""
    found: dict[int, list[int]] = defaultdict(list)
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The second field is the program's name in brackets, which may hold anything.
                found[int(folder.joinpath("stat").read_text().rpartition(")")[2].split()[1])].append(int(folder.name))
    return found


def _family(root: int, children: dict[int, list[int]]) -> list[int]:
    found, left = [], [root]
    while left:
        pid = left.pop()
        found.append(pid)
        left += [one for one in children.get(pid, ()) if one not in found]
    return found


def _size_of(pid: int, proc: Path) -> int | None:
    """Bytes; None for a process that is gone or may not be looked at."""
    for name, field in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in proc.joinpath(str(pid), name).read_text().splitlines():
                if line.startswith(field):
                    return int(line.split()[1]) * 1024
    return None
