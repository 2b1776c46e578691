"""The shim, parent process of one inference server: starts it, waits for it, and cleans up after it.

A server must outlive its agent, so that a restarted agent finds it serving, but never the stack. So each server is
the child of a shim, a small process in a session of its own:

- agent killed            → shim and server stay; the next agent adopts them through `shim.json`;
- stack's lock freed      → the shim stops its server (the supervisor holds that lock for as long as the stack lives);
- shim killed             → the kernel ends the server (PR_SET_PDEATHSIG), the next agent sweeps the folder;
- server died             → the shim clears up after it, notes how it ended in `shim.json`, and goes.

Between the two stands the server's sandbox (`serving.targets.agent.sandbox`), which ends as the server ends. Nothing but the standard
library is loaded here: a shim is a few megabytes that wait.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from ledger.adapters.files import write_whole
from ledger.adapters.linux_processes import adopt_orphans, children_of, die_with_parent, started_at_ticks
from serving.targets.agent import scratch
from serving.targets.agent.sandbox.spec import ENVIRONMENT, NAMESPACES, command, read
from serving.targets.agent.server_log import BoundedLog, append

LAUNCH_FILE = "launch.json"
SANDBOX_FILE = "sandbox.json"
SHIM_FILE = "shim.json"
LOG_FILE = "server.log"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux keeps it; Triton makes its regions there
#: How long a server may take over its own end before it is killed, in seconds, if its kind states nothing (`exit_grace_s`).
EXIT_GRACE_S = 5.0
#: How often is looked at what a server keeps on the disk, in seconds, where its home is not memory of its own; and how many looks in a
#: row may fail because the machine has no room for one.
_LOOK_EVERY_S, _LOOKS_IN_VAIN = 5.0, 12
NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
#: How long what a server left running is ended for, in seconds: with each process that is killed others may come.
_ENDS_FOR_S = 2.5
_WAITED_FOR = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}


def clear_shared_memory(prefix: str) -> int:
    """Removes a server's shared memory; how many regions there were. Triton leaks them when a model process died."""
    if len(prefix) < 4:
        raise ValueError(f"{prefix!r} is too short to be one server's own prefix")
    removed = 0
    for region in SHARED_MEMORY.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            region.unlink()
            removed += 1
    return removed


def is_locked(path: Path) -> bool:
    """Whether some process holds an exclusive lock on the file."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def keep(folder: Path) -> int:
    """Runs the server that `launch.json` in the folder describes until it ends or must end. 0 after a clean stop."""
    launch = json.loads((folder / LAUNCH_FILE).read_text())
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
    adopt_orphans()  # what a server leaves running comes here, to be ended with it
    clear_shared_memory(launch["shm_prefix"])
    sandbox, server_pid, log = _start(folder)
    record = {
        "pid": os.getpid(),
        "ticks": started_at_ticks(os.getpid()),
        "server_pid": server_pid,
        "server_ticks": started_at_ticks(server_pid) or 0,
        "started_at": time.time(),
        **{key: launch[key] for key in ("host", "ports", "shm_prefix", "deployment_id", "digest")},
        "speaks": launch.get("speaks", ""),
    }
    write_whole(folder / SHIM_FILE, json.dumps(record, indent=1))
    if launch["lock"]:
        threading.Thread(target=_watch_lock, args=(Path(launch["lock"]),), daemon=True).start()
    threading.Thread(target=_watch_growth, args=(folder, server_pid), daemon=True).start()
    was_asked = _wait(sandbox)
    _end(sandbox, float(launch.get("exit_grace_s", EXIT_GRACE_S)))
    log.finish()
    clear_shared_memory(launch["shm_prefix"])
    if was_asked:
        scratch.remove(folder)
        return 0
    with contextlib.suppress(OSError):  # the folder may be gone: an agent swept it
        write_whole(folder / SHIM_FILE, json.dumps({**record, "exit_code": sandbox.returncode}, indent=1))
    return 1


def _start(folder: Path) -> tuple[subprocess.Popen[bytes], int, BoundedLog]:
    """The sandbox, the id of the server in it (0 if there is none; the log has the reason), and the log."""
    tie = die_with_parent(signal.SIGTERM)  # SIGTERM: the server ends its model processes with it

    def before_exec() -> None:
        tie()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED_FOR)

    told, tell = os.pipe()
    (folder / LOG_FILE).touch(0o600)
    log = BoundedLog(folder / LOG_FILE)
    sandbox = subprocess.Popen(  # there is one thread yet, so a function before exec is safe
        command(folder / SANDBOX_FILE, report=tell),
        env=ENVIRONMENT,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=log.pipe,
        stderr=log.pipe,
        start_new_session=True,
        preexec_fn=before_exec,
        pass_fds=[tell],
    )
    log.begin()
    os.close(tell)
    with os.fdopen(told, "rb") as report:
        return sandbox, int(report.read() or 0), log


def _watch_lock(path: Path) -> None:
    """Blocks until the stack's lock is free, gives it back at once, and asks this process to stop."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
    os.kill(os.getpid(), signal.SIGTERM)


def _watch_growth(folder: Path, server_pid: int) -> None:
    """Ends a server that keeps more than its bound on the node's disk. With namespaces the kernel holds the bound."""
    spec, in_vain = read((folder / SANDBOX_FILE).read_text()), 0
    while server_pid and not spec.has(NAMESPACES):
        time.sleep(_LOOK_EVERY_S)
        told = ""
        try:
            files, size = scratch.size_on_disk(spec.home, spec.tmp)
            in_vain, most = 0, spec.bounds.scratch
            if files > scratch.MOST_FILES or size > most:
                told = f"{files} files with {size >> 20} MiB; {scratch.MOST_FILES} files and {most >> 20} MiB are its bound"
        except (OSError, scratch.CannotLook) as error:
            in_vain += 1
            if not isinstance(error, OSError) or error.errno not in NO_ROOM or in_vain == _LOOKS_IN_VAIN:
                told = f"what cannot be counted: {error}"
        if told:
            with contextlib.suppress(OSError):
                words = f"sandbox: the server is ended, because it keeps on the disk {told}\n"
                append(folder / LOG_FILE, words.encode())
            with contextlib.suppress(ProcessLookupError):
                os.kill(server_pid, signal.SIGKILL)
            return


def _wait(sandbox: subprocess.Popen[bytes]) -> bool:
    """True when asked to stop, False when the server ended by itself."""
    while True:
        received = signal.sigwaitinfo(_WAITED_FOR)
        if received.si_signo != signal.SIGCHLD:
            return True
        if sandbox.poll() is not None:
            return False
        _reap_others(sandbox.pid)


def _end(sandbox: subprocess.Popen[bytes], grace_s: float) -> None:
    if sandbox.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            sandbox.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            sandbox.wait(grace_s)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(sandbox.pid, signal.SIGKILL)  # the server if it hangs, and the model processes it left
    sandbox.wait()
    deadline = time.monotonic() + _ENDS_FOR_S
    while _reap_others() and time.monotonic() < deadline:
        for orphan in children_of(os.getpid()):  # in groups of their own; what they have started comes here in its turn
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(orphan, signal.SIGKILL)
        time.sleep(0.02)


def _reap_others(sandbox_pid: int = 0) -> bool:
    """Collects orphans that came to this process; whether any child is left. Only `subprocess` may collect the sandbox."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None or found.si_pid == sandbox_pid:
                return True
            os.waitpid(found.si_pid, os.WNOHANG)
        except ChildProcessError:
            return False


if __name__ == "__main__":
    sys.exit(keep(Path(sys.argv[1])))
