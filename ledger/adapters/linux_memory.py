"""How much memory there is for this process: the machine's, or less where a container or a unit has a bound of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_CGROUPS, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def memory_here(cgroups: Path = _CGROUPS, own: Path = _OWN) -> int:
    """Bytes: the least of the machine's memory and the bounds of the cgroups that this process is in."""
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_bounds(cgroups, own)])


def _bounds(cgroups: Path, own: Path) -> Iterator[int]:
    """Those of the cgroup and of all above it, as far as they are to be seen from here: a container sees its own as the uppermost.

    Source: cgroups(7); the kernel's cgroup-v2.rst and cgroup-v1/memory.rst. No bound is "max" in the second version, and more
    than any machine has in the first.
    """
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                top, name = cgroups / "memory", "memory.limit_in_bytes"
            elif not controllers:
                top, name = cgroups, "memory.max"
            else:
                continue
            parts = [part for part in path.split("/") if part not in ("", "..")]
            for length in range(len(parts) + 1):
                with contextlib.suppress(OSError, ValueError):
                    yield int(top.joinpath(*parts[:length], name).read_text())
