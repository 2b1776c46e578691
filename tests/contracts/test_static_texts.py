"""Servers of OpenAI's API that their owners run: a stub with vLLM's answers, and llama.cpp's own server."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from registry.core.kinds import KINDS
from registry.core.kinds.llamacpp import LLAMACPP
from registry.core.kinds.texts import PROMPT, SERVING, TEXT
from registry.core.kinds.words import meant_status
from serving.ports import InferenceError, LaunchError
from serving.servers.clients import client_of
from serving.targets.agent.blob_cache import BlobCache
from serving.targets.agent.health_check import check_health
from serving.targets.agent.runtime_image import venv_of
from serving.targets.agent.server_ports import free_ports
from serving.targets.agent.static_launcher import StaticLauncher
from serving.targets.core.health import Probe
from serving.targets.core.static_servers import NOTHING, REQUEST, StaticServer
from tests.contracts import serving_models as made
from tests.contracts.serving_models import MemoryBlobs, launch_spec
from tests.support.rigs.gateway_rig import wait_until
from tests.support.worlds.tiny_gguf import tiny_gguf

MODEL, HOST = "chatter", "127.0.0.1"
BUSY = "engine is currently busy"


class Vllm(BaseHTTPRequestHandler):
    """Answers as vLLM 0.32 was seen to answer."""

    says = ""  # words of an error that every request gets

    def do_GET(self) -> None:
        models = {"object": "list", "data": [{"id": MODEL, "object": "model", "root": "/models/chatter"}]}
        self._answer(200, models if self.path == "/v1/models" else {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            asked = json.loads(body)
            said = asked["messages"][0]["content"] if "chat" in self.path else asked["prompt"]
            is_wrong = not isinstance(asked.get("max_tokens", 0), int) or not isinstance(said, str)
        except (ValueError, LookupError, TypeError):
            is_wrong = True
        if is_wrong:
            return self._error(400, "the request is not valid")
        if asked["model"] != MODEL:
            return self._error(404, f"The model `{asked['model']}` does not exist.")
        if self.says:
            return self._error(503 if self.says == BUSY else 500, self.says)
        choice = {"message": {"role": "assistant", "content": said[::-1]}, "text": said[::-1], "finish_reason": "stop"}
        return self._answer(200, {"choices": [choice]})

    def _error(self, status: int, said: str) -> None:
        self._answer(status, {"error": {"message": said, "type": "Error", "param": None, "code": status}})

    def _answer(self, status: int, document: Any) -> None:
        body = json.dumps(document, separators=(",", ":")).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


@dataclass
class Theirs:
    kind: str
    at: StaticServer
    end: Callable[[], None]


@contextlib.contextmanager
def stub(kind: str, _: Path) -> Iterator[Theirs]:
    Vllm.says = ""
    server = ThreadingHTTPServer((HOST, 0), Vllm)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]

    def end() -> None:
        server.shutdown()
        server.server_close()

    yield Theirs(kind, StaticServer(HOST, port, port), end)
    end()


@contextlib.contextmanager
def llamacpp(kind: str, folder: Path) -> Iterator[Theirs]:
    """The real server, which its owner starts without any agent."""
    folder.mkdir()
    shutil.copy(Path(__file__).parents[2] / "serving/runner/llamacpp_server.py", folder / "model.py")
    (folder / "model.gguf").write_bytes(tiny_gguf())
    serving = {"options": {"n_ctx": 256, "n_predict": 4}, "instance_group": [{"count": 2}]}
    (folder / "sluicegate.json").write_text(json.dumps(serving))
    python, port = venv_of(made.VENV, LLAMACPP) / "bin" / "python", free_ports()["http"]
    argv = [str(python), "-I", str(folder / "model.py"), HOST, str(port), MODEL]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, env={"PATH": os.defpath})

    def end() -> None:
        process.kill()
        process.wait()

    try:
        client = client_of(HOST, port, port, f"{kind}/chat")
        wait_until(client.is_live, "llama.cpp answers", timeout_s=60)
        client.close()
        yield Theirs(kind, StaticServer(HOST, port, port), end)
    finally:
        end()


SERVERS: dict[str, Callable[[str, Path], AbstractContextManager[Theirs]]] = {
    "vllm": stub,
    "sglang": stub,
    "nim": stub,
    "llamacpp": llamacpp,
}


@pytest.fixture(params=[*list(SERVERS)[:3], pytest.param("llamacpp", marks=pytest.mark.real("llamacpp"))])
def theirs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Theirs]:
    with SERVERS[request.param](request.param, tmp_path / "owner") as one:
        yield one


def release(kind: str, model: str = MODEL) -> dict[str, Any]:
    runtime = {**made.doubling(MemoryBlobs())["runtime"], "server": kind, "backend": next(iter(KINDS[kind].backends))}
    serving = {**SERVING, "interface": "chat", "options": {}, "warmup": [], "instance_group": []}
    return {**made.doubling(MemoryBlobs()), "model": model, "runtime": runtime, "serving": serving}


def launcher_of(theirs: Theirs, folder: Path, loads: str = NOTHING) -> StaticLauncher:
    return StaticLauncher(
        theirs.at,
        servers=folder / "servers",
        blobs=BlobCache(folder / "cache", MemoryBlobs()),
        loads=loads,
        runtime=release(theirs.kind)["runtime"]["image"],
        kind=theirs.kind,
    )


def test_a_release_is_found_proven_by_an_inference_and_left(theirs: Theirs, tmp_path: Path) -> None:
    launcher, manifest = launcher_of(theirs, tmp_path), release(theirs.kind)
    (offered,) = launcher.runtimes()
    assert (offered["server"], offered["backends"]) == (theirs.kind, [manifest["runtime"]["backend"]])
    running = launcher.start(launch_spec(manifest, launcher.folder_for(1, MODEL, "r1")))
    launcher.await_loaded(running, MODEL, timeout_s=30)
    assert (running.speaks, running.pid) == (f"{theirs.kind}/chat", 0) and launcher.is_alive(running)
    client = client_of(running.host, running.http_port, running.grpc_port, running.speaks)
    answer = client.infer(MODEL, {PROMPT: np.array(["hello"], dtype=object)}, timeout_s=30)
    assert isinstance(answer.outputs[TEXT][0], bytes)
    seen, trouble = check_health(client, MODEL, manifest, timeout_s=30)
    assert (seen.probe, trouble) == (Probe.RIGHT, "")
    assert launcher_of(theirs, tmp_path).adopt(running.folder) == running  # by the next agent
    launcher.stop(running, grace_s=0)
    assert not running.folder.exists() and client.is_live()  # the server is its owner's
    running = launcher.start(launch_spec(manifest, launcher.folder_for(1, MODEL, "r1")))
    theirs.end()
    assert not launcher.is_alive(running) and launcher.runtimes() == []
    assert "does not answer as it should" in launcher.missing()
    client.close()


def test_wrong_requests_are_their_callers_mistakes(theirs: Theirs) -> None:
    for interface, codec in KINDS[theirs.kind].interfaces.items():
        client = client_of(theirs.at.host, theirs.at.http_port, theirs.at.grpc_port, f"{theirs.kind}/{interface}")
        bodies = codec.wrong(MODEL)
        for said, body in bodies.items():
            with pytest.raises(InferenceError) as caught:
                client.infer(MODEL, {"body": np.array([body], dtype=object)}, timeout_s=30)
            assert caught.value.reason == "rejected", said
        client.close()


def test_a_model_that_is_not_served_and_a_server_that_is_to_load_are_refused(theirs: Theirs, tmp_path: Path) -> None:
    launcher = launcher_of(theirs, tmp_path)
    spec = launch_spec(release(theirs.kind, "other"), launcher.folder_for(1, "other", "r1"))
    with pytest.raises((LaunchError, InferenceError), match="does not list the model other"):
        launcher.start(spec)
    loads = launcher_of(theirs, tmp_path, REQUEST)
    assert loads.runtimes() == [] and "list it with loads=nothing" in loads.missing()


def test_a_full_queue_sheds_and_a_dead_engine_is_gone(tmp_path: Path) -> None:
    words = KINDS["vllm"].words
    assert meant_status(words, 503, BUSY, is_front=True) == 429
    assert meant_status(words, 503, "another reason", is_front=True) == 503
    with stub("vllm", tmp_path) as theirs:
        client = client_of(HOST, theirs.at.http_port, 0, "vllm/chat")
        Vllm.says = "cannot schedule new futures after shutdown"
        seen, trouble = check_health(client, MODEL, release("vllm"), timeout_s=5)
        assert seen.probe == Probe.GONE and Vllm.says in trouble
        Vllm.says = BUSY
        seen, _ = check_health(client, MODEL, release("vllm"), timeout_s=5)
        assert seen.probe not in (Probe.GONE, Probe.RIGHT)
        client.close()
