"""The control plane believes a gateway, and nobody who says that it is one: a second peer, forged words, foreign certificates."""

from __future__ import annotations

import errno
import os
import queue
import signal
import socket
import ssl
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.service.discovery.v3 import discovery_pb2

from ledger.adapters.deadline_http import DeadlineConnection
from serving.environments.core.addresses import CONTROL_PLANE_NAME, TlsFiles, gateway_identity
from serving.ports import GatewayError
from serving.traffic.adapters.envoy_counters import EnvoyCounters
from serving.traffic.control_plane.protos import CLUSTER, LISTENER, SCOPE
from serving.traffic.control_plane.server import SERVICE
from tests.support.rigs.certificates import Authority
from tests.support.rigs.gateway_rig import MODEL, Rig, free_port, rig, wait_until

pytestmark = [pytest.mark.real("envoy"), pytest.mark.timeout(300)]


class Impostor:
    """Speaks to the control plane as an Envoy would, under a gateway's name."""

    def __init__(self, address: str, tls: TlsFiles | None = None, name: str = "gateway-1") -> None:
        options = [("grpc.ssl_target_name_override", CONTROL_PLANE_NAME)]
        self._channel = (
            grpc.secure_channel(address, _credentials(tls), options) if tls else grpc.insecure_channel(address)
        )
        self._said: queue.Queue[discovery_pb2.DeltaDiscoveryRequest | None] = queue.Queue()
        self.answers: list[discovery_pb2.DeltaDiscoveryResponse] = []
        self.code: grpc.StatusCode | None = None
        self.words = ""
        first = discovery_pb2.DeltaDiscoveryRequest(type_url=CLUSTER)
        first.node.id = name
        self._said.put(first)
        call = self._channel.stream_stream(
            f"/{SERVICE}/DeltaAggregatedResources",
            request_serializer=discovery_pb2.DeltaDiscoveryRequest.SerializeToString,
            response_deserializer=discovery_pb2.DeltaDiscoveryResponse.FromString,
        )(iter(self._said.get, None))
        self._reader = threading.Thread(target=self._read, args=(call,), daemon=True)
        self._reader.start()

    def _read(self, call: Any) -> None:
        try:
            for answer in call:
                self.answers.append(answer)
            self.code = grpc.StatusCode.OK
        except grpc.RpcError as error:
            self.code, self.words = error.code(), error.details() or ""

    def forge(self, nonces: range, error: str = "") -> None:
        """Answers to what it was never sent, for every type and with every likely nonce."""
        for type_url in (CLUSTER, LISTENER, SCOPE):
            for nonce in nonces:
                forged = discovery_pb2.DeltaDiscoveryRequest(type_url=type_url, response_nonce=str(nonce))
                if error:
                    forged.error_detail.message = error
                self._said.put(forged)

    def close(self) -> None:
        self._said.put(None)
        self._channel.close()
        self._reader.join(5)


def _credentials(tls: TlsFiles) -> grpc.ChannelCredentials:
    own = (Path(tls.key).read_bytes(), Path(tls.certificate).read_bytes()) if tls.key else (None, None)
    return grpc.ssl_channel_credentials(Path(tls.authority).read_bytes(), *own)


@contextmanager
def impostor(address: str, tls: TlsFiles | None = None, name: str = "gateway-1") -> Iterator[Impostor]:
    one = Impostor(address, tls, name)
    try:
        yield one
    finally:
        one.close()


@pytest.fixture
def xds(tmp_path: Path) -> str:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    return f"unix:{folder / 'xds.sock'}"


@pytest.fixture
def parts(tmp_path: Path, xds: str) -> Iterator[Rig]:
    with rig(tmp_path, xds=xds) as built:
        yield built


@pytest.mark.parametrize("error", ["", "not this one"])
def test_a_second_peer_is_refused_and_its_words_count_for_nothing(parts: Rig, xds: str, error: str) -> None:
    parts.apply(5000)
    assert parts.envoy._process is not None
    parts.envoy._process.send_signal(signal.SIGSTOP)  # the gateway itself says nothing of weight 0 now
    try:
        taken_back = parts.route(0)
        parts.publish(taken_back)
        with impostor(xds) as second:
            second.forge(range(60), error)
            wait_until(lambda: second.code, "the second stream has ended")
            assert second.code is grpc.StatusCode.ALREADY_EXISTS and "one stream at a time" in second.words
            assert second.answers == []
        time.sleep(0.5)
        assert [one for _, one in parts.plane.acks if one.generation == taken_back.generation] == []
        assert parts.plane.refusals and "gateway-1 is connected already" in parts.plane.refusals[0]
    finally:
        parts.envoy._process.send_signal(signal.SIGCONT)
    wait_until(lambda: parts.acked(taken_back.generation), "the gateway's own acknowledgement")


def test_a_gateway_that_was_killed_is_let_in_again_at_once(parts: Rig) -> None:
    parts.apply(5000)
    for _ in range(3):
        assert parts.envoy._process is not None
        parts.envoy._process.kill()
        parts.envoy._process.wait(60)
        parts.plane.acks.clear()
        parts.envoy.start()
        wait_until(lambda: parts.plane.acks, "the new process's acknowledgement")
    assert parts.plane.refusals == []  # who is refused comes again


def test_the_socket_is_for_the_control_planes_own_user(parts: Rig, xds: str) -> None:
    assert stat.S_IMODE(Path(xds.removeprefix("unix:")).stat().st_mode) == 0o600


@pytest.mark.needs_root
def test_another_user_cannot_connect_even_in_an_open_folder(parts: Rig, xds: str) -> None:
    file = Path(xds.removeprefix("unix:"))
    for folder in file.parents[:4]:
        if folder.stat().st_uid == 0 and folder != Path("/"):
            folder.chmod(0o755)
    if (child := os.fork()) == 0:
        code = 0
        try:
            os.setgroups([])
            os.setgid(54321)
            os.setuid(54321)
            with socket.socket(socket.AF_UNIX) as trial:
                code = trial.connect_ex(str(file))
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == errno.EACCES


# -- from machine to machine -------------------------------------------------------------------------------------------


def test_both_sides_prove_who_they_are(tmp_path: Path) -> None:
    ours, others = Authority(tmp_path), Authority(tmp_path, "other")
    address = f"127.0.0.1:{free_port()}"
    with rig(tmp_path, xds=address, tls=ours.control_plane(), gateway_tls=ours.gateway("gateway-1")) as parts:
        parts.apply(5000)  # a real Envoy with the right certificate
        parts.envoy.stop()
        wait_until(lambda: not parts.ads._live, "the gateway's stream has ended")
        for tls, code, words in (
            (ours.gateway("gateway-2"), grpc.StatusCode.PERMISSION_DENIED, "not that of gateway 'gateway-1'"),
            (others.gateway("gateway-1", trusts=ours), grpc.StatusCode.UNAVAILABLE, ""),
            (TlsFiles("", "", ours.file), grpc.StatusCode.UNAVAILABLE, ""),
            (None, grpc.StatusCode.UNAVAILABLE, ""),
        ):
            with impostor(address, tls) as other:
                wait_until(lambda other=other: other.code, f"refused: {tls}")
                assert other.code is code and words in other.words, tls
                assert other.answers == []


def test_a_gateway_believes_no_other_control_plane(tmp_path: Path) -> None:
    ours, others = Authority(tmp_path), Authority(tmp_path, "other")
    false = others.control_plane(trusts=ours)
    with rig(tmp_path, xds=f"127.0.0.1:{free_port()}", tls=false, gateway_tls=ours.gateway("gateway-1")) as parts:
        parts.publish(parts.route(0))
        log = Path(parts.envoy.log.name)
        wait_until(lambda: log.read_text().count("CERTIFICATE_VERIFY_FAILED") >= 2, "it has refused, and tried again")
        assert parts.plane.acks == [] and not parts.envoy.is_open()


def test_an_engine_on_another_machine_reads_counters_and_nothing_else(tmp_path: Path) -> None:
    ours, others = Authority(tmp_path), Authority(tmp_path, "other")
    plane = ours.control_plane()
    address = f"127.0.0.1:{free_port()}"
    with rig(tmp_path, xds=address, tls=plane, gateway_tls=ours.gateway("gateway-1")) as parts:
        parts.apply(5000)
        assert parts.envoy.http().status == 200
        url = parts.envoy.counters_url

        def read(tls: TlsFiles, gateway: str = "gateway-1") -> int:
            return (
                EnvoyCounters(tls=tls)
                .read(gateway=gateway, admin_url=url, models=[MODEL], timeout_s=20)[MODEL]
                .user_requests
            )

        wait_until(lambda: read(plane) == 1, "the request is counted")
        with pytest.raises(GatewayError, match="not that of spiffe://sluicegate/gateway/gateway-2"):
            read(plane, "gateway-2")
        for stranger in (ours.gateway("gateway-2"), others.control_plane(trusts=ours)):
            with pytest.raises(GatewayError):
                read(stranger)
        for method, path in (
            ("POST", "/quitquitquit"),
            ("GET", "/config_dump"),
            ("GET", "/clusters"),
            ("POST", "/stats"),
        ):
            context = ssl.create_default_context(cafile=ours.file)
            context.load_cert_chain(plane.certificate, plane.key)
            with DeadlineConnection(
                url, time.monotonic() + 20, context=context, identity=gateway_identity("gateway-1")
            ) as line:
                assert line.ask(method, path)[0] == 404
