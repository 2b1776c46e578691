"""Blobs in an S3 bucket: `<prefix>blobs/<sha256>/whole` and `<prefix>blobs/<sha256>/<upload>`.

Parts go straight from the client to the bucket. Each address is signed for one part and one sha256, which the bucket
checks (`x-amz-checksum-sha256`). A file of one part is one PUT, of several an S3 multipart upload.

Source: AWS S3 API; ListParts, checksums and errors as measured on SeaweedFS 4.48.
"""

from __future__ import annotations

import hashlib
import io
import os
import ssl
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from django.core.exceptions import ImproperlyConfigured

from ledger.core.errors import Invalid, NotFound, Unavailable
from ledger.core.proxies import proxy_for
from registry.core.uploads import base64_of, hex_of
from registry.storage.object_reader import ObjectReader
from registry.storage.port import (
    CHUNK_BYTES,
    Place,
    Readable,
    ReceivedPart,
    SignedPart,
    all_parts,
    check_parts,
    chunks_of,
    digest_mismatch,
    no_such_blob,
    split_key,
    too_large,
    upload_gone,
)

_ABSENT = {"404", "NoSuchKey", "NoSuchUpload", "NotFound", "NoSuchVersion"}
_REFUSED = {
    "403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken",
    "NoSuchBucket", "AllAccessDisabled",
}  # fmt: skip
_WRONG_PART = {"BadDigest", "InvalidPart", "InvalidPartOrder", "EntityTooSmall", "InvalidRequest"}
#: S3's own limit for one PUT.
_LARGEST_PUT_BYTES = 5 * 2**30
#: Parallel ranges of a whole-object read, and their size: a single connection is slow.
_AHEAD, _PIECE_BYTES = 4, 8 << 20
#: Where Debian, Red Hat and Alpine keep the system's certificates in one file.
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


class _Absent(NotFound):
    """The bucket has no such object or upload."""


class _BeyondEnd(Invalid):
    """A range that begins after the object's end."""


def bucket_of(place: str) -> tuple[str, str]:
    """(bucket, prefix) of s3://bucket/prefix; the prefix is empty or ends with a slash. Raises ImproperlyConfigured."""
    parts = urlsplit(place)
    if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
        raise ImproperlyConfigured(f"SLUICEGATE_BLOB_STORE={place!r} must be a folder or s3://bucket/prefix.")
    prefix = parts.path.strip("/")
    return parts.netloc, f"{prefix}/" if prefix else ""


def ca_bundle() -> str | None:
    """The file of certificates that are trusted, as other connections trust them; None: as botocore chooses.

    botocore knows AWS_CA_BUNDLE and a list of its own, and neither the system's store nor SSL_CERT_FILE.
    """
    if os.environ.get("AWS_CA_BUNDLE"):
        return None
    named = (os.environ.get("SSL_CERT_FILE"), ssl.get_default_verify_paths().cafile, *_BUNDLES)
    return next((path for path in named if path and Path(path).is_file()), None)


def _proxy(endpoint: str) -> str:
    return proxy_for(endpoint, os.environ) if endpoint else ""


class S3Store:
    """One bucket. Threads may share it.

    endpoint: where this process reaches the bucket; empty: AWS. public_endpoint: where clients do, when that differs.
    Without keys boto3 looks for them in its own places, such as the instance's role. copies: folder for `path()`.
    """

    def __init__(
        self, bucket: str, *, prefix: str = "", endpoint: str = "", public_endpoint: str = "", region: str = "us-east-1",
        access_key: str = "", secret_key: str = "", max_bytes: int, copies: Path,
    ) -> None:  # fmt: skip
        self.bucket, self.prefix, self.max_bytes, self.copies = bucket, f"{prefix}blobs/", max_bytes, copies

        def client(at: str) -> Any:
            return boto3.client(
                "s3",
                endpoint_url=at or None,
                region_name=region,
                aws_access_key_id=access_key or None,
                aws_secret_access_key=secret_key or None,
                verify=ca_bundle(),
                config=Config(
                    signature_version="s3v4",
                    s3={"addressing_style": "path" if at else "auto"},
                    connect_timeout=3,
                    read_timeout=60,
                    retries={"mode": "standard", "total_max_attempts": 5},  # among others of 503 SlowDown
                    max_pool_connections=32,
                    # None: by botocore's own look at the environment, as the host is not known yet
                    proxies={urlsplit(at).scheme: proxy} if (proxy := _proxy(at)) else {} if at else None,
                    # By default boto3 adds CRC32s that several other stores than AWS refuse. Source: boto/boto3#4392
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                ),
            )

        self.s3 = client(endpoint)
        self._signer = client(public_endpoint) if public_endpoint else self.s3

    def public_origin(self) -> str:
        """Where clients send parts to: `https://host[:port]`, told by an address that is signed like theirs."""
        url = self._signer.generate_presigned_url(
            "put_object", Params={"Bucket": self.bucket, "Key": "x"}, ExpiresIn=60
        )
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc}"

    def put_stream(self, stream: Readable, expected_sha256: str | None = None) -> tuple[str, int]:
        with tempfile.TemporaryFile() as file:
            digest, size = hashlib.sha256(), 0
            for chunk in chunks_of(stream):
                size += len(chunk)
                if size > min(self.max_bytes, _LARGEST_PUT_BYTES):
                    raise too_large(min(self.max_bytes, _LARGEST_PUT_BYTES))
                digest.update(chunk)
                file.write(chunk)
            sha256 = digest.hexdigest()
            if expected_sha256 is not None and sha256 != expected_sha256:
                raise digest_mismatch(expected_sha256, sha256)
            if not self.exists(sha256):
                file.seek(0)
                with self._asking(sha256):
                    self.s3.put_object(
                        **self._at(sha256), Body=file, ContentLength=size, ChecksumSHA256=base64_of(sha256)
                    )
        return sha256, size

    def open(self, key: str) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(ObjectReader(partial(self.stream, key), self.size(key)), CHUNK_BYTES))

    def read_range(self, key: str, start: int, length: int) -> bytes:
        if length <= 0:
            return b""
        try:
            with self._asking(key):
                answer = self.s3.get_object(**self._at(key), Range=f"bytes={start}-{start + length - 1}")
                return bytes(answer["Body"].read())
        except _BeyondEnd:
            return b""

    def chunks(self, key: str) -> Iterator[memoryview]:
        size = self.size(key)
        with ThreadPoolExecutor(_AHEAD, thread_name_prefix="reading") as pool:
            waiting = deque[Future[bytes]]()
            try:
                for start in range(0, size, _PIECE_BYTES):
                    waiting.append(pool.submit(self.read_range, key, start, _PIECE_BYTES))
                    if len(waiting) >= _AHEAD:
                        yield memoryview(waiting.popleft().result())
                while waiting:
                    yield memoryview(waiting.popleft().result())
            finally:
                for one in waiting:
                    one.cancel()

    def stream(self, key: str, start: int) -> Any:
        """The object's bytes from `start`, as botocore's stream."""
        with self._asking(key):
            return self.s3.get_object(**self._at(key), Range=f"bytes={start}-")["Body"]

    def exists(self, key: str) -> bool:
        return self._head(key) is not None

    def size(self, key: str) -> int:
        head = self._head(key)
        if head is None:
            raise no_such_blob(key)
        return int(head["ContentLength"])

    def _head(self, key: str, **more: Any) -> Any:
        where = self._at(key)
        try:
            with self._asking(key):
                return self.s3.head_object(**where, **more)
        except _Absent:
            return None

    def path(self, key: str) -> Path:
        sha256, _ = split_key(key)
        copy = self.copies / sha256[:2] / sha256
        if copy.is_file():
            return copy
        copy.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=copy.parent)
        try:
            digest = hashlib.sha256()
            with os.fdopen(handle, "wb") as file, self.open(key) as source:
                for chunk in chunks_of(source):
                    digest.update(chunk)
                    file.write(chunk)
                os.fchmod(file.fileno(), 0o400)
            if digest.hexdigest() != sha256:
                raise digest_mismatch(sha256, digest.hexdigest())
            Path(name).replace(copy)
        finally:
            Path(name).unlink(missing_ok=True)
        return copy

    def delete(self, key: str) -> None:
        with self._asking(key):
            self.s3.delete_object(**self._at(key))
        sha256, _ = split_key(key)
        (self.copies / sha256[:2] / sha256).unlink(missing_ok=True)

    def keys(self) -> Iterator[tuple[str, int]]:
        with self._asking(""):
            for page in self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix):
                for found in page.get("Contents", []):
                    if key := self._key_of(found["Key"]):
                        yield key, int(found["Size"])

    def begin(self, key: str, size_bytes: int, part_size: int) -> Place:
        place = Place(key, size_bytes, part_size)
        if place.plan.count == 1:
            return place  # one PUT
        with self._asking(key):
            made = self.s3.create_multipart_upload(**self._at(key), ChecksumAlgorithm="SHA256")
        return Place(key, size_bytes, part_size, made["UploadId"])

    def sign_part(self, place: Place, number: int, sha256: str, expires_in_s: int) -> SignedPart:
        checksum = base64_of(sha256)
        wanted: dict[str, Any] = {**self._at(place.key), "ChecksumSHA256": checksum}
        if place.store_id:
            verb, wanted = "upload_part", {**wanted, "UploadId": place.store_id, "PartNumber": number}
        else:
            verb = "put_object"
        with self._asking(place.key):
            url = self._signer.generate_presigned_url(verb, Params=wanted, ExpiresIn=expires_in_s)
        return SignedPart(number, url, {"x-amz-checksum-sha256": checksum})

    def received_parts(self, place: Place) -> dict[int, ReceivedPart]:
        if not place.store_id:
            head = self._head(place.key, ChecksumMode="ENABLED")
            return (
                {} if head is None else {1: ReceivedPart(1, int(head["ContentLength"]), _sha256_in(head), head["ETag"])}
            )
        held = self._listed(place)
        return all_parts(place) if not held and self._has_all(place) else held

    def _listed(self, place: Place) -> dict[int, ReceivedPart]:
        held = {}
        try:
            with self._asking(place.key):
                pages = self.s3.get_paginator("list_parts").paginate(**self._at(place.key), UploadId=place.store_id)
                for page in pages:
                    for part in page.get("Parts", []):
                        number = int(part["PartNumber"])
                        held[number] = ReceivedPart(number, int(part["Size"]), _sha256_in(part), part["ETag"])
        except _Absent:
            return {}
        return held

    def complete(self, place: Place, part_sha256s: Sequence[str]) -> bool:
        # SeaweedFS ignores MpuObjectSize, so the size of what came of it is looked at.
        if place.store_id and not self._has_all(place):
            self._complete(place, part_sha256s)
        elif not place.store_id:
            check_parts(place, self.received_parts(place), part_sha256s)
        if not self._has_all(place):
            raise upload_gone(place)
        return False  # the bucket's word for a whole file is not taken: a worker reads it once

    def _has_all(self, place: Place) -> bool:
        head = self._head(place.key)
        return head is not None and int(head["ContentLength"]) == place.size_bytes

    def _complete(self, place: Place, part_sha256s: Sequence[str]) -> None:
        held = self._listed(place)
        if not held and self._has_all(place):
            return  # another completed it just now
        check_parts(place, held, part_sha256s)
        parts = [
            {"PartNumber": n, "ETag": held[n].etag, "ChecksumSHA256": base64_of(sha256)}
            for n, sha256 in enumerate(part_sha256s, 1)
        ]
        try:
            with self._asking(place.key):
                self.s3.complete_multipart_upload(
                    **self._at(place.key), UploadId=place.store_id, MultipartUpload={"Parts": parts}
                )
        except _Absent:
            if not self._has_all(place):
                raise upload_gone(place) from None

    def abort(self, place: Place) -> None:
        if not place.store_id and place.plan.count == 1:
            return  # one PUT
        for store_id in [place.store_id] if place.store_id else self._ids_of(place):
            try:
                with self._asking(place.key):
                    self.s3.abort_multipart_upload(**self._at(place.key), UploadId=store_id)
            except _Absent:
                pass

    def _ids_of(self, place: Place) -> set[str]:
        """Every multipart upload to this key: one may have been begun by a process that died before it said so."""
        return {p.store_id for p in self._unfinished(self._at(place.key)["Key"]) if p.key == place.key}

    def unfinished(self) -> Iterator[Place]:
        return self._unfinished(self.prefix)

    def _unfinished(self, prefix: str) -> Iterator[Place]:
        with self._asking(""):
            pages = self.s3.get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket, Prefix=prefix)
            for page in pages:
                for found in page.get("Uploads", []):
                    if key := self._key_of(found["Key"]):
                        yield Place(key, 0, 1, found["UploadId"])

    def _at(self, key: str) -> dict[str, str]:
        sha256, upload = split_key(key)
        return {"Bucket": self.bucket, "Key": f"{self.prefix}{sha256}/{upload or 'whole'}"}

    def _key_of(self, name: str) -> str:
        """The reverse of `_at`; empty for what is not ours."""
        key = name.removeprefix(self.prefix).removesuffix("/whole")
        try:
            split_key(key)
        except Invalid:
            return ""
        return key

    @contextmanager
    def _asking(self, key: str) -> Iterator[None]:
        """What the bucket says, in this installation's words."""
        try:
            yield
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code in _REFUSED:
                raise Unavailable(
                    "store_refused",
                    f"The bucket {self.bucket} refuses this installation ({code}). Check SLUICEGATE_BLOB_STORE, "
                    "the keys in SLUICEGATE_S3_… and the bucket's policy.",
                ) from error
            if code in _ABSENT:
                raise _Absent("no_such_blob", no_such_blob(key).message, sha256=key.partition("/")[0]) from error
            if code in ("InvalidRange", "416"):
                raise _BeyondEnd("beyond_end", "The object ends before this range.") from error
            if code in _WRONG_PART:
                raise Invalid(
                    "part_mismatch",
                    f"The bucket refuses the parts: {error.response['Error'].get('Message', code)} "
                    "Sign the parts again with the sha256 of their bytes, send them, then complete again.",
                ) from error
            raise Unavailable(
                "store_unreachable", f"The bucket {self.bucket} answers {code}. Try again soon."
            ) from error
        except (BotoCoreError, HTTPClientError) as error:
            raise Unavailable(
                "store_unreachable",
                f"The bucket {self.bucket} cannot be reached: {error}. Check SLUICEGATE_S3_ENDPOINT, then try again.",
            ) from error


def _sha256_in(answer: Any) -> str | None:
    """The sha256 that the bucket returns for a part or a single-part object; AWS does, SeaweedFS does not for parts."""
    checksum = answer.get("ChecksumSHA256", "")
    return hex_of(checksum) if checksum and "-" not in checksum else None
