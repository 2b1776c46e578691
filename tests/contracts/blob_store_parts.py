"""A file that is sent to a blob store in parts, as a client sends it; and the S3 store of the tests' own server."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
from django.conf import settings

from ledger.core.errors import DomainError
from registry.core.uploads import PartTicket
from registry.storage import CHUNK_BYTES, BlobStore, FolderStore, SignedPart
from registry.storage.s3 import S3Store, bucket_of
from tests.support.rigs.s3_rig import ACCESS_KEY, SECRET_KEY, SeaweedFS

MAX_BYTES = 3 * CHUNK_BYTES
PART = 5 * 2**20  # the least that S3 allows
UPLOAD = "0123456789abcdef" * 2


def s3_store(server: SeaweedFS, copies: Path, **other: Any) -> S3Store:
    bucket, prefix = bucket_of(f"s3://{server.place()}")
    usual = {"endpoint": server.endpoint, "access_key": ACCESS_KEY, "secret_key": SECRET_KEY, "max_bytes": MAX_BYTES}
    return S3Store(bucket, prefix=prefix, copies=copies, **usual | other)


def send(store: BlobStore, part: SignedPart, data: bytes) -> int:
    """The part as a client sends it: to the bucket, or to the app, whose door hands it to the folder."""
    if isinstance(store, FolderStore):
        return send_to_folder(store, part, data)
    return httpx.put(part.url, content=data, headers=part.headers, timeout=60).status_code


def send_to_folder(store: FolderStore, part: SignedPart, data: bytes) -> int:
    url = urlsplit(part.url)
    said = {name: values[0] for name, values in parse_qs(url.query).items()}
    upload, number = url.path.split("/")[-2:]
    ticket = PartTicket(
        upload, int(number), int(said["offset"]), int(said["size"]), said["sha256"], int(said["expires"])
    )
    assert ticket.is_signed_by(settings.SECRET_KEY.encode(), said["signature"])
    try:
        writer = store.part_writer(ticket)
        try:
            for at in range(0, len(data), 100_000):
                writer.write(data[at : at + 100_000])
            writer.finish()
        finally:
            writer.close()
    except DomainError as error:
        return error.status
    return 200


class Parts:
    """A file of so many bytes, cut for an upload to a store."""

    def __init__(self, store: BlobStore, size: int, seed: int = 7, part_size: int = PART) -> None:
        self.store, self.data = store, random.Random(seed).randbytes(size)
        self.key = f"{digest(self.data)}/{UPLOAD}"
        self.place = store.begin(self.key, size, part_size)
        self.pieces = [self.data[p.offset : p.offset + p.size_bytes] for p in self.place.plan.parts()]
        self.sha256s = [digest(piece) for piece in self.pieces]

    def sign(self, number: int, expires_in_s: int = 600) -> SignedPart:
        return self.store.sign_part(self.place, number, self.sha256s[number - 1], expires_in_s)

    def send(self, number: int) -> int:
        return send(self.store, self.sign(number), self.pieces[number - 1])

    def complete(self) -> bool:
        return self.store.complete(self.place, self.sha256s)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
