"""Certificates and proxies of the environment, as the service uses them: with a real TLS server and a real proxy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from accounts.adapters.issuer_http import IssuerUnreachable, get_json
from ledger.adapters import outbound
from notifications.adapters import webhook_sender
from notifications.core.delivery import Outcome
from registry.storage.s3 import S3Store, ca_bundle
from serving.traffic.adapters.prometheus import Prometheus
from tests.support.rigs.certificates import Authority
from tests.support.servers.secure_server import Proxy, SecureServer

HOST = "hooks.test"  # no name service knows it: only the proxy does
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
VECTOR = {"status": "success", "data": {"resultType": "vector", "result": []}}


@pytest.fixture(autouse=True)
def authority(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Authority:
    made = Authority(tmp_path, "company-ca")
    for name in ("AWS_CA_BUNDLE", "SSL_CERT_DIR", *PROXIES, *(name.upper() for name in PROXIES)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", made.file)
    return made


@pytest.fixture
def secure(authority: Authority) -> Iterator[SecureServer]:
    with SecureServer(authority.server(HOST, "localhost"), VECTOR) as running:
        yield running


@pytest.fixture
def proxy(secure: SecureServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with Proxy({HOST: secure.port}) as running:
        monkeypatch.setenv("HTTPS_PROXY", running.url)
        yield running


def sent(url: str, *, may_be_private: bool = False) -> Outcome:
    return webhook_sender.post(url, b"{}", {}, timeout_s=20, may_be_private=may_be_private)


def test_a_webhook_goes_through_the_proxy(secure: SecureServer, proxy: Proxy) -> None:
    assert sent(f"https://{HOST}/in").status_code == 200
    assert proxy.asked == [f"CONNECT {HOST}:443"] and secure.asked == [("POST", "/in")]


def test_a_webhook_to_a_certificate_of_nobody_known_fails(
    proxy: Proxy, secure: SecureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    outcome = sent(f"https://{HOST}/in")
    assert outcome.status_code is None and "No secure connection" in outcome.error and secure.asked == []


def test_a_webhook_to_a_private_address_is_refused_behind_a_proxy_too(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbound, "addresses_of", lambda host, port: ["10.0.0.1"])
    assert sent(f"https://{HOST}/in").status_code is None
    assert proxy.asked == []


def test_what_the_proxy_refuses_is_told(proxy: Proxy) -> None:
    assert f"the proxy {proxy.url} does not lead to other.test:443: 502" in sent("https://other.test/in").error


def test_plain_http_is_forwarded(monkeypatch: pytest.MonkeyPatch) -> None:
    with SecureServer(None, {}) as plain, Proxy({HOST: plain.port}) as running:
        monkeypatch.setenv("HTTP_PROXY", running.url)
        assert sent(f"http://{HOST}/in?x=1", may_be_private=True).status_code == 200
        assert running.asked == [f"POST http://{HOST}/in?x=1"]


def test_this_machine_is_asked_directly(proxy: Proxy, secure: SecureServer) -> None:
    assert sent(f"https://localhost:{secure.port}/in", may_be_private=True).status_code == 200
    assert proxy.asked == []


def test_issuers_and_prometheus_are_asked_through_the_proxy(
    proxy: Proxy, secure: SecureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert get_json(f"https://{HOST}/keys") == VECTOR
    assert Prometheus(f"https://{HOST}").vectors(["up"], timeout_s=20) == [[]]
    assert proxy.asked == [f"CONNECT {HOST}:443"] * 2
    monkeypatch.setenv("NO_PROXY", HOST)
    with pytest.raises(IssuerUnreachable):
        get_json(f"https://{HOST}/keys")


def test_a_proxy_of_another_kind_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks5://ann:s3cret@127.0.0.1:1080")
    error = sent(f"https://{HOST}/in").error
    assert "socks5://127.0.0.1:1080" in error and "s3cret" not in error


class TestS3:
    def store(self, endpoint: str, tmp_path: Path) -> S3Store:
        return S3Store(
            "models", endpoint=endpoint, access_key="a", secret_key="b", max_bytes=1, copies=tmp_path / "copies"
        )

    def test_certificates(self, authority: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        assert ca_bundle() == authority.file
        store = self.store("https://s3.test", tmp_path)
        assert store.s3._endpoint.http_session._verify == authority.file
        monkeypatch.setenv("AWS_CA_BUNDLE", authority.file)
        assert ca_bundle() is None, "botocore knows that variable itself"

    def test_proxies(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("HTTPS_PROXY", "http://proxy.test:3128")
        monkeypatch.setenv("HTTP_PROXY", "http://proxy.test:3128")
        assert self.store("https://s3.test", tmp_path).s3.meta.config.proxies == {"https": "http://proxy.test:3128"}
        assert self.store("http://127.0.0.1:8333", tmp_path).s3.meta.config.proxies == {}
        assert self.store("", tmp_path).s3.meta.config.proxies is None
