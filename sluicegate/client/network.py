"""Certificates and proxies of the environment, by which the client reaches a server.

Certificates: the system's, or those that SSL_CERT_FILE and SSL_CERT_DIR name, and in addition a CA file of the caller's.
Proxies: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY, in small letters too. No proxy is asked for this machine itself.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from ledger.core.proxies import proxy_for, without_login
from sluicegate.client.errors import Untrusted, refuse

#: Names one more file of CA certificates, in PEM.
CA_FILE = "SLUICEGATE_CA_FILE"


def ssl_context(ca_file: str = "") -> ssl.SSLContext:
    """Trusts the system's certificates and those of `ca_file`, else of SLUICEGATE_CA_FILE. Raises Mistake."""
    context = ssl.create_default_context() if _has_system_store() else httpx.create_ssl_context(trust_env=False)
    ca_file = ca_file or os.environ.get(CA_FILE, "")
    if ca_file:
        try:
            context.load_verify_locations(ca_file)
        except (OSError, ssl.SSLError) as error:
            why = "it holds no certificate in PEM" if isinstance(error, ssl.SSLError) else error.strerror
            raise refuse(
                f"The CA file {ca_file} cannot be used: {why}.", f"Correct --ca-file or {CA_FILE}, or leave it out."
            ) from None
    return context


def _has_system_store() -> bool:
    """Whether OpenSSL has any certificates of its own here; small images have none."""
    paths = ssl.get_default_verify_paths()  # of the environment, else of this build, if they are there
    return paths.cafile is not None or (paths.capath is not None and any(Path(paths.capath).glob("*.[0-9]")))


class Transport(httpx.BaseTransport):
    """Sends each request directly or through the proxy that the environment names for its address. Threads may share it."""

    def __init__(self, *, ca_file: str = "", most_connections: int = 100) -> None:
        self._context = ssl_context(ca_file)
        self._limits = httpx.Limits(max_connections=most_connections, max_keepalive_connections=20)
        self._by_proxy: dict[str, httpx.HTTPTransport] = {}

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        proxy = proxy_for(str(request.url), os.environ)
        try:
            return self._transport(proxy).handle_request(request)
        except httpx.ConnectError as error:
            if (refused := _certificate_error(error)) is not None:
                raise Untrusted(without_login(str(request.url)), refused.verify_message) from error
            raise _by(proxy, error) from error
        except httpx.ProxyError as error:
            raise _by(proxy, error) from error

    def _transport(self, proxy: str) -> httpx.HTTPTransport:
        if proxy not in self._by_proxy:
            self._by_proxy[proxy] = httpx.HTTPTransport(
                verify=self._context, limits=self._limits, proxy=_proxy(proxy, self._context) if proxy else None
            )
        return self._by_proxy[proxy]

    def close(self) -> None:
        for transport in self._by_proxy.values():
            transport.close()


def _proxy(address: str, context: ssl.SSLContext) -> httpx.Proxy:
    if urlsplit(address).scheme not in ("http", "https"):
        raise refuse(
            f"The environment names the proxy {without_login(address)}, and only http:// and https:// proxies are spoken to.",
            "Name an HTTP proxy in HTTPS_PROXY, or except the server with NO_PROXY.",
        )
    try:
        return httpx.Proxy(address, ssl_context=context if address.startswith("https:") else None)
    except (httpx.InvalidURL, ValueError) as error:
        raise refuse(f"The proxy {without_login(address)} is no address: {error}.", "Write http://host:port.") from None


def _certificate_error(error: BaseException) -> ssl.SSLCertVerificationError | None:
    """The refusal of a certificate that is behind this error, if one is."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, ssl.SSLCertVerificationError):
        found = found.__cause__ or found.__context__
    return found


def _by(proxy: str, error: httpx.TransportError) -> httpx.TransportError:
    """The same error, which names the proxy if there is one."""
    return type(error)(f"{error} (through the proxy {without_login(proxy)})") if proxy else error
