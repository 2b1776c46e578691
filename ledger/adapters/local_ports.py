"""The loopback ports that this machine's own programs choose from. The standard library only."""

from __future__ import annotations

import os

#: Below Linux's range for outgoing connections (32768 and up), so that nobody's client takes a port while its server restarts.
#: SLUICEGATE_PORTS (such as 20000-25999) narrows it, so that two stacks that start at the same time choose no port twice.
_FIRST, _, _LAST = os.environ.get("SLUICEGATE_PORTS", "20000-31999").partition("-")
CHOICES = range(int(_FIRST), int(_LAST) + 1)
