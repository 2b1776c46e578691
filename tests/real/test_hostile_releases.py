"""A hostile release on a real server, and hostile users of the machine: what they reach of the service and of each other."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient import grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from serving.ports import LaunchError, RunningServer
from serving.servers.adapters.triton import CONTROL_HEADER, TritonServer
from serving.targets.agent import containment, server_shim
from serving.targets.agent.blob_cache import BlobCache
from serving.targets.agent.launcher import LocalLauncher
from serving.targets.agent.sandbox.spec import LANDLOCK, NAMESPACES, SECCOMP, USER
from serving.targets.core.containment import Containment
from tests.contracts import serving_models as made
from tests.support.rigs.sandbox_rig import NOBODY as ANOTHER_USER
from tests.support.rigs.sandbox_rig import PROBES, expected, ordinary_python, system_v_memory
from tests.support.rigs.triton_rig import end_at_once

pytestmark = [pytest.mark.real("triton"), pytest.mark.root_too]
MODEL = "hostile"
_MIB = 1 << 20
#: Runs the probes that a request asks for, and answers what they found.
HOSTILE = (
    PROBES.read_text().partition("\nif __name__")[0]
    + """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            told = json.loads(pb_utils.get_input_tensor_by_name(request, "told").as_numpy().ravel()[0])
            found = bounds(told) if told.get("bounds") else run(told) if told else {}
            found = np.array([[json.dumps(found).encode()]], dtype=object)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("found", found)]))
        return answers
"""
)
ENVELOPE = {"host": {"memory_mib_min": 1024, "shm_mib_min": 64}}


def hostile(blobs: made.MemoryBlobs) -> dict[str, Any]:
    tensors = {
        "inputs": [{"name": "told", "data_type": "BYTES", "dims": [1]}],
        "outputs": [{"name": "found", "data_type": "BYTES", "dims": [1]}],
    }
    warmup = [{"batch_size": 1, "inputs": {"told": ["{}"]}}]
    manifest = made.manifest(
        blobs,
        MODEL,
        {"artifact/model.py": HOSTILE.encode()},
        made.serving(**tensors, warmup=warmup),
        backend="python",
    )
    return {**manifest, "envelope": ENVELOPE}


class Site:
    """A service with a secret, a hostile release and its neighbour."""

    def __init__(self, folder: Path, layers: tuple[str, ...] | None) -> None:
        self.blobs = made.MemoryBlobs()
        self.launcher = LocalLauncher(
            servers=folder / "servers", venv=made.VENV, blobs=BlobCache(folder / "cache", self.blobs), layers=layers
        )
        self.held = contextlib.ExitStack()
        self.system_v = system_v_memory(os.getuid(), self.held)
        self.secret = folder / "secrets" / "key"
        self.secret.parent.mkdir(mode=0o700)
        self.secret.write_text("the key")
        self.secret.chmod(0o600)
        self.hostile = self._start(hostile(self.blobs))
        self.neighbour = self._start(made.doubling(self.blobs, "neighbour"))

    def _start(self, manifest: dict[str, Any]) -> RunningServer:
        model = manifest["model"]
        running = self.launcher.start(made.launch_spec(manifest, self.launcher.folder_for(1, model, "r1")))
        self.launcher.await_loaded(running, model, timeout_s=60)
        return running

    def ask(self, **told: Any) -> dict[str, Any]:
        client = TritonServer(self.hostile.host, self.hostile.http_port, self.hostile.grpc_port)
        try:
            value = np.array([[json.dumps(told).encode()]], dtype=object)
            answer: dict[str, Any] = json.loads(
                client.infer(MODEL, {"told": value}, timeout_s=60).outputs["found"][0, 0]
            )
            return answer
        finally:
            client.close()

    def neighbour_answers(self) -> bool:
        client = TritonServer(self.neighbour.host, self.neighbour.http_port, self.neighbour.grpc_port)
        try:
            x = np.ones((1, 4), np.float32)
            return bool((client.infer("neighbour", {"x": x}, timeout_s=60).outputs["y"] == 2).all())
        finally:
            client.close()

    @property
    def region(self) -> str:
        """The neighbour's shared memory, where it is to be seen from outside; otherwise as its own code names it."""
        prefix = f"sg{self.neighbour.folder.name.rpartition('-')[2]}_"
        own = sorted(Path(f"/proc/{self.neighbour.pid}/root/dev/shm").glob(f"{prefix}*"))
        return f"/dev/shm/{own[0].name}"

    @property
    def facts(self) -> dict[str, Any]:
        folder = self.hostile.folder
        return {
            "secret": str(self.secret),
            "pid": self.neighbour.pid,
            "region": self.region,
            "unix": "/nowhere",
            "port": self.neighbour.grpc_port,
            "free_port": 19_001,
            "own_port": self.hostile.http_port,
            "served": str(folder / "repository" / MODEL / "1" / "model.py"),
            "system_v": self.system_v,
            "in_tmp": "/tmp/sluicegate-hostile-probe",
            "home": str(folder / "home"),
            "own_region": "sgown",
            "most_shared": 300,
            "processes": 950,
        }


@pytest.fixture(scope="module", params=["best", "landlock"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    # Not in /tmp: what has a name there can be listed through Landlock, since Triton must have rights on /tmp itself.
    folder = Path(tempfile.mkdtemp(prefix="sluicegate-site-", dir="/var/tmp"))
    layers = None if request.param == "best" else (LANDLOCK, SECCOMP)
    if layers and (refused := containment.try_layers(layers, made.VENV, folder / "servers")):
        pytest.skip(f"this machine does not grant landlock: {refused}")
    found = Site(folder, layers)
    try:
        if found.launcher.granted.tier is not Containment.CONTAINED:
            pytest.skip(f"this machine cannot shut code in: {found.launcher.granted.refused}")
        yield found
    finally:
        end_at_once(found.launcher)
        found.held.close()
        shutil.rmtree(folder)


def test_hostile_code_reaches_nothing_of_the_service_or_of_its_neighbour(site: Site) -> None:
    assert site.ask() == {}
    answers = site.ask(**site.facts)
    wanted = expected(site.launcher.granted.layers) | {
        "listen": {"EADDRINUSE"},  # the server has the port
        "unix socket": {"EACCES"},
    }
    assert {name: answers[name] for name in wanted if answers[name] not in wanted[name]} == {}
    assert site.secret.read_text() == "the key" and not Path("/tmp/sluicegate-hostile-probe").exists()
    assert site.ask() == {} and site.neighbour_answers()


def test_hostile_code_takes_no_more_than_its_bounds(site: Site) -> None:
    bounds = containment.bounds_of(ENVELOPE, site.launcher.granted.layers)
    got = site.ask(**site.facts, bounds=True)
    assert got["open_files"] < bounds.open_files and got["memory"] <= bounds.memory // _MIB
    if os.getuid() or not {USER, NAMESPACES}.isdisjoint(
        site.launcher.granted.layers
    ):  # the kernel counts no processes of root
        assert got["processes"] <= bounds.processes
    if NAMESPACES in site.launcher.granted.layers:
        assert got["shared_memory"] <= bounds.shared_memory // _MIB
    assert site.ask() == {} and site.neighbour_answers()


def test_a_killed_server_leaves_nothing_behind(site: Site) -> None:
    running = site._start(made.doubling(site.blobs, "brief"))
    before = {path.name for path in Path("/tmp").glob("python_env_*")}
    os.kill(running.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while site.launcher.is_alive(running) and time.monotonic() < deadline:
        time.sleep(0.02)
    site.launcher.stop(running, grace_s=5)
    prefix = f"sg{running.folder.name.rpartition('-')[2]}_"
    assert list(Path("/dev/shm").glob(f"{prefix}*")) == [] and not running.folder.exists()
    assert {path.name for path in Path("/tmp").glob("python_env_*")} <= before


# the server's control


CALLS = """
import json, sys, urllib.error, urllib.request
found = {}
for name, (path, body) in json.loads(sys.argv[1]).items():
    request = urllib.request.Request(path, None if body is None else json.dumps(body).encode())
    try:
        found[name] = urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=5).status
    except urllib.error.HTTPError as error:
        found[name] = error.code
print(json.dumps(found))
"""
CODE = "import os; os._exit(1)"
LOAD = {
    "parameters": {
        "config": json.dumps({"name": "foreign", "backend": "python", "max_batch_size": 0}),
        "file:1/model.py": base64.b64encode(CODE.encode()).decode(),
    }
}
CONTROL: dict[str, tuple[str, Any]] = {
    "load with code": ("/v2/repository/models/foreign/load", LOAD),
    "load": (f"/v2/repository/models/{MODEL}/load", {}),
    "unload": (f"/v2/repository/models/{MODEL}/unload", {}),
    "index": ("/v2/repository/index", {}),
    "shared memory": ("/v2/systemsharedmemory/status", None),
    "register": ("/v2/systemsharedmemory/region/x/register", {"key": "/x", "offset": 0, "byte_size": 1}),
    "trace": ("/v2/trace/setting", None),
    "log settings": ("/v2/logging", {"log_verbose_level": 9}),
}


def test_another_user_of_the_machine_controls_nothing(site: Site) -> None:
    calls = {name: (f"http://127.0.0.1:{site.hostile.http_port}{path}", body) for name, (path, body) in CONTROL.items()}
    who: dict[str, Any] = {} if os.getuid() else {"user": ANOTHER_USER, "group": ANOTHER_USER, "extra_groups": []}
    python = sys.executable if os.getuid() else ordinary_python()
    if not python:
        pytest.skip("there is no Python that an ordinary user can start")
    answers = subprocess.run(
        [python, "-I", "-S", "-c", CALLS, json.dumps(calls)], capture_output=True, text=True, check=True, cwd="/", **who
    )
    assert json.loads(answers.stdout) == dict.fromkeys(CONTROL, 403)
    assert site.ask() == {}


def test_the_secret_is_not_to_be_seen_and_would_load_nothing(site: Site) -> None:
    secret = json.loads((site.hostile.folder / server_shim.LAUNCH_FILE).read_text())["secret"]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert secret.encode() not in path.read_bytes(), path
        except (FileNotFoundError, ProcessLookupError):
            continue
    client = triton_grpc.InferenceServerClient(f"{site.hostile.host}:{site.hostile.grpc_port}")
    right, wrong = ({f"triton-grpc-protocol-{CONTROL_HEADER}": value} for value in (secret, "0" * 64))
    try:
        for headers in (None, wrong):
            with pytest.raises(InferenceServerException, match="is restricted, expecting header"):
                client.get_model_repository_index(headers=headers)
        files = {"file:1/model.py": CODE.encode()}
        with pytest.raises(InferenceServerException, match="not allowed"):
            client.load_model("foreign", headers=right, config=LOAD["parameters"]["config"], files=files)
        with pytest.raises(InferenceServerException, match="not allowed"):
            client.unload_model(MODEL, headers=right)
        assert [entry.state for entry in client.get_model_repository_index(headers=right).models] == ["READY"]
    finally:
        client.close()
    assert site.ask() == {}


def test_a_refusal_is_not_taken_for_a_dead_server(site: Site) -> None:
    client = TritonServer(site.hostile.host, site.hostile.http_port, site.hostile.grpc_port)
    try:
        with pytest.raises(Exception, match="is restricted") as caught:
            client.why_not_loaded(MODEL, control_secret="no")
        assert caught.value.reason == "rejected"
    finally:
        client.close()


# where code cannot be shut in


@pytest.mark.parametrize("layers", [(SECCOMP,), ()])
def test_a_machine_that_cannot_shut_code_in_refuses_it_unless_its_owner_allows_it(
    tmp_path: Path, layers: tuple[str, ...]
) -> None:
    blobs = made.MemoryBlobs()

    def launcher(**how: Any) -> LocalLauncher:
        cache = BlobCache(tmp_path / "cache", blobs)
        return LocalLauncher(servers=tmp_path / "servers", venv=made.VENV, blobs=cache, layers=layers, **how)

    refusing, allowing = launcher(allows_uncontained_code=False), launcher()
    spec = made.launch_spec(hostile(blobs), refusing.folder_for(1, MODEL, "r1"))
    with pytest.raises(LaunchError) as caught:
        refusing.start(spec)
    assert caught.value.reason == "not_contained" and "SLUICEGATE_ALLOW_UNCONTAINED_CODE" in caught.value.message
    graph = made.launch_spec(made.doubling(blobs), refusing.folder_for(2, "doubling", "r1"))
    servers = [refusing.start(graph), allowing.start(spec)]  # a graph is no code
    for server, model in zip(servers, ("doubling", MODEL), strict=True):
        allowing.await_loaded(server, model, timeout_s=60)
    os.kill(servers[0].pid, signal.SIGKILL)
    refusing.sweep({servers[1].folder})
    assert allowing.is_alive(servers[1])
    end_at_once(allowing)
    assert list((tmp_path / "servers").glob("*")) == []
