"""What a webhook is sent to: addresses that are refused, certificates, and a receiver that never says a word."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import socket
import ssl
import time
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from ledger.core.errors import Invalid
from notifications.adapters import webhook_sender
from notifications.dispatcher import rounds
from notifications.models import Webhook
from tests.support.servers.receiver import Receiver, hangs_up
from tests.support.worlds.webhook_setup import ENGINE, S, _private, receiver, subscribe  # noqa: F401

pytestmark = pytest.mark.django_db


class TestAddressesThatAreRefused:
    def test_a_name_that_leads_to_a_private_address(self, receiver: Receiver) -> None:
        row = subscribe(receiver.url.replace("127.0.0.1", "localhost"))
        assert rounds.send_test(actor=ENGINE, webhook=row).state == S.DELIVERED
        Webhook.objects.update(may_be_private=False)
        row.refresh_from_db()
        tried = rounds.send_test(actor=ENGINE, webhook=row).tries.get()
        assert "private address" in tried.error and len(receiver.got) == 1

    def test_the_setting_closes_them_for_everybody(self, receiver: Receiver, settings: Any) -> None:
        row = subscribe(receiver.url)
        settings.WEBHOOKS_ALLOW_PRIVATE = False
        tried = rounds.send_test(actor=ENGINE, webhook=row).tries.get()
        assert "private address" in tried.error and not receiver.got
        with pytest.raises(Invalid, match="private address"):
            subscribe(f"{receiver.url}/2")

    def test_what_was_checked_is_what_is_connected_to(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A name that leads to a public address when it is checked, and to this machine when it is asked again."""
        asked: list[str] = []
        connected: list[str] = []

        def resolve(host: str, port: int, **_: Any) -> list[Any]:
            asked.append(host)
            where = "93.184.216.34" if len(asked) == 1 else "127.0.0.1"
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (where, port))]

        def connect(address: tuple[str, int], **_: Any) -> socket.socket:
            connected.append(address[0])
            raise ConnectionRefusedError("here the test ends")

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        monkeypatch.setattr(socket, "create_connection", connect)
        out = webhook_sender.post("http://rebinding.example/", b"{}", {}, timeout_s=30, may_be_private=False)
        assert (asked, connected) == (["rebinding.example"], ["93.184.216.34"]) and "ends" in out.error

    def test_of_several_addresses_only_public_ones_are_tried(self, monkeypatch: pytest.MonkeyPatch) -> None:
        connected: list[str] = []
        names = ["10.0.0.1", "169.254.169.254", "::ffff:127.0.0.1", "8.8.8.8", "8.8.4.4"]
        rows = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (name, 80)) for name in names]

        def connect(address: tuple[str, int], **_: Any) -> socket.socket:
            connected.append(address[0])
            raise ConnectionRefusedError("no")

        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: rows)
        monkeypatch.setattr(socket, "create_connection", connect)
        webhook_sender.post("http://several.example/", b"{}", {}, timeout_s=30, may_be_private=False)
        assert connected == ["8.8.8.8", "8.8.4.4"]


class TestTls:
    def test_a_certificate_that_nobody_vouches_for_is_refused(self, tmp_path: Any) -> None:
        chain = self_signed(tmp_path, "localhost")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        with Receiver() as receiver:
            receiver._server.socket = context.wrap_socket(receiver._server.socket, server_side=True)
            out = webhook_sender.post(
                receiver.url.replace("http:", "https:"), b"{}", {}, timeout_s=30, may_be_private=True
            )
        assert "certificate" in out.error and not receiver.got

    def test_one_that_is_vouched_for_is_taken(self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        chain = self_signed(tmp_path, "localhost")
        monkeypatch.setenv("SSL_CERT_FILE", str(chain))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        with Receiver(always=hangs_up, answers=[204]) as receiver:
            receiver._server.socket = context.wrap_socket(receiver._server.socket, server_side=True)
            url = f"https://localhost:{receiver.port}/hook"
            assert webhook_sender.post(url, b"{}", {}, timeout_s=30, may_be_private=True).is_ok
            assert receiver.got[0].headers["host"] == f"localhost:{receiver.port}"
            wrong = url.replace("localhost", "127.0.0.1")
            assert "certificate" in webhook_sender.post(wrong, b"{}", {}, timeout_s=30, may_be_private=True).error

    def test_a_handshake_that_never_comes_ends_in_time(self) -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            began = time.monotonic()
            url = f"https://127.0.0.1:{silent.getsockname()[1]}/"
            out = webhook_sender.post(url, b"{}", {}, timeout_s=0.3, may_be_private=True)
        assert "within 0.3 s" in out.error and time.monotonic() - began < 20  # not for ever


def self_signed(folder: Any, name: str) -> Any:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = timezone.now()
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = folder / "chain.pem"
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path
