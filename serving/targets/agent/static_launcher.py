"""Gives releases to one inference server that somebody else runs, and takes them away again: no process is started or ended.

A folder for each release that it was given holds what is needed to find it again. Whether the server still has it is asked of the
server itself: a model that was loaded from here carries the folder's name in its configuration. See docs/decisions/0031.
"""

from __future__ import annotations

import json
import logging
import secrets
import shutil
import stat
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from ledger.adapters.files import write_whole
from registry.core.file_rules import code_files
from registry.core.kinds import KINDS, spoken_by, tells_live
from serving.ports import InferenceError, LaunchError, LaunchSpec, RunningServer, TensorSpec
from serving.servers.adapters.triton_control import About, TritonControl
from serving.servers.clients import client_of
from serving.servers.text_server import TextControl
from serving.targets.agent import model_repository, shim_record
from serving.targets.agent.health_check import require_sockets
from serving.targets.core.containment import not_contained
from serving.targets.core.static_servers import NOTHING, REQUEST, StaticServer, differences

#: A protocol message has at most 2 GiB, all files of a load request together.
MOST_REQUEST_BYTES = 2_000_000_000
_RECORD = "static.json"
#: In each folder of the server's own repository that was written from here.
_MARK = ".sluicegate"
_LOOK_EVERY_S = 0.03
#: How long the server may take to say what it has: between two probes, and where something hangs on it.
_LOOK_S, _ANSWER_S = 1.0, 5.0
_UNLOAD_LEAST_S = 5.0
log = logging.getLogger(__name__)


class StaticLauncher:
    """Implements `serving.ports.Launcher` for one server at an address.

    Args:
        servers: the folder with a folder for each release that it was given.
        loads: `nothing`, `request`, or the path of the server's model repository (`serving.targets.core.static_servers`).
        runtime: the runtime image that its owner says it is; nothing here can prove that.
        allows_uncontained_code: whether releases that bring code are loaded there, of whose containment nothing is known.
        kind: the name that the server must state, such as `triton`; empty for any.
    """

    runs_here = False

    def __init__(
        self,
        server: StaticServer,
        *,
        servers: Path,
        blobs: model_repository.Blobs,
        loads: str,
        runtime: str,
        allows_uncontained_code: bool = False,
        kind: str = "",
    ) -> None:
        self.server, self.servers, self._blobs, self._loads, self._runtime = server, servers, blobs, loads, runtime
        self._allows_uncontained_code = allows_uncontained_code
        self._texts = KINDS.get(kind) if kind in KINDS and KINDS[kind].interfaces else None
        self._control = (
            TextControl(server.host, server.http_port, self._texts)
            if self._texts
            else TritonControl(server.host, server.grpc_port)
        )
        self._kind, self._listed_kind = "", kind
        self._missing = ""  # why `runtimes` was empty when it was last asked
        self._left: set[Path] = set()  # folders of releases that could not be unloaded
        #: By model: held by whoever gives the server a release of it, or takes one away.
        self._changing: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    @property
    def tells_live(self) -> bool:
        """By the name that the server last stated; a server that never stated one is asked for no sign of life."""
        return tells_live(self._kind)

    def open_requests(self, server: RunningServer) -> int | None:
        """None: the server is on another machine. Unloading lets its running requests end."""
        return None

    def facts(self) -> dict[str, Any]:
        """For the node's facts. Of its machine nothing is known."""
        return {"static": {"address": str(self.server), "loads": self._loads}}

    def containment(self, *, within_s: float = 0.0) -> dict[str, Any]:
        says = "Somebody else runs this server: nothing is known of how it shuts code in."
        allows = self._allows_uncontained_code or self._loads == NOTHING
        return {"tier": "unknown", "says": says, "allows_uncontained_code": allows}

    def runtimes(self) -> list[dict[str, Any]]:
        """Empty while the server does not answer, or cannot be given anything; `missing()` then returns why. Asks the server once."""
        try:
            about = self._control.about()
            self._missing = self._why_not_given(about)
        except InferenceError as error:
            self._missing = self._away(error)
        if self._missing:
            return []
        self._kind = about.name
        backends = sorted(self._texts.backends if self._texts else model_repository.SERVER_BACKENDS)
        versions = {about.name: about.version}
        return [{"image": self._runtime, "server": about.name, "backends": backends, "versions": versions}]

    def missing(self) -> str:
        """Why `runtimes()` was empty when it was last called."""
        return self._missing

    def folder_for(self, replica_id: int, model: str, release_name: str) -> Path:
        """A new name, which is the model's stamp there."""
        return self.servers / f"{model}-{release_name}-{replica_id}-{secrets.token_hex(4)}"

    def start(self, spec: LaunchSpec) -> RunningServer:
        """Nothing is loaded yet: the files are verified, and lie where `await_loaded` takes them from."""
        self._check(spec)
        try:
            self._check_server(spec)
        except InferenceError as error:
            may_pass = error.reason in ("unreachable", "timeout")
            raise LaunchError("not_ready" if may_pass else "load_failed", self._away(error)) from error
        record = {"model": spec.model, "digest": spec.digest, "speaks": spoken_by(spec.manifest)}
        with self._changing[spec.model]:
            try:
                for one in self._earlier(spec.model):
                    shutil.rmtree(one)
                spec.folder.mkdir(parents=True, mode=0o700)
                if self._loads != NOTHING:
                    self._place(spec)
                write_whole(spec.folder / _RECORD, json.dumps(record))
            except OSError as error:
                self._clear(spec.folder, spec.model)
                raise LaunchError(
                    "not_ready", f"The release's files could not be written: {error.strerror}."
                ) from error
            except BaseException:
                self._clear(spec.folder, spec.model)
                raise
        return self._running(spec.folder)

    def await_loaded(
        self, server: RunningServer, model: str, *, timeout_s: float, beat: Callable[[], None] = lambda: None
    ) -> None:
        """Loads it there, where something may be loaded. Who stops waiting leaves the request under way; `stop` unloads."""
        pool = ThreadPoolExecutor(1)
        loading = pool.submit(self._load, server.folder, model, timeout_s)
        pool.shutdown(wait=False)
        while not loading.done():
            beat()
            time.sleep(_LOOK_EVERY_S)
        self._finish(loading, model, timeout_s)

    def is_alive(self, server: RunningServer) -> bool:
        """Whether it serves what it was given; a server that does not answer in time is kept.

        Raises OSError if this process cannot look.
        """
        model = _record(server.folder).get("model")
        if not model:
            return False
        try:
            return self._has(server.folder, model, within_s=_LOOK_S)
        except InferenceError as error:
            if error.reason == "unreachable":
                require_sockets()
            return error.reason != "unreachable"

    def exit_code(self, server: RunningServer) -> int | None:
        return None

    def adopt(self, folder: Path) -> RunningServer | None:
        running = self._running(folder)
        return running if self.is_alive(running) else None

    def stop(self, server: RunningServer, *, grace_s: float) -> None:
        """Unloads the release, if it is what the server has; where nothing may be loaded the server is left as it is.

        A server that is away keeps what it has, and so does the folder: `stop_left` tries again, or the next agent's sweep.
        The model's next release may be given to it at this moment, where its node was taken off the list meanwhile: that waits.
        """
        try:
            with self._changing[_record(server.folder).get("model", "")]:
                self._unload(server.folder, timeout_s=max(grace_s, _UNLOAD_LEAST_S))
        except InferenceError as error:
            self._left.add(server.folder)
            log.warning("%s was not unloaded: %s", server.folder.name, self._away(error))

    def sweep(self, keep: set[Path]) -> list[Path]:
        self._blobs.sweep()
        left = [one for one in sorted(self.servers.glob("*")) if one.is_dir() and one not in keep]
        for folder in left:
            with shim_record.left_if_unreadable(folder):
                self.stop(self._running(folder), grace_s=0)
        return [folder for folder in left if not folder.exists()]

    def stop_left(self) -> None:
        """Nothing is unloaded of a model that is being given to the server at this moment, which may be its next release."""
        for folder in list(self._left):
            changing = self._changing[_record(folder).get("model", "")]
            if not changing.acquire(blocking=False):
                continue
            try:
                self._unload(folder, within_s=_LOOK_S, timeout_s=_UNLOAD_LEAST_S)
            except InferenceError:
                return
            finally:
                changing.release()
            self._left.discard(folder)
            log.info("%s is not on the server any more", folder.name)

    def _unload(self, folder: Path, *, timeout_s: float, within_s: float = _ANSWER_S) -> None:
        """If the server still has it; then what was written goes. Raises InferenceError."""
        if model := _record(folder).get("model"):
            if self._loads != NOTHING and self._has(folder, model, within_s=within_s):
                self._control.unload(model, timeout_s=timeout_s)
            self._clear(folder, model)

    def _running(self, folder: Path) -> RunningServer:
        at, speaks = self.server, _record(folder).get("speaks", "")
        return RunningServer(at.host, at.http_port, at.grpc_port, 0, 0, folder, speaks)

    def _earlier(self, model: str) -> list[Path]:
        """Folders of releases of the model that the server was given before: it has one at a time, and is given another now."""
        return [file.parent for file in self.servers.glob(f"*/{_RECORD}") if _record(file.parent).get("model") == model]

    def _has(self, folder: Path, model: str, *, within_s: float = _ANSWER_S) -> bool:
        """Raises InferenceError."""
        if self._loads == NOTHING:
            return self._control.serves(model, within_s=within_s)
        return self._control.stamp_of(model, within_s=within_s) == folder.name

    # what it is given

    def _check(self, spec: LaunchSpec) -> None:
        name = f"{spec.model} {spec.release_name}"
        if spec.manifest["runtime"]["image"] != self._runtime:
            raise LaunchError("runtime_mismatch", f"{name} was sealed for another runtime than {self._runtime}.")
        if spec.serving is not None:
            raise LaunchError(
                "bad_config",
                f"{self.server} serves one release of a model, so that {name} is not measured beside itself.",
            )
        if self._allows_uncontained_code or self._loads == NOTHING:
            return
        if code_files(spec.manifest["files"]):
            raise LaunchError("not_contained", not_contained(spec.model, spec.release_name))

    def _check_server(self, spec: LaunchSpec) -> None:
        """Raises InferenceError where it does not answer, LaunchError where it is not to be used for this release."""
        if why := self._why_not_given(self._control.about()):
            raise LaunchError("load_failed", why)
        if self._loads == NOTHING:
            self._check_ambiguity(spec)
            return self._check_contract(spec.model, spec.manifest)
        if self._control.stamp_of(spec.model) == "":
            raise LaunchError(
                "load_failed",
                f"{self.server} has a model named {spec.model} that was not loaded from here. Let its owner unload it first.",
            )
        return None

    def _why_not_given(self, about: About) -> str:
        """Returns why the server cannot be used as it is listed, or an empty string."""
        name, version, tells_configuration = about
        if self._listed_kind not in ("", name):
            return f"{self.server} is {name} {version}, and is listed as {self._listed_kind}. List it with kind={name}."
        if self._loads == NOTHING or tells_configuration:
            return ""
        return (
            f"{self.server} is {name} {version}, which tells no model's configuration, so that what was loaded from here could "
            f"not be told from what its owner loaded. Let its owner put releases there, and list it with loads={NOTHING}."
        )

    def _check_ambiguity(self, spec: LaunchSpec) -> None:
        """Tensors are all that is compared: a server that has the stable release would pass for one that has this."""
        if spec.alike:
            raise LaunchError(
                "load_failed",
                f"{' and '.join(spec.alike)} of {spec.model}, in use, was sealed for the same runtime as {spec.release_name}, and "
                f"nothing tells which of them {self.server} has. Seal each for a `runtime` of its own.",
            )

    def _check_contract(self, model: str, manifest: dict[str, Any]) -> None:
        at, serving = self.server, manifest["serving"]
        client = client_of(at.host, at.http_port, at.grpc_port, spoken_by(manifest))
        try:
            inputs, outputs = client.metadata(model)
        finally:
            client.close()
        batches = serving["max_batch_size"] > 0
        if found := differences(serving, _stated(inputs, batches), _stated(outputs, batches)):
            raise LaunchError(
                "load_failed", f"{self.server} serves another {model} than is declared. {' '.join(found)}"
            )

    def _place(self, spec: LaunchSpec) -> None:
        """Writes the verified files: beside the record, or into the server's own repository."""
        if self._loads == REQUEST:
            model_repository.write(spec, self._blobs, spec.folder / "repository")
            return
        target = Path(self._loads) / spec.model
        if target.exists() and not _is_ours(target):
            raise LaunchError(
                "bad_config",
                f"The repository of {self.server} has a folder {spec.model} that was not written from here.",
            )
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        (target / _MARK).touch()
        model_repository.write(spec, self._blobs, Path(self._loads))
        _open_to_all(target)

    def _load(self, folder: Path, model: str, timeout_s: float) -> None:
        if self._loads == NOTHING:
            if not self._control.serves(model):
                raise InferenceError("rejected", f"it is not ready to answer for {model}")
            return
        root = (folder / "repository" if self._loads == REQUEST else Path(self._loads)) / model
        files: dict[str, bytes] = {}
        if self._loads == REQUEST:
            paths = [path for path in sorted(root.rglob("*")) if path.is_file() and path.parent != root]
            if sum(path.stat().st_size for path in paths) > MOST_REQUEST_BYTES:
                raise InferenceError("rejected", "its files are more than a load request holds; share a folder")
            files = {str(path.relative_to(root)): path.read_bytes() for path in paths}
        config = (root / "config.pbtxt").read_text()
        self._control.load(model, config, files, stamp=folder.name, timeout_s=timeout_s)
        if not self._has(folder, model):
            raise InferenceError("server_error", "it said that it loaded the model, and has another")

    def _finish(self, loading: Future[None], model: str, timeout_s: float) -> None:
        try:
            loading.result()
        except InferenceError as error:
            said = {"timeout": f"{model} was still loading after {timeout_s:g} s"}.get(error.reason, error.message)
            reason = "not_ready" if error.reason == "unreachable" else "load_failed"
            raise LaunchError(reason, f"{self.server}: {said}") from error
        except OSError as error:  # somebody cleared the folder meanwhile
            raise LaunchError("not_ready", f"The release's files are gone: {error.strerror}.") from error

    def _away(self, error: InferenceError) -> str:
        return f"The server at {self.server}, which somebody else runs, does not answer as it should: {error.message}"

    def _clear(self, folder: Path, model: str) -> None:
        """Removes what was written, of the server's own repository only where nothing newer took its place."""
        if self._loads not in (NOTHING, REQUEST):
            with suppress(InferenceError):
                if self._control.stamp_of(model) is None and _is_ours(target := Path(self._loads) / model):
                    shutil.rmtree(target, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def _record(folder: Path) -> dict[str, Any]:
    return shim_record.read(folder / _RECORD)


def _open_to_all(folder: Path) -> None:
    """For reading: the server may be another user's, and what this process makes is for its own user alone."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(stat.S_IMODE(path.stat().st_mode) | (0o055 if path.is_dir() else 0o044))


def _is_ours(model_folder: Path) -> bool:
    return (model_folder / _MARK).is_file()


def _stated(specs: list[TensorSpec], batches: bool) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(one.name, one.data_type, one.dims_of_item(has_batch_axis=batches)) for one in specs]
