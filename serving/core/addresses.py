"""Where the parts behind the gateway find each other, and by which names their certificates call them.

On one machine they meet at socket files in a folder that is closed to other users; from machine to machine over TLS, where both
sides show a certificate.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

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


def _ip(host: str) -> Any:
    try:
        return ip_address(host)
    except ValueError:
        return None
