"""Starts and stops real servers on this machine, each with its own shim, folder, ports and shared memory."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ledger.adapters.files import write_whole
from ledger.adapters.linux_processes import is_running
from registry.core.file_rules import code_files
from registry.core.kinds import DEFAULT, KINDS, SPOKEN, kind_of, spoken_by
from registry.core.kinds.kind import ServerKind
from serving.environments.core.addresses import LOOPBACK
from serving.ports import InferenceError, LaunchError, LaunchSpec, RunningServer
from serving.servers.clients import client_of
from serving.servers.core.redaction import last_words
from serving.targets.adapters.linux_connections import open_connections
from serving.targets.agent import containment, model_repository, runtime_image, scratch, server_shim, shim_record
from serving.targets.agent.log_tail import end_of
from serving.targets.agent.sandbox.spec import EDITION, Spec
from serving.targets.agent.server_command import command_of
from serving.targets.agent.server_ports import free_ports
from serving.targets.core.containment import NOT_FOUND_OUT, Containment, not_contained

START_TIMEOUT_S = 30.0
#: How long the agent's beginning and a server's adoption wait to know how servers are shut in here, in seconds: it takes less than one,
#: but for a machine that has far too much to do, and there a node that says nothing would be taken for gone.
FOUND_OUT_S = 10.0
#: How long a shim may take to end a server of any kind, in seconds.
MOST_EXIT_S = max(kind.exit_grace_s for kind in KINDS.values()) + 3.0
_LOOK_EVERY_S = 0.03
_PRIVATE = 0o600
_PROJECT = Path(__file__).resolve().parents[3]
_PORT_TAKEN = re.compile(
    r"address already in use|failed to (?:bind|start).*(?:port|listen|service)|unable to .*listen", re.IGNORECASE
)


class LocalLauncher:
    """Implements `serving.ports.Launcher`.

    Args:
        servers: the folder that holds one folder for each server.
        venv: the serving environment of the default server kind. That of another kind lies beside it
            (`runtime_image.venv_of`).
        blobs: puts releases' files where they are wanted.
        lock: a file that the supervisor keeps locked for as long as the stack lives, or None when there is no stack
            and servers live until they are stopped.
        layers: what servers are shut in with; None for the best that this machine grants.
        allows_uncontained_code: whether releases that bring code run here though the machine cannot shut them in.
        address: the IP address of this machine that servers listen on.
    """

    runs_here = True
    tells_live = True  # of each kind, its own value

    def __init__(
        self,
        *,
        servers: Path,
        venv: Path,
        blobs: model_repository.Blobs,
        lock: Path | None = None,
        layers: tuple[str, ...] | None = None,
        allows_uncontained_code: bool = True,
        address: str = LOOPBACK,
    ) -> None:
        self.servers, self._venv, self._blobs, self._lock = servers, venv, blobs, lock
        self._address, self._layers, self._allows_uncontained_code = address, layers, allows_uncontained_code
        self._shims: dict[Path, subprocess.Popen[bytes]] = {}
        self._finder = containment.Finder(venv, servers)

    @property
    def granted(self) -> containment.Granted:
        """How servers are shut in here; a minute may pass before it is known. Raises containment.CannotTell."""
        return self._granted(None)

    def _granted(self, within_s: float | None) -> containment.Granted:
        return self._finder.granted(within_s) if self._layers is None else containment.Granted(self._layers)

    def containment(self, *, within_s: float = 0.0) -> dict[str, Any]:
        """For the node's facts: what is known by then."""
        try:
            return self._granted(within_s).facts(allows_uncontained_code=self._allows_uncontained_code)
        except containment.CannotTell as error:
            return {"tier": "unknown", "says": NOT_FOUND_OUT, "refused": str(error)}

    def facts(self) -> dict[str, Any]:
        return {}

    def runtimes(self) -> list[dict[str, Any]]:
        """Images of the serving environments that are whole."""
        return [one for one in self._environments() if isinstance(one, dict)]

    def missing(self) -> str:
        """Why serving environments cannot be used here, or an empty string."""
        return " ".join(one for one in self._environments() if isinstance(one, str))

    def _environments(self) -> list[dict[str, Any] | str]:
        """Returns `_described` of each kind that has a folder, or of the default kind if there is no such folder."""
        here = [kind for kind in KINDS.values() if os.path.exists(runtime_image.venv_of(self._venv, kind))]
        return [self._described(kind) for kind in here or [KINDS[DEFAULT]]]

    def _described(self, kind: ServerKind) -> dict[str, Any] | str:
        """Returns the runtime image of a kind's serving environment, or why it cannot be used."""
        if not kind.runnable:
            return f"No agent starts {kind.name}. Its owner runs it, and an environment of platform static lists it."
        try:
            return runtime_image.describe(runtime_image.venv_of(self._venv, kind), kind)
        except runtime_image.RuntimeMissing as error:
            return str(error)

    def folder_for(self, replica_id: int, model: str, release_name: str) -> Path:
        """A new name: the release, the replica, and something that no other server ever had."""
        return self.servers / f"{model}-{release_name}-{replica_id}-{secrets.token_hex(4)}"

    def start(self, spec: LaunchSpec) -> RunningServer:
        self._check_runtime(spec)
        self._check_code(spec)
        try:
            spec.folder.mkdir(parents=True, mode=0o700)
            model_repository.write(spec, self._blobs, spec.folder / "repository")
            return self._launch(spec)
        except OSError as error:
            self._clear(spec.folder)
            raise LaunchError(
                "not_ready", f"The server's folder could not be made: {error.strerror}. Check the disk of this node."
            ) from error
        except BaseException:
            self._clear(spec.folder)
            raise

    def await_loaded(
        self, server: RunningServer, model: str, *, timeout_s: float, beat: Callable[[], None] = lambda: None
    ) -> None:
        """The server opens its ports when all is loaded, or when it knows why not."""
        deadline = time.monotonic() + timeout_s
        while (why := self._why_not_loaded(server, model)) is None:
            if not self.is_alive(server):
                raise self._death(server.folder, model)
            if time.monotonic() > deadline:
                raise LaunchError(
                    "load_failed",
                    f"{model} was still loading after {timeout_s:g} s; make its start faster, or raise its time. "
                    f"{self.log_tail(server.folder)}",
                )
            beat()
            time.sleep(_LOOK_EVERY_S)
        if why:
            raise LaunchError("load_failed", why)

    def _why_not_loaded(self, server: RunningServer, model: str) -> str | None:
        """None while it loads, empty once it has loaded."""
        if not all(_listens(server.host, port) for port in {server.grpc_port, server.http_port}):
            return None
        client = client_of(server.host, server.http_port, server.grpc_port, server.speaks)
        try:
            secret = shim_record.read(server.folder / server_shim.LAUNCH_FILE)["secret"]
            return client.why_not_loaded(model, control_secret=secret)
        except (InferenceError, KeyError) as error:  # it ended just now, or another listens where it should
            raise LaunchError(
                "not_ready",
                f"The server of {model} does not say what it loaded: {error}. {self.log_tail(server.folder)}",
            ) from error
        finally:
            client.close()

    def is_alive(self, server: RunningServer) -> bool:
        return shim_record.is_alive(shim_record.record_of(server.folder))

    def open_requests(self, server: RunningServer) -> int | None:
        return open_connections({server.http_port, server.grpc_port})

    def exit_code(self, server: RunningServer) -> int | None:
        return shim_record.exit_code_of(server.folder)

    def adopt(self, folder: Path) -> RunningServer | None:
        """The server that an earlier agent started in this folder, if it still lives and is shut in as it would be today."""
        return self._find(folder) if self._is_shut_in_as_today(folder) else None

    def _is_shut_in_as_today(self, folder: Path) -> bool:
        launch = shim_record.read(folder / server_shim.LAUNCH_FILE)
        layers = shim_record.read(folder / server_shim.SANDBOX_FILE).get("layers")
        if not launch.get("secret") or int(launch.get("sandbox") or 0) < EDITION or layers is None:
            return False
        try:
            return set(self._granted(FOUND_OUT_S).layers) <= set(layers)
        except containment.CannotTell:
            return bool(layers)  # a server that is shut in is not given up for a question without an answer

    def _find(self, folder: Path) -> RunningServer | None:
        record = shim_record.record_of(folder)
        if not shim_record.is_alive(record) or str(record.get("speaks", "")) not in SPOKEN:
            return None
        ports = record["ports"]
        return RunningServer(
            record["host"],
            ports["http"],
            ports["grpc"],
            ports["metrics"],
            record["server_pid"],
            folder,
            record.get("speaks", ""),
        )

    def stop(self, server: RunningServer, *, grace_s: float) -> None:
        self._end(server.folder, grace_s)

    def sweep(self, keep: set[Path]) -> list[Path]:
        """Ends and removes what earlier agents left in the folder, but for `keep`; what was removed."""
        self._blobs.sweep()
        left = [
            folder
            for folder in sorted(self.servers.glob("*"))
            if folder.is_dir() and folder not in keep and not containment.is_trial(folder)
        ]
        for folder in left:
            with shim_record.left_if_unreadable(folder):
                self._end(folder, grace_s=server_shim.EXIT_GRACE_S + 3)
        self._shims = {folder: process for folder, process in self._shims.items() if process.poll() is None}
        return [folder for folder in left if not folder.exists()]

    def stop_left(self) -> None:
        """Processes of this machine are always stopped at once."""

    def log_tail(self, folder: Path, lines: int = 15) -> str:
        """The server's last words, without paths."""
        with contextlib.suppress(OSError):
            return last_words("\n".join(end_of(folder / server_shim.LOG_FILE).splitlines()[-lines:]))
        return ""

    def _check_runtime(self, spec: LaunchSpec) -> None:
        runtime = spec.manifest["runtime"]
        server, wanted = runtime.get("server", DEFAULT), runtime["image"]
        own = self._described(KINDS[server]) if server in KINDS else f"This node knows no server kind {server}."
        if isinstance(own, str):
            raise LaunchError("runtime_mismatch", own)
        if wanted != own["image"]:
            raise LaunchError(
                "runtime_mismatch",
                f"{spec.model} {spec.release_name} was sealed for the runtime {wanted}, and this node runs {own['image']}. "
                "Push the release again for this runtime, so that its gates run on it.",
            )

    def _check_code(self, spec: LaunchSpec) -> None:
        try:
            tier = self.granted.tier
        except containment.CannotTell as error:
            raise LaunchError("not_ready", f"{NOT_FOUND_OUT} Give this node more room: {error}.") from error
        if tier is Containment.CONTAINED or self._allows_uncontained_code:
            return
        if code_files(spec.manifest["files"]):
            raise LaunchError("not_contained", not_contained(spec.model, spec.release_name))

    def _launch(self, spec: LaunchSpec) -> RunningServer:
        """The server, as soon as its shim has told its process id."""
        kind, ports, secret = kind_of(spec.manifest), free_ports(self._address), secrets.token_hex(32)
        if kind.interfaces:  # one port for all that it does
            ports = dict.fromkeys(ports, ports["http"])
        prefix = f"sg{spec.folder.name.rpartition('-')[2]}_"
        launch = {
            "host": self._address,
            "ports": ports,
            "secret": secret,
            "sandbox": EDITION,
            "shm_prefix": prefix,
            "lock": str(self._lock or ""),
            "deployment_id": spec.replica_id,
            "digest": spec.digest,
            "speaks": spoken_by(spec.manifest),
            "exit_grace_s": kind.exit_grace_s,
        }
        sandbox = self._sandbox(spec, kind, ports, secret, prefix)
        containment.make_folders(sandbox, spec.folder)
        for name, told in ((server_shim.SANDBOX_FILE, sandbox.as_json()), (server_shim.LAUNCH_FILE, launch)):
            write_whole(spec.folder / name, json.dumps(told, indent=1), mode=_PRIVATE)
        with open(os.open(spec.folder / server_shim.LOG_FILE, os.O_WRONLY | os.O_CREAT, _PRIVATE), "wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "serving.targets.agent.server_shim", str(spec.folder)],
                cwd=_PROJECT,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={"PATH": os.defpath, "PYTHONPATH": str(_PROJECT)},
            )
        self._shims[spec.folder] = process
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if server := self._find(spec.folder):
                return server
            if process.poll() is not None:
                raise self._death(spec.folder, f"{spec.model} {spec.release_name}")
            time.sleep(_LOOK_EVERY_S)
        raise LaunchError(
            "not_ready",
            f"The server of {spec.model} {spec.release_name} had not begun after {START_TIMEOUT_S:g} s. {self.log_tail(spec.folder)}",
        )

    def _death(self, folder: Path, name: str) -> LaunchError:
        words = self.log_tail(folder, lines=40)
        hint = " Another try takes other ports." if _PORT_TAKEN.search(words) else ""
        return LaunchError("not_ready", f"The server of {name} ended while it started.{hint} {words}")

    def _sandbox(self, spec: LaunchSpec, kind: ServerKind, ports: dict[str, int], secret: str, prefix: str) -> Spec:
        layers, venv = self.granted.layers, runtime_image.venv_of(self._venv, kind)
        start, env = command_of(
            kind,
            venv,
            folder=spec.folder,
            address=self._address,
            ports=ports,
            secret=secret,
            shm_prefix=prefix,
            model=spec.model,
        )
        built = containment.spec_for(
            spec.folder,
            venv,
            layers,
            argv=(*start.argv, *start.hidden),
            env=env | visible_devices(spec.devices),
            bounds=containment.bounds_of(spec.manifest.get("envelope") or {}, layers),
        )
        places = range(len(start.argv), len(start.argv) + len(start.hidden))
        hidden = dict(zip(places, start.hidden, strict=True))
        return replace(built, ports=tuple(dict.fromkeys(ports.values())), hidden=hidden)

    def _end(self, folder: Path, grace_s: float) -> None:
        """Asks the shim to stop the server, and kills both if it does not answer. The shim has the time of any kind, unless
        `grace_s` is 0."""
        record = shim_record.record_of(folder)
        grace_s = max(grace_s, MOST_EXIT_S) if grace_s else 0.0
        if record:
            if is_running(record["pid"], record["ticks"]):
                os.kill(record["pid"], signal.SIGTERM)
            self._wait_for_end(folder, record, grace_s)
            for pid, ticks in ((record["pid"], record["ticks"]), (record["server_pid"], record["server_ticks"])):
                if is_running(pid, ticks):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL) if pid == record["pid"] else os.killpg(
                            os.getpgid(pid), signal.SIGKILL
                        )
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
        scratch.remove(folder)


def visible_devices(devices: Sequence[str]) -> dict[str, str]:
    """What keeps a server to the devices that it was given: CUDA shows it no others. Nothing where none were named."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices)} if devices else {}


def _listens(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1):
        return True
    return False
