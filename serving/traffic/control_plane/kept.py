"""The last snapshot that a gateway took, resource by resource, and the file on its machine that outlives both."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf.message import DecodeError

from ledger.adapters.files import write_whole
from serving.traffic.control_plane.protos import LISTENER, SCOPE
from serving.traffic.control_plane.stream import blamed

log = logging.getLogger(__name__)

FORMAT = 3
#: Changes are appended until they are this many bytes, or as many as the snapshot that they change.
LEAST_TO_JOIN = 1 << 20
#: Resources by type URL and name.
Resources = Mapping[str, Mapping[str, discovery_pb2.Resource]]


class SnapshotFile:
    """A snapshot, and after it what changed since, each part flushed before `write` returns. For its own user alone: virtual hosts carry
    the secret that the prober knows gateways by.

    A part is one line of JSON and then as many bytes of protobuf as it says: whose it is, and the sha256 of these bytes after those of
    the part before. A last part that is not all there was being written when the machine stopped, and nobody was told of it.
    """

    def __init__(self, path: Path, gateway: str) -> None:
        self.path, self.gateway = path, gateway
        self._is: _Written | None = None  # what this process wrote there

    def read(self) -> Resources:
        """Nothing where there is no file. One that is damaged, another gateway's, or open to other users is not believed: the log
        says so, and there is nothing.
        """
        try:
            with self.path.open("rb") as file:
                about = os.fstat(file.fileno())
                if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o077:
                    raise ValueError("other users may have written it")
                return self._read_parts(file.read())
        except FileNotFoundError:
            return {}
        except (OSError, TypeError, ValueError, DecodeError) as problem:
            log.warning("%s is not used: %s", self.path, problem)
            return {}

    def _read_parts(self, data: bytes) -> Resources:
        found: dict[str, dict[str, discovery_pb2.Resource]] = {}
        sha256, at = "", 0
        while at < len(data) or not sha256:
            end = data.find(b"\n", at)
            told = json.loads(data[at:end]) if end >= 0 else None
            size = told.get("bytes", 0) if isinstance(told, dict) else 0
            body = data[end + 1 : end + 1 + size]
            if sha256 and (told is None or len(body) < size):
                log.warning("%s ends in a change that was being written: what there was before is used", self.path)
                break
            sha256 = _chained(sha256, body)
            if told != self._header(sha256, body):
                raise ValueError(f"it is damaged, or not gateway {self.gateway}'s")
            part = discovery_pb2.DeltaDiscoveryResponse.FromString(body)
            for one in part.resources:
                found.setdefault(one.resource.type_url, {})[one.name] = one
            for gone in part.removed_resources:
                type_url, _, name = gone.partition(" ")
                found.get(type_url, {}).pop(name, None)
            at = end + 1 + size
        return found

    def write(self, resources: Resources) -> bool:
        """Whether it is on the disk. Where that fails no file stays, for it would be older than what the gateway has."""
        try:
            if self._is is None or not self._append(self._is, resources):
                self._write_whole(resources)
        except OSError as problem:
            log.error("the snapshot cannot be kept: %s", problem)
            self._is = None
            with contextlib.suppress(OSError):  # the gateway's word must go on to the control plane in any case
                self.path.unlink()
            return False
        return True

    def _write_whole(self, resources: Resources) -> None:
        every = [one for of_type in resources.values() for one in of_type.values()]
        part, sha256 = self._part("", discovery_pb2.DeltaDiscoveryResponse(resources=every))
        write_whole(self.path, part, mode=0o600, is_durable=True)
        about = self.path.stat()
        self._is = _Written(resources, sha256, about.st_ino, len(part), len(part))

    def _append(self, last: _Written, resources: Resources) -> bool:
        """False where it is time to join the parts, or the file is no longer what this process wrote."""
        change = _change(last.resources, resources)
        part, sha256 = self._part(last.sha256, change)
        if last.size + len(part) > last.whole_size + max(last.whole_size, LEAST_TO_JOIN):
            return False
        try:
            opened = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        with os.fdopen(opened, "wb", buffering=0) as file:
            about = os.fstat(file.fileno())
            if (about.st_ino, about.st_size) != (last.inode, last.size):
                return False
            if file.write(part) != len(part):
                raise OSError("a change was written in part")
            os.fsync(file.fileno())
        self._is = replace(last, resources=resources, sha256=sha256, size=last.size + len(part))
        return True

    def _part(self, before: str, change: discovery_pb2.DeltaDiscoveryResponse) -> tuple[bytes, str]:
        body = change.SerializeToString()
        sha256 = _chained(before, body)
        return json.dumps(self._header(sha256, body)).encode() + b"\n" + body, sha256

    def _header(self, sha256: str, body: bytes) -> dict[str, Any]:
        return {"format": FORMAT, "gateway": self.gateway, "bytes": len(body), "sha256": sha256}


@dataclass(frozen=True)
class _Written:
    """What a file holds: the sha256 of its last part, and its bytes with and without what was appended."""

    resources: Resources
    sha256: str
    inode: int
    size: int
    whole_size: int


def _chained(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + body).hexdigest()


def _change(last: Resources, now: Resources) -> discovery_pb2.DeltaDiscoveryResponse:
    """What makes `now` of `last`. A name that is gone has its type before it."""
    new = [
        one
        for type_url, of_type in now.items()
        for name, one in of_type.items()
        if last.get(type_url, {}).get(name) is not one
    ]
    gone = [
        f"{type_url} {name}"
        for type_url, of_type in last.items()
        for name in of_type.keys() - now.get(type_url, {}).keys()
    ]
    return discovery_pb2.DeltaDiscoveryResponse(resources=new, removed_resources=gone)


class Holding:
    """What the Envoy at the end of one stream has, followed from what it is sent and how it answers."""

    def __init__(self, kept: Resources) -> None:
        """`kept`: what it may say that it has already, from an earlier stream."""
        self._kept = kept
        self._taken: dict[str, dict[str, discovery_pb2.Resource]] = {}
        self._flying: dict[str, discovery_pb2.DeltaDiscoveryResponse] = {}

    def send(self, response: discovery_pb2.DeltaDiscoveryResponse) -> None:
        self._flying[response.nonce] = response

    def receive(self, request: discovery_pb2.DeltaDiscoveryRequest) -> bool:
        """Whether what it has changed. What it says it has and was not kept is made to be asked for again, in `request` itself."""
        mine = self._taken.get(request.type_url)
        if mine is None:
            mine = self._taken[request.type_url] = {}
            kept = self._kept.get(request.type_url, {})
            for name, version in list(request.initial_resource_versions.items()):
                if name in kept and kept[name].version == version:
                    mine[name] = kept[name]
                else:
                    request.initial_resource_versions[name] = ""
        for name in request.resource_names_unsubscribe:
            mine.pop(name, None)
        response = self._flying.pop(request.response_nonce, None)
        if response is None:
            return False
        before = {name: one.version for name, one in mine.items()}
        error = request.error_detail.message if request.HasField("error_detail") else ""
        bad = blamed(request.type_url, {one.name for one in response.resources}, error)
        for name in response.removed_resources:
            mine.pop(name, None)
        mine.update({one.name: one for one in response.resources if one.name not in bad})
        return before != {name: one.version for name, one in mine.items()}

    def whole(self) -> Resources:
        """All that it has, once that is enough to serve requests; nothing before."""
        if not all(self._taken.get(url) for url in (LISTENER, SCOPE)):
            return {}
        return {url: dict(resources) for url, resources in self._taken.items()}
