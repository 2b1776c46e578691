"""The loopback ports that this machine's own programs choose from. The standard library only."""

from __future__ import annotations

import os
import re

_NAME = "SLUICEGATE_PORTS"
_LEAST, _LOWEST, _HIGHEST = 3, 1024, 65_535  # a server has three


def ports_of(told: str) -> range:
    """From `20000-25999` to its ports. Raises ValueError with a sentence for anything else."""
    found = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", told.strip())
    first, last = map(int, found.groups()) if found else (0, 0)
    if not (_LOWEST <= first <= last <= _HIGHEST and last - first + 1 >= _LEAST):
        raise ValueError(
            f"{_NAME}={told!r} must be the first and the last of {_LEAST} ports or more, from {_LOWEST} to {_HIGHEST}, "
            "such as 20000-25999."
        )
    return range(first, last + 1)


try:
    #: Below Linux's range for outgoing connections (32768 and up), so that nobody's client takes a port while its server restarts.
    #: SLUICEGATE_PORTS (such as 20000-25999) narrows it, so that two stacks that start at the same time choose no port twice.
    CHOICES = ports_of(os.environ.get(_NAME, "20000-31999"))
except ValueError as error:
    raise SystemExit(str(error)) from None  # whoever starts a program is told a sentence, as of the other settings
