"""Starts and stops real tritonservers on this machine, each with its own shim, folder, ports and shared memory."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ledger.adapters.files import write_whole
from ledger.adapters.linux_processes import is_running
from serving.adapters.triton import TritonServer, redacted
from serving.agent import model_repository, runtime_image, server_shim
from serving.ports import LaunchError, LaunchSpec, RunningServer

HOST = "127.0.0.1"
#: Below the range from which the kernel takes ports for outgoing connections, so that none of those is met.
_PORTS = range(20_000, 32_000)
START_TIMEOUT_S = 30.0
_EXIT_TIMEOUT_S = 3
_TRIES = 3
_PROJECT = Path(__file__).resolve().parents[2]
_PORT_TAKEN = re.compile(
    r"address already in use|failed to (?:bind|start).*(?:port|listen|service)|unable to .*listen", re.IGNORECASE
)


class LocalLauncher:
    """Implements `serving.ports.Launcher`.

    Args:
        servers: the folder that holds one folder for each server.
        venv: the serving environment.
        blobs: puts releases' files where they are wanted.
        lock: a file that the supervisor keeps locked for as long as the stack lives, or None when there is no stack
            and servers live until they are stopped.
    """

    def __init__(self, *, servers: Path, venv: Path, blobs: model_repository.Blobs, lock: Path | None = None) -> None:
        self.servers, self._venv, self._blobs, self._lock = servers, venv, blobs, lock
        self._shims: dict[Path, subprocess.Popen[bytes]] = {}

    def runtimes(self) -> list[dict[str, Any]]:
        """Empty when the serving environment is missing; `missing()` then says why."""
        try:
            return [runtime_image.describe(self._venv)]
        except runtime_image.RuntimeMissing:
            return []

    def missing(self) -> str:
        """Why this node can run nothing, or an empty string."""
        try:
            runtime_image.describe(self._venv)
        except runtime_image.RuntimeMissing as error:
            return str(error)
        return ""

    def folder_for(self, deployment_id: int, model: str, release_name: str) -> Path:
        """A new name: the release, the deployment, and something that no other server ever had."""
        return self.servers / f"{model}-{release_name}-{deployment_id}-{secrets.token_hex(4)}"

    def start(self, spec: LaunchSpec) -> RunningServer:
        self._check_runtime(spec)
        try:
            spec.folder.mkdir(parents=True, mode=0o700)
            model_repository.write(spec, self._blobs, spec.folder / "repository")
            for _ in range(_TRIES):
                started = self._launch(spec)
                if started:
                    return started
            raise LaunchError(
                "not_ready",
                f"No free ports were found for the server of {spec.model} {spec.release_name} in {_TRIES} tries; try again.",
            )
        except OSError as error:
            self._clear(spec.folder)
            raise LaunchError(
                "not_ready", f"The server's folder could not be made: {error.strerror}. Check the disk of this node."
            ) from error
        except BaseException:
            self._clear(spec.folder)
            raise

    def is_alive(self, server: RunningServer) -> bool:
        record = _record(server.folder)
        return bool(record) and is_running(record["server_pid"], record["server_ticks"])

    def adopt(self, folder: Path) -> RunningServer | None:
        """The server that an earlier agent started in this folder, if it still lives."""
        record = _record(folder)
        if not record or not is_running(record["server_pid"], record["server_ticks"]):
            return None
        ports = record["ports"]
        return RunningServer(
            record["host"], ports["http"], ports["grpc"], ports["metrics"], record["server_pid"], folder
        )

    def stop(self, server: RunningServer, *, grace_s: float) -> None:
        self._end(server.folder, grace_s)

    def sweep(self, keep: set[Path]) -> list[Path]:
        """Ends and removes what earlier agents left in the folder, but for `keep`; what was removed."""
        self._blobs.sweep()
        left = [folder for folder in sorted(self.servers.glob("*")) if folder.is_dir() and folder not in keep]
        for folder in left:
            self._end(folder, grace_s=server_shim.EXIT_GRACE_S + 3)
        self._shims = {folder: process for folder, process in self._shims.items() if process.poll() is None}
        return left

    def log_tail(self, folder: Path, lines: int = 15) -> str:
        """The server's last words, without paths."""
        with contextlib.suppress(OSError):
            text = (folder / server_shim.LOG_FILE).read_text(errors="replace")
            return redacted("\n".join(text.splitlines()[-lines:]))
        return ""

    def _check_runtime(self, spec: LaunchSpec) -> None:
        wanted = spec.manifest["runtime"]["image"]
        own = self.runtimes()
        if not own:
            raise LaunchError("runtime_mismatch", self.missing())
        if wanted != own[0]["image"]:
            raise LaunchError(
                "runtime_mismatch",
                f"{spec.model} {spec.release_name} was sealed for the runtime {wanted}, and this node runs {own[0]['image']}. "
                "Push the release again for this runtime, so that its gates run on it.",
            )

    def _launch(self, spec: LaunchSpec) -> RunningServer | None:
        """None when another process took one of the chosen ports first."""
        ports = free_ports()
        prefix = f"sg{spec.folder.name.rpartition('-')[2]}_"
        launch = {
            "argv": self._argv(spec.folder, ports, prefix),
            "env": self._environment(spec.folder),
            "host": HOST,
            "ports": ports,
            "shm_prefix": prefix,
            "lock": str(self._lock or ""),
            "deployment_id": spec.deployment_id,
            "digest": spec.digest,
        }
        for name in ("home", "tmp"):
            (spec.folder / name).mkdir(exist_ok=True)
        write_whole(spec.folder / server_shim.LAUNCH_FILE, json.dumps(launch, indent=1))
        (spec.folder / server_shim.SHIM_FILE).unlink(missing_ok=True)
        with (spec.folder / server_shim.LOG_FILE).open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "serving.agent.server_shim", str(spec.folder)],
                cwd=_PROJECT,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={"PATH": os.defpath, "PYTHONPATH": str(_PROJECT)},
            )
        self._shims[spec.folder] = process
        return self._await_live(spec, process, ports)

    def _await_live(
        self, spec: LaunchSpec, process: subprocess.Popen[bytes], ports: dict[str, int]
    ) -> RunningServer | None:
        client = TritonServer(HOST, ports["http"], ports["grpc"])
        deadline = time.monotonic() + START_TIMEOUT_S
        try:
            while time.monotonic() < deadline:
                if process.poll() is not None:
                    self._explain_death(spec)
                    return None
                if client.is_live() and (server := self.adopt(spec.folder)):
                    return server
                time.sleep(0.05)
        finally:
            client.close()
        raise LaunchError(
            "not_ready",
            f"The server of {spec.model} {spec.release_name} was not live after {START_TIMEOUT_S:g} s. {self.log_tail(spec.folder)}",
        )

    def _explain_death(self, spec: LaunchSpec) -> None:
        """Raises LaunchError("not_ready") unless a port was taken, which another try heals."""
        words = self.log_tail(spec.folder, lines=40)
        if not _PORT_TAKEN.search(words):
            raise LaunchError(
                "not_ready", f"The server of {spec.model} {spec.release_name} ended while it started. {words}"
            )

    def _argv(self, folder: Path, ports: dict[str, int], prefix: str) -> list[str]:
        parts = runtime_image.binaries(self._venv)
        backends = folder / "backends" / "python"
        backends.mkdir(parents=True, exist_ok=True)
        for part in parts.python_backend:
            link = backends / part.name
            link.unlink(missing_ok=True)
            link.symlink_to(part.resolve())
        return [
            str(parts.server.resolve()),
            f"--model-repository={folder / 'repository'}",
            f"--backend-directory={backends.parent}",
            "--model-control-mode=explicit",
            "--disable-auto-complete-config",
            "--metrics-interval-ms=500",
            f"--exit-timeout-secs={_EXIT_TIMEOUT_S}",
            f"--backend-config=python,shm-region-prefix-name={prefix}",
            *(
                f"--{name}-{what}={value}"
                for name, port in ports.items()
                for what, value in (("address", HOST), ("port", port))
            ),
        ]

    def _environment(self, folder: Path) -> dict[str, str]:
        """Nothing of the agent's own environment goes to a server: a release's code must not find secrets there."""
        parts = runtime_image.binaries(self._venv)
        libraries = [parts.libraries.resolve(), *([parts.python_library] if parts.python_library else [])]
        return {
            "PATH": f"{self._venv.absolute() / 'bin'}:{os.defpath}",
            "HOME": str(folder / "home"),
            "TMPDIR": str(folder / "tmp"),
            "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
            "PYTHONNOUSERSITE": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "LANG": "C.UTF-8",
        }

    def _end(self, folder: Path, grace_s: float) -> None:
        """Asks the shim to stop the server, and kills both if it does not answer."""
        record = _record(folder)
        if record:
            if is_running(record["pid"], record["ticks"]):
                os.kill(record["pid"], signal.SIGTERM)
            self._wait_for_end(folder, record, grace_s)
            for pid, ticks in ((record["pid"], record["ticks"]), (record["server_pid"], record["server_ticks"])):
                if is_running(pid, ticks):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL) if pid == record["pid"] else os.killpg(pid, signal.SIGKILL)
        self._clear(folder)

    def _wait_for_end(self, folder: Path, record: dict[str, Any], grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and any(
            is_running(record[f"{who}pid"], record[f"{who}ticks"]) for who in ("", "server_")
        ):
            time.sleep(0.02)

    def _clear(self, folder: Path) -> None:
        """Removes the folder and the shared memory. The shim, if it is our child, is ended and reaped."""
        process = self._shims.pop(folder, None)
        if process:
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(server_shim.EXIT_GRACE_S + 3)
            if process.poll() is None:
                process.kill()
                process.wait()
        server_shim.clear_shared_memory(f"sg{folder.name.rpartition('-')[2]}_")
        shutil.rmtree(folder, ignore_errors=True)


def free_ports() -> dict[str, int]:
    """Three ports that nothing listens on now: {"http", "grpc", "metrics"}."""
    found: list[int] = []
    for port in random.sample(_PORTS, k=200):
        with socket.socket() as trial, contextlib.suppress(OSError):
            trial.bind((HOST, port))
            found.append(port)
        if len(found) == 3:
            return dict(zip(("http", "grpc", "metrics"), found, strict=True))
    raise LaunchError(
        "not_ready", f"There are no three free ports from {_PORTS.start} to {_PORTS.stop - 1} on this node."
    )


def _record(folder: Path) -> dict[str, Any]:
    """What the shim wrote, or {} when there is none."""
    try:
        read: dict[str, Any] = json.loads((folder / server_shim.SHIM_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return read
