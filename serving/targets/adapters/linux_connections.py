"""Connections to the ports of a server on this machine, as the Linux kernel lists them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
#: ESTABLISHED, and CLOSE_WAIT: a caller that sends nothing more may still wait for its answer. Source: proc(5).
_OPEN: Final = frozenset({"01", "08"})


def open_connections(ports: Collection[int], tables: Collection[Path] = _TABLES) -> int | None:
    """Number of open connections that others hold to these local ports; None if the kernel's lists cannot be read."""
    count, is_known = 0, False
    for table in tables:
        try:
            rows = table.read_text().splitlines()[1:]
        except OSError:
            continue
        is_known = True
        for row in rows:
            _, local, _, state, *_ = row.split()
            count += state in _OPEN and int(local.rpartition(":")[2], 16) in ports
    return count if is_known else None
