"""A name for this process that other processes of the machine can check: whether the process behind it has ended."""

from __future__ import annotations

import os
import re
import socket
from functools import cache
from pathlib import Path
from typing import Final

from ledger.adapters.linux_processes import is_running, started_at_ticks

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_PIDS: Final = Path("/proc/self/ns/pid")
_NAME: Final = re.compile(
    r"(?P<host>[^:]*):(?P<pid>[0-9]{1,10}):(?P<ticks>[0-9]{1,20}):(?P<machine>[0-9a-f-]{36}/[0-9]+):[0-9a-f]+"
)


def process_name() -> str:
    """`host:pid:start:boot/namespace:random`, at most 120 characters; another one at each call."""
    host, random = _host(), os.urandom(3).hex()
    try:
        return f"{host}:{os.getpid()}:{started_at_ticks(os.getpid())}:{_machine()}:{random}"
    except OSError:  # then its end cannot be seen
        return f"{host}:{os.getpid()}:{random}"


def has_ended(name: str) -> bool:
    """Whether the process of this name has ended. False for another machine or host name, another start of the machine, and if that
    cannot be seen: /proc may hide the processes of other users."""
    told = _NAME.fullmatch(name)
    if told is None or told["host"] != _host():
        return False
    try:
        if told["machine"] != _machine() or is_running(int(told["pid"]), int(told["ticks"])):
            return False
        if started_at_ticks(int(told["pid"])) is None:  # gone, or hidden
            os.kill(int(told["pid"]), 0)
            return False
    except ProcessLookupError:
        return True
    except OSError:  # a process of another user, for example
        return False
    return True  # a zombie, or another process with its number


def _host() -> str:
    return socket.gethostname()[:32].replace(":", "")


@cache
def _machine() -> str:
    """The machine's start, and the table of processes that this one is in. Raises OSError."""
    return f"{_BOOT_ID.read_text().strip()}/{_PIDS.stat().st_ino}"
