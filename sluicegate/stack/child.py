"""Child processes that never outlive their parent."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from ledger.adapters.linux_processes import die_with_parent

#: The environment of a part that is not ours: it needs nothing of what our own processes are told, secrets least of all.
BARE: Mapping[str, str] = {"PATH": os.defpath, "LANG": "C.UTF-8"}


def group_of(user: str | None) -> int | None:
    """The id of the user's own group; None for None."""
    return pwd.getpwnam(user).pw_gid if user else None


def start(
    argv: Sequence[str | Path],
    *,
    log: IO[bytes],
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    user: str | None = None,
    death_signal: int = signal.SIGKILL,
) -> subprocess.Popen[bytes]:
    """A running child in a session of its own (a terminal's Ctrl-C does not reach it), its output going to `log`.

    `user`: run as this user and its group alone, which takes root. Raises OSError when the program cannot be started.
    """
    return subprocess.Popen(
        [str(part) for part in argv],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=None if env is None else dict(env),
        cwd=cwd,
        start_new_session=True,
        user=user,
        group=group_of(user),
        extra_groups=[] if user else None,
        preexec_fn=die_with_parent(
            death_signal
        ),  # safe beside threads: it takes no lock, and its library is loaded already
    )


class ChildFailed(Exception):
    """A child could not be started, did not end in time, or ended with an error: the reason, or the end of its output."""


def run(argv: Sequence[str | Path], *, timeout_s: float, text: str = "", cwd: Path | None = None) -> str:
    """What a child writes that is given `text` to read and waited for; the kernel kills it where its starter ends first.

    Raises ChildFailed.
    """
    try:
        done = subprocess.run(
            [str(part) for part in argv],
            input=text,
            capture_output=True,
            text=True,
            cwd=cwd,
            timeout=timeout_s,
            check=True,
            start_new_session=True,
            preexec_fn=die_with_parent(signal.SIGKILL),
        )
    except subprocess.CalledProcessError as error:
        raise ChildFailed(error.stderr.strip()[-600:] or str(error)) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ChildFailed(str(error)) from error
    return done.stdout


def stop(child: subprocess.Popen[bytes], *, stop_signal: int = signal.SIGTERM, grace_s: float = 10.0) -> int:
    """Asks the child to end, kills its session after `grace_s`, and gives its exit code. Idempotent."""
    if child.poll() is None:
        child.send_signal(stop_signal)
        try:
            child.wait(grace_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
    return child.wait()
