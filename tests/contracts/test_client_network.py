"""The command line and the client behind a company's certificates and proxy: a real TLS server and a real proxy on loopback."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluicegate.cli import exits
from sluicegate.cli.main import main
from sluicegate.client import Client, Unreachable, Untrusted
from tests.support.rigs.certificates import Authority
from tests.support.servers.secure_server import Proxy, SecureServer

NAMES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SLUICEGATE_CA_FILE", "SLUICEGATE_URL")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
HOST = "sluicegate.test"  # no name service knows it: only the proxy does


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*NAMES, *PROXIES, *(name.upper() for name in PROXIES)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLUICEGATE_TOKEN", "sg_test")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "company-ca")


@pytest.fixture
def server(authority: Authority) -> Iterator[SecureServer]:
    with SecureServer(authority.server(HOST, "localhost", "127.0.0.1"), {"results": [], "next": None}) as running:
        yield running


@pytest.fixture
def proxy(server: SecureServer) -> Iterator[Proxy]:
    with Proxy({HOST: server.port}) as running:
        yield running


def listed(server: str, *words: str) -> int:
    return main(["model", "list", "--json", "--server", server, *words])


def here(server: SecureServer) -> str:
    return f"https://localhost:{server.port}"


class TestCertificates:
    def test_a_private_ca_is_refused_with_the_next_step_and_not_to_be_tried_again(
        self, server: SecureServer, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert listed(here(server)) == exits.REFUSED
        told = capsys.readouterr().out
        assert "is not trusted: unable to get local issuer certificate." in told and "--ca-file" in told
        assert server.asked == []

    @pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SLUICEGATE_CA_FILE"])
    def test_by_a_variable(
        self, server: SecureServer, authority: Authority, monkeypatch: pytest.MonkeyPatch, variable: str
    ) -> None:
        monkeypatch.setenv(variable, authority.file)
        assert listed(here(server)) == exits.OK

    def test_by_the_systems_folder(
        self, server: SecureServer, authority: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        folder = tmp_path / "certs"
        folder.mkdir()
        done = subprocess.run(
            ["openssl", "x509", "-noout", "-hash", "-in", authority.file], capture_output=True, text=True, check=True
        )
        (folder / f"{done.stdout.strip()}.0").symlink_to(authority.file)
        monkeypatch.setenv("SSL_CERT_DIR", str(folder))
        assert listed(here(server)) == exits.OK

    def test_by_the_option_for_this_command_alone(self, server: SecureServer, authority: Authority) -> None:
        assert listed(here(server), "--ca-file", authority.file) == exits.OK
        assert main(["--ca-file", authority.file, "model", "list", "--server", here(server)]) == exits.OK
        assert listed(here(server)) == exits.REFUSED

    def test_from_python(self, server: SecureServer, authority: Authority) -> None:
        with Client(here(server), "sg_test", ca_file=authority.file) as client:
            assert list(client.pages("/models")) == []
            part = client.put_part(f"{here(server)}/part", iter([b"abc"]), size_bytes=3, headers={})
        assert part == 200 and ("PUT", "/part") in server.asked
        with Client(here(server), "sg_test") as client, pytest.raises(Untrusted):
            client.get("/models")

    @pytest.mark.parametrize("text", [None, "no certificate"])
    def test_a_ca_file_that_cannot_be_used_is_named(
        self, server: SecureServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None
    ) -> None:
        file = tmp_path / "ca.pem"
        if text is not None:
            file.write_text(text)
        assert listed(here(server), "--ca-file", str(file)) == exits.REFUSED
        assert f"The CA file {file} cannot be used" in capsys.readouterr().out

    def test_a_variable_that_leads_nowhere_is_named(
        self, server: SecureServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
        assert listed(here(server)) == exits.REFUSED
        assert "There is nothing at SSL_CERT_FILE=/nowhere/ca.pem." in capsys.readouterr().out

    def test_a_certificate_for_another_name_is_refused(
        self, authority: Authority, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with SecureServer(authority.server("other.test"), {}) as other:
            assert listed(here(other), "--ca-file", authority.file) == exits.REFUSED
        assert "use the name that the certificate is for" in capsys.readouterr().out


class TestProxies:
    @pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
    def test_https_goes_through_a_tunnel(
        self, server: SecureServer, proxy: Proxy, authority: Authority, monkeypatch: pytest.MonkeyPatch, variable: str
    ) -> None:
        monkeypatch.setenv(variable, proxy.url)
        assert listed(f"https://{HOST}", "--ca-file", authority.file) == exits.OK
        assert proxy.asked == [f"CONNECT {HOST}:443"] and server.asked[0][0] == "GET"

    def test_a_proxys_address_needs_no_scheme_and_may_have_a_password(
        self, server: SecureServer, authority: Authority, monkeypatch: pytest.MonkeyPatch, capsys: Any
    ) -> None:
        secret = base64.b64encode(b"ann:s3cret").decode()
        with Proxy({HOST: server.port}, password=secret) as proxy:
            monkeypatch.setenv("HTTPS_PROXY", f"ann:s3cret@127.0.0.1:{proxy.port}")
            assert listed(f"https://{HOST}", "--ca-file", authority.file) == exits.OK
            monkeypatch.setenv("HTTPS_PROXY", f"ann:wr0ng@127.0.0.1:{proxy.port}")
            assert listed(f"https://{HOST}", "--ca-file", authority.file) == exits.INFRASTRUCTURE
        told = capsys.readouterr().out
        assert "407" in told and f"through the proxy http://127.0.0.1:{proxy.port}" in told and "wr0ng" not in told

    def test_http_is_forwarded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with SecureServer(None, {"results": [], "next": None}) as plain, Proxy({HOST: plain.port}) as proxy:
            monkeypatch.setenv("HTTP_PROXY", proxy.url)
            assert listed(f"http://{HOST}") == exits.OK
            assert proxy.asked and proxy.asked[0].startswith(f"GET http://{HOST}/api/v1/models")

    def test_this_machine_is_never_asked_through_a_proxy(
        self, server: SecureServer, proxy: Proxy, authority: Authority, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ALL_PROXY", proxy.url)
        for host in ("localhost", "127.0.0.1"):
            assert listed(f"https://{host}:{server.port}", "--ca-file", authority.file) == exits.OK
        assert proxy.asked == []

    def test_an_excepted_host_is_asked_directly(
        self, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", ".test")
        with Client(f"https://{HOST}", "sg_test") as client, pytest.raises(Unreachable) as caught:
            client.post("/models")
        assert proxy.asked == [] and "through the proxy" not in caught.value.message

    def test_a_private_ca_behind_a_proxy_is_told_from_a_proxy_that_fails(
        self, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        assert listed(f"https://{HOST}") == exits.REFUSED
        assert "is not trusted" in capsys.readouterr().out
        assert listed("https://unknown.test") == exits.INFRASTRUCTURE
        assert "NO_PROXY" in capsys.readouterr().out

    def test_a_proxy_of_another_kind_is_refused(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1080")
        assert listed(f"https://{HOST}") == exits.REFUSED
        assert "socks5://127.0.0.1:1080" in capsys.readouterr().out
