"""PostgreSQL servers of the stack's own kind, whose first start is done but once: making a cluster takes seconds, copying it none."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sluicegate.stack.postgres import Postgres


@contextmanager
def state_folder() -> Iterator[Path]:
    """One that an unprivileged user can pass through, as a checkout outside of root's home would have it."""
    folder = Path(tempfile.mkdtemp(prefix="sluicegate-test-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def keep_data(stopped: Postgres, at: Path) -> None:
    """A copy of the server's data, with its owner and its rights."""
    subprocess.run(["cp", "--archive", stopped.home / "data", at], check=True)


def first_started(state: Path, data: Path, **how: Any) -> Postgres:
    """A server that was started before, with this data; at its next start it gets passwords and a port of its own, as at each."""
    made = Postgres(state, **how)
    subprocess.run(["cp", "--archive", data, made._make_folders() / "data"], check=True)
    return made
