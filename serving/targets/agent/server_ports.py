"""The ports that a server which is about to start will listen on."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections import deque

from ledger.adapters.local_ports import CHOICES
from serving.environments.core.addresses import LOOPBACK
from serving.ports import LaunchError

_NAMES = ("http", "grpc", "metrics")
#: A server takes seconds until it listens, and others may be started meanwhile: what was given last is given again only where
#: nothing else is free. Of 4,000 ports two of three servers that are started at once would meet in one of 150 times (27 pairs).
_given: deque[int] = deque(maxlen=100 * len(_NAMES))
_giving = threading.Lock()


def free_ports(address: str = LOOPBACK) -> dict[str, int]:
    """Three ports of the address that nothing listens on now: {"http", "grpc", "metrics"}. Raises LaunchError where there are none."""
    found: list[int] = []
    drawn = random.sample(CHOICES, k=min(200 + len(_given), len(CHOICES)))
    with _giving:
        for port in sorted(drawn, key=_given.__contains__):
            with socket.socket() as trial, contextlib.suppress(OSError):
                trial.bind((address, port))
                found.append(port)
            if len(found) == len(_NAMES):
                _given.extend(found)
                return dict(zip(_NAMES, found, strict=True))
    raise LaunchError(
        "not_ready", f"There are no three free ports from {CHOICES.start} to {CHOICES.stop - 1} on this node."
    )
