"""How a gateway is set up on its machine: where it finds the control planes, and where its counters are read."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from serving.environments.core.addresses import Address, TlsFiles, gateway_identity

#: Any sound gateway has work in flight below this.
LEAST_HEAP_MIB = 256
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,78}[a-z0-9])?")


@dataclass(frozen=True)
class GatewaySetup:
    """`admin` (host:port or unix:/path) is where its Envoy's admin interface listens, a socket file in /run/sluicegate by default.

    `control_planes`: addresses with commas between them; `counters` (host:port): where engines on other machines read what it counted, over
    TLS; `relay` (unix:/path): its relay, which keeps its last snapshot; `certificate`, `key`, `authority`: files on the gateway's machine;
    `heap_mib`: what its Envoy may hold, None for half of the memory of the machine that writes the configuration.
    Raises ValueError, in a sentence, for what cannot be.
    """

    name: str
    control_planes: str
    admin: str = ""
    counters: str = ""
    relay: str = ""
    certificate: str = ""
    key: str = ""
    authority: str = ""
    heap_mib: int | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"{self.name[:80]!r} is no name of a gateway. Use 1 to 80 lower-case letters, digits, dots "
                "and dashes, beginning and ending with a letter or digit, such as edge-1."
            )
        files = (self.certificate, self.key, self.authority)
        if any(files) and not all(files):
            raise ValueError("--certificate, --key and --authority go together.")
        planes = [_address("control-planes", one.strip()) for one in self.control_planes.split(",")]
        if self.tls is None and not all(one.is_of_this_machine for one in planes):
            raise ValueError(
                f"A control plane on another machine wants to know who calls: give --certificate (for {gateway_identity(self.name)}), "
                "--key and --authority."
            )
        if self.relay and not _address("relay", self.relay).path:
            raise ValueError(f"--relay must be unix:/path, on the gateway's machine, not {self.relay}.")
        if self.heap_mib is not None and self.heap_mib < LEAST_HEAP_MIB:
            raise ValueError(f"--heap-mib must be {LEAST_HEAP_MIB} or more.")
        if self.counters:
            _address("counters", self.counters)
        elif not _address("admin", self.admin_address).is_of_this_machine:
            raise ValueError(
                f"Nobody reads counters from {self.admin}, another machine's, without TLS: give --counters, and --admin unix:/path."
            )

    @property
    def tls(self) -> TlsFiles | None:
        return TlsFiles(self.certificate, self.key, self.authority) if self.certificate else None

    @property
    def admin_address(self) -> str:
        return self.admin or f"unix:/run/sluicegate/{self.name}-admin.sock"

    @property
    def counters_url(self) -> str:
        """Where engines read what the gateway counted."""
        if self.counters:
            return f"https://{self.counters}"
        return self.admin_address if Address.at(self.admin_address).path else f"http://{self.admin_address}"

    def read_at(self, counters_url: str) -> GatewaySetup:
        """The same, whose counters are read where `counters_url` says. Raises ValueError."""
        if counters_url.startswith("https://"):
            return replace(self, counters=counters_url.removeprefix("https://"))
        return replace(self, admin=counters_url.removeprefix("http://"))

    @property
    def warning(self) -> str:
        """What whoever sets it up should know; empty if nothing."""
        if Address.at(self.admin_address).path:
            return ""
        return (
            f"{self.admin}: every user of the gateway's machine can stop Envoy there, and read all that it was told. "
            "Give --admin unix:/path."
        )


def _address(option: str, text: str) -> Address:
    """Raises ValueError, in a sentence that says which of them is none."""
    try:
        return Address.at(text)
    except ValueError as error:
        raise ValueError(f"--{option}: {error}.") from None
