"""Sockets to listen on."""

from __future__ import annotations

import errno
import socket
import stat
from pathlib import Path

from serving.environments.core.addresses import Address


def bound(address: Address) -> socket.socket:
    """A socket with this address that does not listen yet; a socket file is for this process's user alone. Raises OSError."""
    if address.path:
        _clear(Path(address.path))
    family = socket.AF_UNIX if address.path else socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if address.path:
            sock.bind(address.path)
            Path(address.path).chmod(0o600)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((address.host, address.port))
    except BaseException:
        sock.close()
        raise
    return sock


def takes_connections(path: Path) -> bool:
    """Whether somebody listens on the socket file."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        try:
            trial.settimeout(1)
            trial.connect(str(path))
        except OSError:
            return False
    return True


def _clear(file: Path) -> None:
    """Removes what a process that was killed left. Raises OSError where somebody listens there, or where it is no socket."""
    try:
        is_socket = stat.S_ISSOCK(file.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket or takes_connections(file):
        raise OSError(errno.EADDRINUSE, "it is in use", str(file))
    file.unlink()
