"""What is in flight on servers, as the gateways tell it: each is asked once in a look, however many models are looked at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from registry.models import Release
from serving.core.routes import digest12
from serving.models import Gateway
from serving.ports import GatewayError

#: A gateway may take so long to tell of all its servers.
READ_TIMEOUT_S = 3.0


class InFlightCounters(Protocol):
    """Reads what a gateway has in flight. As dear as `HostCounters`, and dearer the more models there are: once for all of them."""

    def read_in_flight(self, *, gateway: str, admin_url: str, timeout_s: float) -> dict[tuple[str, str], int]:
        """Requests and streams that servers have at the moment, by model and `digest12` of the release; those that have none may be
        left out. Raises GatewayError.
        """
        ...


@dataclass(frozen=True)
class Flight:
    """Without a full stop; empty where there is none. `active`: what is in flight. `unknown`: why a gateway does not tell of it."""

    active: str = ""
    unknown: str = ""


class InFlight:
    """One look's knowledge. A gateway is asked when somebody first wants to know, so that whatever was looked at before came before it."""

    def __init__(self, counters: InFlightCounters) -> None:
        self.counters = counters
        self._told: dict[str, dict[tuple[str, str], int] | str] = {}

    def on(self, release: Release, gateways: Iterable[Gateway]) -> Flight:
        """What the gateways tell of the release's servers."""
        active, unknown = [], []
        for gateway in gateways:
            told = self._read(gateway)
            if isinstance(told, str):
                unknown.append(told)
            elif count := told.get((release.model.slug, digest12(str(release.digest))), 0):
                active.append(f"{count} through {gateway.name}")
        return Flight(", ".join(active), "; ".join(unknown))

    def _read(self, gateway: Gateway) -> dict[tuple[str, str], int] | str:
        if gateway.name not in self._told:
            try:
                told: dict[tuple[str, str], int] | str = self.counters.read_in_flight(
                    gateway=gateway.name, admin_url=gateway.admin_url, timeout_s=READ_TIMEOUT_S
                )
            except GatewayError as error:
                told = error.message
            self._told[gateway.name] = told
        return self._told[gateway.name]
