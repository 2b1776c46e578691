"""What a server holds and uses: measured on the processes that it is, from /proc."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from serving.targets.core.use import Use

_PROC: Final = Path("/proc")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
#: In /proc/<pid>/stat, from the third field on: the parent, and utime, stime, cutime, cstime.
_PARENT, _CPU = 1, (11, 12, 13, 14)
_N = TypeVar("_N", int, float)


@dataclass(frozen=True)
class _Process:
    memory_bytes: int
    own_bytes: int | None
    shared_bytes: int | None
    cpu_s: float | None
    open_files: int | None


def use_of(roots: Iterable[int], proc: Path = _PROC) -> dict[int, Use]:
    """What each of these processes uses with all that it started, by its pid; those of which nothing can be read are left out.

    A page that several processes share counts for each with its part (proportional set size), so that the sum is what would be
    free without them; where that may not be read, pages in memory count whole. What cannot be told of one process is told of
    none of its family, but for memory. Source: proc_pid_smaps(5), proc_pid_status(5), proc_pid_stat(5).
    """
    children = _children(proc)
    found = {}
    for root in roots:
        family = [one for pid in _family(root, children) if (one := _process(pid, proc)) is not None]
        if family:
            found[root] = Use(
                sum(one.memory_bytes for one in family),
                _sum([one.own_bytes for one in family]),
                _sum([one.shared_bytes for one in family]),
                _sum([one.cpu_s for one in family]),
                _sum([one.open_files for one in family]),
            )
    return found


def families_of(roots: Iterable[int], proc: Path = _PROC) -> dict[int, int]:
    """The root of each process that one of these started, and of itself, by its pid."""
    children = _children(proc)
    return {pid: root for root in roots for pid in _family(root, children)}


def _sum(values: list[_N | None]) -> _N | None:
    """Of at least one; None where one of them is."""
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if len(known) == len(values) else None


def _children(proc: Path) -> dict[int, list[int]]:
    """Processes by their parent."""
    found: dict[int, list[int]] = defaultdict(list)
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                found[int(_stat(folder)[_PARENT])].append(int(folder.name))
    return found


def _stat(folder: Path) -> list[str]:
    """The fields from the third on. The second is the program's name in brackets, which may hold any bytes. Raises OSError."""
    return folder.joinpath("stat").read_bytes().rpartition(b")")[2].decode().split()


def _family(root: int, children: dict[int, list[int]]) -> list[int]:
    found, left = [], [root]
    while left:
        pid = left.pop()
        found.append(pid)
        left += [one for one in children.get(pid, ()) if one not in found]
    return found


def _process(pid: int, proc: Path) -> _Process | None:
    """None for a process that is gone or may not be looked at."""
    folder = proc / str(pid)
    sizes = _sizes(folder / "smaps_rollup")
    memory = sizes.get("Pss", _sizes(folder / "status").get("VmRSS"))
    if memory is None:
        return None
    own, shared = sizes.get("Pss_Anon"), sizes.get("Pss_Shmem")
    cpu_s = open_files = None
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = _stat(folder)
        cpu_s = sum(int(fields[at]) for at in _CPU) / _TICKS_PER_S
    with contextlib.suppress(OSError):
        open_files = sum(1 for _ in (folder / "fd").iterdir())
    return _Process(memory, None if own is None or shared is None else own + shared, shared, cpu_s, open_files)


def _sizes(path: Path) -> dict[str, int]:
    """Bytes, by field, of those that are given in kB. A process names itself, with any bytes."""
    found = {}
    with contextlib.suppress(OSError):
        for line in path.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if value.endswith(" kB"):
                with contextlib.suppress(ValueError):
                    found[name] = int(value.split()[0]) * 1024
    return found
