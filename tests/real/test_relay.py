"""A gateway whose relay keeps its last snapshot: started anew without a control plane it serves that, and follows the next one."""

from __future__ import annotations

import socket
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from serving.environments.core.addresses import TlsFiles
from serving.targets.adapters.listening import takes_connections
from serving.traffic.control_plane.kept import SnapshotFile
from serving.traffic.control_plane.protos import SCOPE
from serving.traffic.control_plane.server import AdsServer, GatewayIdentity
from tests.support.rigs.certificates import Authority
from tests.support.rigs.gateway_rig import Plane, Rig, Traffic, free_port, rig, wait_until
from tests.support.servers.stub_server import Loop

pytestmark = [pytest.mark.real("envoy"), pytest.mark.timeout(300)]


class RelayProcess:
    """`python -m serving.traffic.control_plane.relay` for gateway-1, with nothing in its environment."""

    def __init__(self, folder: Path, xds: str, tls: TlsFiles | None = None) -> None:
        self.socket, self.file, self.log = folder / "relay.sock", folder / "snapshot", folder / "relay.log"
        self._argv = [
            sys.executable,
            "-m",
            "serving.traffic.control_plane.relay",
            "gateway-1",
            f"--listen=unix:{self.socket}",
        ]
        self._argv += [f"--file={self.file}", f"--control-planes={xds}"]
        if tls:
            self._argv += [f"--certificate={tls.certificate}", f"--key={tls.key}", f"--authority={tls.authority}"]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"unix:{self.socket}"

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._argv, cwd=settings.BASE_DIR, env={}, stdout=log, stderr=log)
        wait_until(lambda: takes_connections(self.socket), "the relay listens")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None

    def says(self, text: str) -> bool:
        return text in self.log.read_text()

    def kept(self) -> dict[str, str]:
        """The versions of the virtual hosts in its file."""
        return {name: one.version for name, one in SnapshotFile(self.file, "gateway-1").read().get(SCOPE, {}).items()}


@contextmanager
def relayed(
    folder: Path, *, tls: TlsFiles | None = None, gateway_tls: TlsFiles | None = None, before: str = ""
) -> Iterator[Any]:
    """(the rig, its relay, the control plane's address). `before`: a control plane that the relay is to try first."""
    xds = f"127.0.0.1:{free_port()}"
    relay = RelayProcess(folder, f"{before},{xds}" if before else xds, gateway_tls)
    relay.start()
    try:
        with rig(folder, xds=xds, tls=tls, gateway_tls=gateway_tls, relay=relay.address) as parts:
            yield parts, relay, xds
    finally:
        relay.kill()


def versions(parts: Rig) -> dict[str, str]:
    snapshot = parts.plane.snapshot("production")
    assert snapshot is not None
    of_models = {name: model.scope.version for name, model in snapshot.models.items()}
    return {**of_models, snapshot.unknown.name: snapshot.unknown.version}


@pytest.mark.parametrize("is_frozen", [False, True], ids=["dead", "frozen"])
def test_an_envoy_started_without_a_control_plane(tmp_path: Path, is_frozen: bool) -> None:
    with relayed(tmp_path) as (parts, relay, xds):
        parts.apply(5000)
        parts.apply(3000)
        parts.loop.run(parts.ads.stop())
        host, _, port = xds.rpartition(":")
        with socket.socket() as frozen:
            if is_frozen:  # its kernel takes connections, and nobody says a word
                frozen.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                frozen.bind((host, int(port)))
                frozen.listen()
            parts.envoy.stop()
            relay.kill()
            relay.start()
            began = time.monotonic()
            parts.envoy.start()
            wait_until(parts.envoy.is_open, "the gateway opens")
            answers = [parts.envoy.http() for _ in range(300)]
            print(f"served {time.monotonic() - began:.2f} s after its start")  # noqa: T201 - shown with -s
            assert {one.status for one in answers} == {200}
            by = Counter(one.release for one in answers)
            assert by.keys() == {"r1", "r2"} and 45 <= by["r2"] <= 135, by  # 90 are due; 5.6 standard deviations
            traffic = Traffic(parts.envoy)
            traffic.go_on()
        parts.ads = AdsServer(parts.plane)
        parts.loop.run(parts.ads.start(xds))
        parts.apply(0)
        told = time.monotonic()
        traffic.go_on(100)
        assert {release for at, release, _ in traffic.calls if at > told} == {"r1"}
        assert set(traffic.stop()) == {""}
        assert relay.kept() == versions(parts)


def test_nothing_counts_as_taken_that_is_not_kept(tmp_path: Path) -> None:
    with relayed(tmp_path) as (parts, relay, _):
        seen: list[bool] = []
        record = parts.plane.record_acks

        def look(*said: Any) -> None:
            seen.append(relay.kept() == versions(parts))
            record(*said)

        parts.plane.record_acks = look
        for weight in (100, 500, 2500, 10_000, 0):
            parts.apply(weight)
        assert seen == [True] * 5
        assert stat.S_IMODE(relay.file.stat().st_mode) == 0o600


def test_a_relay_that_dies_costs_nothing_and_forgets_nothing(tmp_path: Path) -> None:
    with relayed(tmp_path) as (parts, relay, _):
        parts.apply(5000)
        traffic = Traffic(parts.envoy)
        relay.kill()
        relay.file.unlink()  # so the next one has to ask for all of it again
        traffic.go_on()
        relay.start()
        parts.apply(2500)
        assert set(traffic.stop()) == {""}
        assert relay.kept() == versions(parts)


def test_without_a_snapshot_the_gateway_opens_with_its_control_plane(tmp_path: Path) -> None:
    with relayed(tmp_path) as (parts, relay, xds):
        parts.loop.run(parts.ads.stop())
        relay.file.write_text("{}\nof another time")
        relay.kill()
        relay.start()
        wait_until(lambda: relay.says("is not used"), "it says so")
        assert not parts.envoy.is_open()
        parts.ads = AdsServer(parts.plane)
        parts.loop.run(parts.ads.start(xds))
        parts.apply(5000)
        assert relay.kept() == versions(parts)


def test_a_relay_shows_its_gateways_certificate_and_believes_no_other_control_plane(tmp_path: Path) -> None:
    ours, others = Authority(tmp_path), Authority(tmp_path, "other")
    with relayed(tmp_path, tls=ours.control_plane(), gateway_tls=ours.gateway("gateway-1")) as (parts, relay, xds):
        parts.apply(5000)
        parts.loop.run(parts.ads.stop())
        parts.ads = AdsServer(parts.plane)
        parts.loop.run(parts.ads.start(xds, others.control_plane(trusts=ours)))
        parts.envoy.stop()
        parts.publish(parts.route(0))
        parts.envoy.start()
        wait_until(parts.envoy.is_open, "it is served what was kept")
        assert {parts.envoy.http().release for _ in range(40)} == {"r1", "r2"}
        assert relay.says("no control plane answers: Envoy is served the last snapshot")


def test_a_control_plane_that_refuses_the_gateway_keeps_it_from_no_other(tmp_path: Path) -> None:
    loop, stranger = Loop(), f"127.0.0.1:{free_port()}"
    refusing = AdsServer(Plane(GatewayIdentity(2, "gateway-2", "production", (("127.0.0.1", free_port()),))))
    loop.run(refusing.start(stranger))
    try:
        with relayed(tmp_path, before=stranger) as (parts, relay, _):
            parts.apply(3000)
            assert parts.envoy.http().status == 200 and relay.kept() == versions(parts)
    finally:
        loop.run(refusing.stop())
        loop.close()
