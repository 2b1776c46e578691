"""The stack in the foreground: `sluicegate up`."""

# ruff: noqa: T201 - it talks to a terminal
from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from pathlib import Path

from ledger.adapters.files import keep_private
from sluicegate.stack import machine, secrets
from sluicegate.stack.lock import AlreadyRunning, StackLock
from sluicegate.stack.machine import Machine, Options
from sluicegate.stack.modes import tighten
from sluicegate.stack.processes import StartFailed, Supervisor
from sluicegate.stack.sockets import remove_folder
from sluicegate.stack.tcp_ports import ReservedPorts

EXIT_INFRASTRUCTURE = 2


def up(options: Options) -> int:
    """Runs the whole stack until Ctrl-C or SIGTERM; the exit code is 0 then, and 2 when it could not come up."""
    began = time.monotonic()
    keep_private()
    state = options.state_dir.resolve()
    lock = StackLock(state)
    try:
        with ReservedPorts() as reserved:
            prepared = _prepare(options, state, lock, reserved)
            asyncio.run(_run(prepared, options, state, began, reserved))
    except (AlreadyRunning, StartFailed, RuntimeError, FileNotFoundError) as problem:
        print(f"sluicegate up: {problem}", file=sys.stderr, flush=True)
        return EXIT_INFRASTRUCTURE
    finally:
        if lock.is_locked:
            remove_folder(state)
        lock.release()
    return 0


def _prepare(options: Options, state: Path, lock: StackLock, reserved: ReservedPorts) -> Machine:
    """The state folder made and locked, and what runs on it. Raises StartFailed where something in it is not ours."""
    try:
        state.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        tighten(state)
        is_new = not (state / "ports.json").exists()
        _say("sluicegate", f"starts on {state}" + (", for the first time: it makes a database" if is_new else ""))
        prepared = machine.prepare(_with_state(options, state), reserved)
    except PermissionError as problem:
        raise StartFailed(_not_ours(problem, state)) from problem
    for warning in prepared.warnings:
        _say("ports", warning)
    return prepared


def _not_ours(problem: PermissionError, state: Path) -> str:
    """Such as for one file in `logs/` that root left, where another user starts the stack."""
    if problem.filename is None:
        return f"{problem}. Choose another folder with --state."
    path = Path(os.fsdecode(problem.filename))
    with contextlib.suppress(OSError):  # it is absent, or stands where we may not look
        if path.is_relative_to(state) and path.lstat().st_uid != os.geteuid():
            return (
                f"{path} is another user's ({problem.strerror}). Give it to the one who starts the stack, "
                f"`sudo chown -R {os.geteuid()} {path}`, or choose another folder with --state."
            )
    return f"{path}: {problem.strerror}. Choose another folder with --state where that is the folder's fault."


def _with_state(options: Options, state: Path) -> Options:
    return Options(**{**vars(options), "state_dir": state})


async def _run(prepared: Machine, options: Options, state: Path, began: float, reserved: ReservedPorts) -> None:
    supervisor = Supervisor(
        prepared.processes, state, say=_say, before_start=lambda process: reserved.release(process.ports)
    )
    follower = asyncio.create_task(_follow(supervisor)) if options.is_verbose else None

    def ready() -> None:
        password = _first_password(state)
        if options.ready_file:
            secrets.write(options.ready_file, json.dumps(_facts(prepared, state, password)))
        print(_banner(prepared, state, password, time.monotonic() - began), flush=True)

    try:
        await supervisor.run(ready)
    finally:
        if follower:
            follower.cancel()
        if options.ready_file:
            options.ready_file.unlink(missing_ok=True)


def _say(name: str, line: str) -> None:
    print(f"{name:>13} │ {line}", file=sys.stderr, flush=True)


async def _follow(supervisor: Supervisor) -> None:
    """Repeats the processes' log files on the terminal."""
    places = {p.name: supervisor.log_file(p.name) for p in supervisor.processes}
    read_to = {name: path.stat().st_size if path.exists() else 0 for name, path in places.items()}
    while True:
        for name, path in places.items():
            if not path.exists():
                continue
            with path.open("rb") as log:
                if path.stat().st_size < read_to[name]:
                    read_to[name] = 0  # a new log was begun
                log.seek(read_to[name])
                whole_lines = log.read().rpartition(b"\n")
            read_to[name] += len(whole_lines[0]) + len(whole_lines[1])
            for line in whole_lines[0].decode(errors="replace").splitlines():
                _say(name, line)
        await asyncio.sleep(0.2)


def _first_password(state: Path) -> str:
    """The first administrator's password, on the start that made it; its file is deleted here."""
    file = state / machine.FIRST_PASSWORD
    if not file.exists():
        return ""
    password = file.read_text().strip()
    file.unlink()
    return password


def _facts(prepared: Machine, state: Path, password: str) -> dict[str, object]:
    return {
        "base_url": prepared.base_url,
        "gateway_http": prepared.gateway_http,
        "gateway_grpc": prepared.gateway_grpc,
        "gateway_admin": prepared.gateway_admin,
        "xds_address": prepared.xds_address,
        "state_dir": str(state),
        "env": prepared.env,
        "admin_password": password,
    }


def _banner(prepared: Machine, state: Path, password: str, seconds: float) -> str:
    lines = [
        f"Sluicegate is READY ({seconds:.1f} s)",
        f"  pages and API      {prepared.base_url}",
        f"  inference, HTTP    {prepared.gateway_http}/v2/models/<model>/infer",
        f"  inference, gRPC    {prepared.gateway_grpc}",
        f"  gateway's admin    {prepared.gateway_admin}",
        f"  control plane      {prepared.xds_address}",
        f"  state, logs        {state}",
    ]
    if password:
        lines += [f"  sign in as         admin / {password}   (shown this once)"]
    lines += [f"  note: {warning}" for warning in prepared.warnings]
    return "\n".join([*lines, "Ctrl-C stops everything; a second Ctrl-C at once."])
