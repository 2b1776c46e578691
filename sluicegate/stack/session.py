"""The stack for the length of a `with` block: for tests, the demo and benchmarks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from sluicegate.stack import child
from sluicegate.stack.machine import ADMIN_TOKEN, BASE_DIR
from sluicegate.stack.processes import StartFailed
from sluicegate.stack.progress import LONGEST_START_S

#: The pid in the name of the lease's holder (`ledger.adapters.process_names`).
_LEADER = "SELECT split_part(owner, ':', 2) FROM ledger_lease WHERE name = 'engine' AND owner <> ''"


@dataclass(frozen=True)
class Stack:
    """A running stack. `admin_password` is known only on a state folder's first start; `env` is what its own processes were given."""

    base_url: str
    gateway_http: str
    gateway_grpc: str  # host:port
    gateway_admin: str
    xds_address: str
    state_dir: Path
    admin_password: str
    env: Mapping[str, str] = field(repr=False)
    supervisor_pid: int = 0

    @property
    def admin_token(self) -> str:
        """A bearer token of the administrator."""
        return (self.state_dir / ADMIN_TOKEN).read_text().strip()

    @property
    def database_url(self) -> str:
        """The database, as its services see it."""
        return Path(self.env["DATABASE_URL_FILE"]).read_text().strip()

    def pid_of(self, name: str, *, unlike: int = 0, within_s: float = 20.0) -> int:
        """The pid of a running process of the stack, and a new pid if `unlike` names the old. Raises TimeoutError."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                pid = int(json.loads((self.state_dir / "processes.json").read_text()).get(name, 0))
            except FileNotFoundError:
                pid = 0
            if pid and pid != unlike and Path(f"/proc/{pid}").exists():
                return pid
            if time.monotonic() > deadline:
                raise TimeoutError(f"The stack has run no {name} for {within_s:g} s.")
            time.sleep(0.05)

    def leading_engine(self, *, within_s: float = 20.0) -> int:
        """Returns the pid of the engine that leads, of the two that run. Raises TimeoutError if none leads within `within_s`."""
        deadline = time.monotonic() + within_s
        with psycopg.connect(self.database_url, autocommit=True) as session:
            while time.monotonic() < deadline:
                row = session.execute(_LEADER).fetchone()
                if row and Path(f"/proc/{row[0]}").exists():
                    return int(row[0])
                time.sleep(0.05)
        raise TimeoutError(f"No engine has led for {within_s:g} s.")

    def log_of(self, name: str) -> Path:
        return self.state_dir / "logs" / f"{name}.log"


@contextmanager
def running(
    state_dir: Path, *, port: int | None = None, env: Mapping[str, str] | None = None, ready_s: float = LONGEST_START_S
) -> Iterator[Stack]:
    """Brings the stack up on `state_dir`, yields it when it is READY, and stops it at the end, also when the caller dies.

    The stack itself gives up when a process makes no progress; `ready_s` is for a stack that hangs. `env` is set for all its
    processes. Must be entered in the main thread. Raises StartFailed with the stack's output.
    """
    state_dir = state_dir.resolve()
    (state_dir / "logs").mkdir(parents=True, exist_ok=True)
    ready_file, said = state_dir / "ready.json", state_dir / "logs" / "up.log"
    ready_file.unlink(missing_ok=True)
    argv = [
        sys.executable,
        "-m",
        "sluicegate.stack",
        "--state",
        str(state_dir),
        "--ready-file",
        str(ready_file),
        "--any-ports",
    ]
    if port:
        argv += ["--port", str(port)]
    for name, value in (env or {}).items():
        argv += ["--env", f"{name}={value}"]
    with said.open("wb") as log:
        supervisor = child.start(argv, log=log, cwd=BASE_DIR, death_signal=signal.SIGTERM)
    try:
        facts = _await_ready(supervisor, ready_file, said, ready_s)
        yield Stack(**{**facts, "state_dir": state_dir}, supervisor_pid=supervisor.pid)
    finally:
        child.stop(supervisor, grace_s=60)


def _await_ready(supervisor: subprocess.Popen[bytes], ready_file: Path, said: Path, ready_s: float) -> dict[str, Any]:
    deadline = time.monotonic() + ready_s
    while time.monotonic() < deadline:
        if ready_file.exists():
            facts: dict[str, Any] = json.loads(ready_file.read_text())
            return facts
        if supervisor.poll() is not None:
            raise StartFailed(f"The stack ended instead of becoming ready. It said:\n{said.read_text()[-3000:]}")
        time.sleep(0.05)
    raise StartFailed(f"The stack is not ready after {ready_s:g} s. It said:\n{said.read_text()[-3000:]}")
