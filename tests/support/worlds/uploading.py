"""How tests upload in parts: as a client does, call by call, against an API client or a running server."""

from __future__ import annotations

import random
from typing import Any
from urllib.parse import urlsplit

import httpx

from registry.core.uploads import PartPlan
from tests.support.worlds.registry_samples import sha256


def some_bytes(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def pieces(data: bytes, part_size: int) -> list[bytes]:
    plan = PartPlan(len(data), part_size)
    return [data[part.offset : part.offset + part.size_bytes] for part in plan.parts()]


def begin(client: Any, release: str, path: str, data: bytes, changes: dict[str, Any] | None = None) -> Any:
    body = {"release": release, "path": path, "size_bytes": len(data), "sha256": sha256(data)} | (changes or {})
    return client.post("/api/v1/uploads", body, format="json")


def sign(client: Any, upload: str, parts: dict[int, bytes]) -> Any:
    body = {"numbers": list(parts), "sha256": [sha256(data) for data in parts.values()]}
    return client.post(f"/api/v1/uploads/{upload}/parts:sign", body, format="json")


def put(client: Any, signed: dict[str, Any], data: bytes) -> Any:
    """To the app (a folder's parts) or to the bucket, wherever the address says."""
    url = urlsplit(signed["url"])
    if url.hostname == "testserver":
        return client.put(f"{url.path}?{url.query}", data, content_type="application/octet-stream")
    return httpx.put(signed["url"], content=data, headers=signed["headers"], timeout=60)


def send(client: Any, told: dict[str, Any], data: bytes, numbers: list[int] | None = None) -> None:
    cut = pieces(data, told["part_size"])
    for number in numbers or range(1, len(cut) + 1):
        signed = sign(client, told["upload_id"], {number: cut[number - 1]}).json()["parts"][0]
        assert put(client, signed, cut[number - 1]).status_code == 200


def complete(client: Any, upload: str) -> Any:
    return client.post(f"/api/v1/uploads/{upload}:complete")


def upload(client: Any, release: str, path: str, data: bytes) -> dict[str, Any]:
    """The whole way; what completing said."""
    told = begin(client, release, path, data).json()
    send(client, told, data)
    return complete(client, told["upload_id"]).json()
