"""The door in front of Django: bodies are bounded before they are read."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from django.db import connections

import registry.tasks  # noqa: F401 - registers the handlers of its jobs
from accounts.api.credentials import Unknown
from sluicegate.front.bodies import BodyMiddleware
from sluicegate.front.uploads import UploadMiddleware
from tests.support.worlds.registry_samples import sha256
from tests.support.worlds.upload_setup import DATA, PART, dev, draft, refused, small_parts  # noqa: F401
from tests.support.worlds.uploading import begin, pieces, put, sign, some_bytes

pytestmark = pytest.mark.django_db


@pytest.fixture
def door() -> Iterator[Callable[..., httpx.Response]]:
    """`door(method, url, body, headers)`: through both middlewares alone; what they hand on to Django is told by the status 299.

    Whoever sends `Authorization: Bearer known` is known.
    """

    async def django(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive()).get("more_body"):
            pass
        if message["type"] == "http.disconnect":
            return
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def require_sender(headers: Any) -> None:
        if dict(headers).get(b"authorization") != b"Bearer known":
            raise Unknown("not_authenticated", "Who are you?")

    app = BodyMiddleware(UploadMiddleware(django), require_sender)

    def call(method: str, url: str, body: Any = b"", headers: Any = None) -> httpx.Response:
        async def run() -> httpx.Response:
            transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
            async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
                return await client.request(method, url, content=body, headers=headers)

        return asyncio.run(run())

    yield call
    connections.close_all()


def test_the_door_takes_a_part_as_it_comes(dev: Any, door: Callable[..., httpx.Response], settings: Any) -> None:
    settings.UPLOAD_PART_BYTES = 3 << 20
    data = some_bytes(4 << 20)
    told = begin(dev, draft(dev), "artifact/weights.data", data).json()
    cut = pieces(data, told["part_size"])
    [signed] = sign(dev, told["upload_id"], {1: cut[0]}).json()["parts"]

    async def slowly() -> Any:
        for at in range(0, len(cut[0]), 70_000):
            yield cut[0][at : at + 70_000]

    assert door("PUT", signed["url"], cut[1]).json()["code"] == "wrong_size"
    assert door("PUT", signed["url"], cut[0][::-1]).json()["code"] == "digest_mismatch"
    assert door("PUT", signed["url"].replace("signature=", "signature=0"), cut[0]).status_code == 403
    done = door("PUT", signed["url"], slowly())
    assert done.status_code == 200 and done.json() == {"number": 1, "size_bytes": 3 << 20, "sha256": sha256(cut[0])}
    assert door("PUT", signed["url"], cut[0]).status_code == 200
    assert [part["number"] for part in dev.get(told["links"]["self"]).json()["received"]] == [1]


def test_a_part_that_breaks_off_does_not_count(dev: Any) -> None:
    told = begin(dev, draft(dev), "artifact/weights.data", DATA).json()
    [signed] = sign(dev, told["upload_id"], {1: DATA[:PART]}).json()["parts"]
    url, said = urlsplit(signed["url"]), list[Any]()
    messages = iter([{"type": "http.request", "body": DATA[:500], "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(messages)

    async def told_back(message: Any) -> None:
        said.append(message)

    scope = {"type": "http", "method": "PUT", "path": url.path, "query_string": url.query.encode(), "headers": []}
    asyncio.run(UploadMiddleware(None)(scope, receive, told_back))  # type: ignore[arg-type]
    assert said[0]["status"] == 422 and b"upload_cut_short" in said[1]["body"]
    assert dev.get(told["links"]["self"]).json()["received"] == []
    assert put(dev, signed, DATA[:PART]).status_code == 200  # its place is free again


FILES = "/api/v1/releases/12345678-1234-1234-1234-123456789012/files/artifact"
KNOWN = {"Authorization": "Bearer known"}


def refused_by_a_page(answer: httpx.Response, status: int, code: str, said: str) -> None:
    """As a browser shows it: with the sentence, a way to what the code means, and no script or style of its own."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8"), answer.text
    assert answer.headers["connection"] == "close" and "default-src 'none'" in answer.headers["content-security-policy"]
    assert said in answer.text and f'href="/errors/{code}/"' in answer.text and f"<title>{status} · " in answer.text


async def unending() -> Any:
    raise AssertionError("the body was read")
    yield b""


def test_every_body_is_bounded_before_it_is_read(door: Callable[..., httpx.Response], settings: Any) -> None:
    settings.MAX_SIMPLE_UPLOAD_BYTES = 10
    folder = FILES
    for name in ("model.onnx", "a%0Ab"):
        refused(door("PUT", f"{folder}/{name}", unending(), {"Content-Length": "11"}), 413, "too_large")
    assert "POST /api/v1/uploads" in door("PUT", f"{folder}/a", unending(), {"Content-Length": "11"}).json()["detail"]
    for address, most in (
        ("/api/v1/tokens", 64 << 10),
        ("/api/v1/tokens:exchange", 64 << 10),
        (f"/api/v1/upload-parts/{'0' * 32}/99999999", 1 << 20),
        ("/api/v1/models/a/releases", 16 << 20),
        ("/api/v1/rollouts", 1 << 20),
    ):
        refused(door("POST", address, unending(), KNOWN | {"Content-Length": str(most + 1)}), 413, "too_large")
        refused(door("PUT", address, unending()), 411, "length_needed")  # in chunks
    for address, most in (("/", 1 << 20), ("/nowhere", 1 << 20), ("/models/a/golden-sets/add/", 16 << 20)):
        told = door("POST", address, unending(), KNOWN | {"Content-Length": str(most + 1)})
        refused_by_a_page(told, 413, "too_large", f"{most + 1} bytes are more than the {most} that one request")
        refused_by_a_page(door("PUT", address, unending()), 411, "length_needed", "without a Content-Length")
    assert door("PUT", f"{folder}/model.onnx", b"x" * 10, KNOWN).status_code == 299
    assert door("POST", "/api/v1/models", b"x" * 1000, KNOWN).status_code == 299
    assert door("GET", "/api/v1/models").status_code == 299


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
def test_a_strangers_body_is_not_read(door: Callable[..., httpx.Response], method: str) -> None:
    for address in (f"{FILES}/a", "/api/v1/models", "/api/v1/models/a/releases", "/api/v1/nowhere", "/api/v1/tokens/x"):
        told = door(method, address, unending(), {"Content-Length": "5000"})
        refused(told, 401, "not_authenticated")
        assert told.headers["www-authenticate"].startswith("Bearer") and told.headers["connection"] == "close"
    for address, sent_to in (
        ("/webhooks/new/", "?next=/webhooks/new/"),
        ("/a%3F&/", "?next=/a%3F%26/"),
        ("/sign-out/", ""),
    ):
        told = door(method, address, unending(), {"Content-Length": "5000"})
        assert (told.status_code, told.headers["location"]) == (303, f"/sign-in/{sent_to}")
    # where signing in begins: little, and in memory
    told = door(method, "/sign-in/", unending(), {"Content-Length": "70000"})
    refused_by_a_page(told, 413, "too_large", "70000 bytes")
    for address in ("/api/v1/tokens", "/api/v1/tokens:exchange"):
        assert door(method, address, b"x" * 5000).status_code == 299, address
    assert door(method, "/sign-in/", b"x" * 5000).status_code == 299


def test_a_body_that_does_not_come_is_told_so(
    door: Callable[..., httpx.Response], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.front.bodies.SILENT_S", 0.1)

    async def stalling() -> Any:
        yield b"x"
        await asyncio.sleep(5)

    refused(door("POST", "/api/v1/models", stalling(), KNOWN | {"Content-Length": "1000"}), 408, "too_slow")
    monkeypatch.setattr("sluicegate.front.bodies.WHOLE_S", 0.2)
    monkeypatch.setattr("sluicegate.front.bodies.SILENT_S", 5)

    async def dripping() -> Any:
        for _ in range(1000):
            yield b"x"
            await asyncio.sleep(0.02)

    refused(door("POST", "/api/v1/models", dripping(), KNOWN | {"Content-Length": "1000"}), 408, "too_slow")


@pytest.mark.slow  # seconds
def test_a_strangers_body_has_seconds(door: Callable[..., httpx.Response], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicegate.front.bodies.STRANGERS_S", 0.3)

    async def dripping() -> Any:
        for _ in range(40):
            yield b"x"
            await asyncio.sleep(0.02)

    length = {"Content-Length": "40"}
    refused(door("POST", "/api/v1/tokens", dripping(), length), 408, "too_slow")
    refused_by_a_page(door("POST", "/sign-in/", dripping(), length), 408, "too_slow", "did not arrive in time")
    assert door("POST", "/webhooks/new/", dripping(), KNOWN | length).status_code == 299
