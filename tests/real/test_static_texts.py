"""Text servers that their owner runs, listed by an environment: releases behind a real Envoy, on llama.cpp's own server."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

import pytest
from django.utils import timezone

from ledger.core.canonical import canonical_bytes, sha256_of
from registry.core.kinds.llamacpp import LLAMACPP
from registry.core.kinds.texts import SERVING
from registry.models import Release
from serving.environments.core.lifecycle import LIVE
from serving.models import ListedServer, Node, Replica
from serving.servers.clients import client_of
from serving.targets.actions.static_servers import list_server
from serving.targets.agent.runtime_image import venv_of
from serving.targets.agent.server_ports import free_ports
from tests.contracts import serving_models as made
from tests.real.test_agent import database, eventually  # noqa: F401
from tests.real.test_static_servers import (
    CUT_OFF,
    SYSTEM,
    Product,
    Users,
    gateway,  # noqa: F401
    server_of,
    static_production,
    tended,
)
from tests.support.rigs.gateway_rig import Envoy, wait_until
from tests.support.worlds.tiny_gguf import tiny_gguf

pytestmark = [pytest.mark.real("llamacpp", "envoy"), pytest.mark.timeout(600)]
HOST, CHAT, JSON = "127.0.0.1", "/v1/chat/completions", {"Content-Type": "application/json"}
PROGRAM = Path(__file__).parents[2] / "serving" / "runner" / "llamacpp_server.py"


class Owned:
    """A llama.cpp that its owner starts and ends at one port, beside any agent."""

    def __init__(self, folder: Path, model: str, seed: int) -> None:
        folder.mkdir()
        shutil.copy(PROGRAM, folder / "model.py")
        (folder / "model.gguf").write_bytes(tiny_gguf(seed))
        serving = {"options": {"n_ctx": 256, "n_predict": 4}, "instance_group": [{"count": 2}]}
        (folder / "sluicegate.json").write_text(json.dumps(serving))
        self.folder, self.model, self.port = folder, model, free_ports()["http"]
        self.image = f"company/chat@sha256:{seed:064x}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        python = venv_of(made.VENV, LLAMACPP) / "bin" / "python"
        argv = [str(python), "-I", str(self.folder / "model.py"), HOST, str(self.port), self.model]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, env={"PATH": os.defpath})
        wait_until(self.is_live, "the owner's server answers", timeout_s=60)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def is_live(self) -> bool:
        client = client_of(HOST, self.port, self.port, "vllm/chat")
        try:
            return client.is_live()
        finally:
            client.close()

    def listed(self, name: str) -> ListedServer:
        return list_server(
            actor=SYSTEM, environment=static_production(), name=name, address=f"{HOST}:{self.port}:{self.port}",
            kind="vllm", runtime=self.image,
        )  # fmt: skip


class Chats(Users):
    """Users of a chat model."""

    def __init__(self, envoy: Envoy, model: str) -> None:
        self.body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})
        super().__init__(envoy, model)

    def ask(self) -> str:
        try:
            answer = self._envoy.http(CHAT, JSON, self.body.encode())
        except (HTTPException, ConnectionError):
            return CUT_OFF
        if answer.status != 200:
            return f"HTTP {answer.status}"
        assert isinstance(json.loads(answer.body)["choices"][0]["message"]["content"], str)
        return answer.release or "?"


@pytest.fixture
def product(database: str, tmp_path: Path) -> Product:
    static_production()
    return Product(tmp_path)


@pytest.fixture
def owned(product: Product, tmp_path: Path) -> Iterator[list[Owned]]:
    """Two servers, each with weights of its own."""
    with contextlib.ExitStack() as held:
        both = [Owned(tmp_path / f"owned-{seed}", product.model.slug, seed) for seed in (1, 2)]
        for one in both:
            held.callback(one.kill)
            one.start()
        yield both


def sealed(product: Product, number: int, image: str) -> Release:
    blobs = made.MemoryBlobs()
    serving = {**SERVING, "interface": "chat", "options": {}, "warmup": [], "instance_group": []}
    manifest = made.manifest(blobs, product.model.slug, {"artifact/config.json": b"{}"}, serving, backend="vllm")
    manifest["runtime"] = {"image": image, "server": "vllm", "backend": "vllm"}
    for sha256 in blobs.data:
        product.store.put_stream(blobs.open(sha256), sha256)
    data = canonical_bytes(manifest)
    return Release.objects.create(
        model=product.model, number=number, state="sealed", manifest=data.decode(), digest=sha256_of(data),
        sealed_at=timezone.now(),
    )  # fmt: skip


def test_releases_on_an_owners_text_servers_are_split_watched_and_left(
    product: Product, owned: list[Owned], database: str, gateway: Envoy, tmp_path: Path
) -> None:
    releases = [sealed(product, number, one.image) for number, one in enumerate(owned, 1)]
    places = [one.listed(f"chat-{one.port}") for one in owned]
    with tended(database, tmp_path, places) as machine:
        replicas = [product.deploy(release) for release in releases]
        assert [one.node_id for one in replicas] == [place.node_id for place in places]
        for replica in replicas:
            machine.ready(replica)
        (offered,) = Node.objects.get(pk=places[0].node_id).runtimes
        assert (offered["server"], offered["backends"]) == ("vllm", ["vllm"])
        product.route(releases[0], releases[1], bp=5000)
        wait_until(gateway.is_open, "the gateway's port")
        users = Chats(gateway, product.model.slug)
        try:
            users.hear("r1")
            users.hear("r2")
            asked = json.loads(users.body)
            stream = gateway.http(CHAT, JSON, json.dumps({**asked, "stream": True}).encode())
            assert stream.status == 200 and b"data: [DONE]" in stream.body and stream.release in ("r1", "r2")
            assert gateway.http(CHAT, JSON, json.dumps({**asked, "messages": 1}).encode()).status == 400
            assert gateway.http(CHAT, JSON, json.dumps({**asked, "model": "other"}).encode()).status == 404
            assert users.heard("r1", "r2"), users.answered
            product.route(releases[0])
            owned[0].kill()
            assert eventually(lambda: "does not answer as it should" in Replica.objects.get(pk=replicas[0].pk).reason)
            assert Replica.objects.get(pk=replicas[0].pk).state in LIVE
            wait_until(lambda: users.ask() == "HTTP 503", "users are told the truth")
            owned[0].start()
            machine.ready(replicas[0], recoveries=1)
            users.hear("r1")
        finally:
            users.stop()
        assert users.heard("r1", "r2", "HTTP 503"), users.answered
        assert server_of(replicas[1]).pid == 0
    assert all(one.is_live() for one in owned)
