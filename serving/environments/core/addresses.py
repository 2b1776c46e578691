"""Where the parts behind the gateway find each other, and by which names their certificates call them.

On one machine they meet at socket files in a folder that is closed to other users; from machine to machine over TLS, where both
sides show a certificate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, ip_address
from typing import Any

LOOPBACK = "127.0.0.1"
UNIX = "unix:"
#: Bytes of a socket file's path, the closing zero not counted. Source: unix(7), sun_path.
LONGEST_PATH_BYTES = 107
#: The DNS name in the control plane's certificate, wherever it runs.
CONTROL_PLANE_NAME = "control-plane.sluicegate"


def gateway_identity(name: str) -> str:
    """The URI in a gateway's certificate (subjectAltName)."""
    return f"spiffe://sluicegate/gateway/{name}"


@dataclass(frozen=True)
class TlsFiles:
    """PEM files: one's own certificate and key, and the authority that signed the other side's."""

    certificate: str
    key: str
    authority: str


@dataclass(frozen=True)
class Address:
    """A TCP port, or a socket file: then `path` is set and the others are not."""

    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def at(cls, text: str) -> Address:
        """From host:port or unix:/path. Raises ValueError."""
        if text.startswith(UNIX):
            path = text.removeprefix(UNIX)
            if not path.startswith("/") or len(path.encode()) > LONGEST_PATH_BYTES:
                raise ValueError(f"{text!r} is not {UNIX} and an absolute path of at most {LONGEST_PATH_BYTES} bytes")
            return cls(path=path)
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise ValueError(f"{text!r} is neither host:port nor {UNIX}/path")
        return cls(host.strip("[]"), int(port))

    @property
    def is_ip(self) -> bool:
        """Whether nothing has to be resolved."""
        return bool(self.path) or _ip(self.host) is not None

    @property
    def is_of_this_machine(self) -> bool:
        """Whether no other machine can reach it."""
        ip = _ip(self.host)
        return bool(self.path) or self.host == "localhost" or (ip is not None and ip.is_loopback)

    def to_envoy(self) -> dict[str, Any]:
        """As Envoy's configuration writes an address."""
        if self.path:
            return {"pipe": {"path": self.path}}
        return {"socket_address": {"address": self.host, "port_value": self.port}}


def why_not_served_at(address: str, networks: Iterable[str]) -> str:
    """Why a node's servers may not listen there, as a sentence; empty where they may: on this machine alone, or in a private network
    that the node's owner names (`10.0.0.0/8`).

    A server answers whoever reaches it, by plain HTTP and gRPC: Triton's HTTP knows neither callers nor TLS. So whoever is not to be
    answered must not reach it.
    """
    try:
        ip = IPv4Address(address)
    except ValueError:
        return f"{address!r} is no IPv4 address."
    if ip.is_unspecified:
        return f"{address} is every address of the machine; name the one that the gateways reach it by."
    named = [IPv4Network(one, strict=False) for one in networks]
    if ip.is_loopback or any(ip in one for one in named):
        return ""
    where = f"in none of {', '.join(map(str, named))}" if named else "not of this machine alone"
    return (
        f"{address} is {where}, and a server answers whoever reaches it. Put the gateways and the nodes into a network of their own, and "
        "name it in SLUICEGATE_PRIVATE_NETWORKS, such as 10.20.0.0/16."
    )


def _ip(host: str) -> Any:
    try:
        return ip_address(host)
    except ValueError:
        return None
