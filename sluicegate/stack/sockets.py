"""The folder where the stack's parts meet at socket files: closed to every other user, so whoever gets in is one of them."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from serving.environments.core.addresses import LONGEST_PATH_BYTES
from sluicegate.stack.modes import make_own

CONTROL_PLANE, RELAY, PROBER, GATEWAY_ADMIN = "control-plane.sock", "relay.sock", "prober.sock", "gateway-admin.sock"
_LONGEST_NAME = max(len(name) for name in (CONTROL_PLANE, RELAY, PROBER, GATEWAY_ADMIN))


def make_folder(state: Path) -> Path:
    """`<state folder>/run`, or a folder with a short path if the first is too long for a socket. Raises RuntimeError (`make_own`)."""
    folder = _place(state)
    make_own(folder, "choose a state folder with a shorter path")
    return folder


def remove_folder(state: Path) -> None:
    """Removes the remains of an ended stack. Only for its owner."""
    folder = _place(state)
    with suppress(OSError):
        if folder.lstat().st_uid == os.geteuid():
            shutil.rmtree(folder)


def _place(state: Path) -> Path:
    own = state / "run"
    if len(os.fsencode(own)) + 1 + _LONGEST_NAME <= LONGEST_PATH_BYTES:
        return own
    key = hashlib.sha256(os.fsencode(state)).hexdigest()[:16]
    return Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"sluicegate-{key}"
