"""The last snapshot that a gateway took, resource by resource, and the file on its machine that outlives both."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf.message import DecodeError

from ledger.adapters.files import write_whole
from serving.control_plane.protos import LISTENER, SCOPE
from serving.control_plane.stream import blamed

log = logging.getLogger(__name__)

FORMAT = 2
#: Resources by type URL and name.
Resources = Mapping[str, Mapping[str, discovery_pb2.Resource]]


class SnapshotFile:
    """One line of JSON that says whose it is, and what its resources' sha256 must be; then these, as protobuf. For its own user
    alone: virtual hosts carry the secret that the prober knows gateways by.
    """

    def __init__(self, path: Path, gateway: str) -> None:
        self.path, self.gateway = path, gateway

    def read(self) -> Resources:
        """Nothing where there is no file. One that is damaged, another gateway's, or open to other users is not believed: the log
        says so, and there is nothing.
        """
        try:
            with self.path.open("rb") as file:
                about = os.fstat(file.fileno())
                if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o077:
                    raise ValueError("other users may have written it")
                header, _, body = file.read().partition(b"\n")
            told = {"format": FORMAT, "gateway": self.gateway, "sha256": hashlib.sha256(body).hexdigest()}
            if json.loads(header) != told:
                raise ValueError(f"it is damaged, or not gateway {self.gateway}'s")
            found: dict[str, dict[str, discovery_pb2.Resource]] = {}
            for one in discovery_pb2.DeltaDiscoveryResponse.FromString(body).resources:
                found.setdefault(one.resource.type_url, {})[one.name] = one
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, DecodeError) as problem:
            log.warning("%s is not used: %s", self.path, problem)
            return {}
        return found

    def write(self, resources: Resources) -> bool:
        """Whether it is on the disk. Where that fails no file stays, for it would be older than what the gateway has."""
        every = [one for of_type in resources.values() for one in of_type.values()]
        body = discovery_pb2.DeltaDiscoveryResponse(resources=every).SerializeToString()
        told = {"format": FORMAT, "gateway": self.gateway, "sha256": hashlib.sha256(body).hexdigest()}
        try:
            write_whole(self.path, json.dumps(told).encode() + b"\n" + body, mode=0o600, is_durable=True)
        except OSError as problem:
            log.error("the snapshot cannot be kept: %s", problem)
            with contextlib.suppress(OSError):  # the gateway's word must go on to the control plane in any case
                self.path.unlink()
            return False
        return True


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
