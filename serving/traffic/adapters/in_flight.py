"""What is in flight on servers, as the gateways tell it: each is asked once in a look, however many models are looked at."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import structlog

from registry.models import Release
from serving.models import Gateway
from serving.ports import GatewayError
from serving.traffic.core.routes import digest12

log = structlog.get_logger(__name__)
#: A gateway may take so long to tell of all its servers.
READ_TIMEOUT_S = 3.0
#: So many are asked at once.
AT_ONCE = 64


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
    """One look's knowledge. These gateways are asked when somebody first wants to know, so that whatever was looked at before came before
    it; and all at once, so that those that do not answer keep the look for the time of one."""

    def __init__(self, counters: InFlightCounters, gateways: Iterable[Gateway] = ()) -> None:
        self.counters = counters
        self._gateways = {one.name: one for one in gateways}
        self._told: dict[str, dict[tuple[str, str], int] | str] = {}

    def on(self, release: Release, gateways: Iterable[Gateway]) -> Flight:
        """What the gateways tell of the release's servers."""
        if self._gateways and not self._told:
            with ThreadPoolExecutor(min(AT_ONCE, len(self._gateways)), "in-flight") as pool:
                self._told = dict(zip(self._gateways, pool.map(self._read, self._gateways.values()), strict=True))
        active, unknown = [], []
        for gateway in gateways:
            told = self._told[gateway.name]
            if isinstance(told, str):
                unknown.append(told)
            elif count := told.get((release.model.slug, digest12(str(release.digest))), 0):
                active.append(f"{count} through {gateway.name}")
        return Flight(", ".join(active), "; ".join(unknown))

    def _read(self, gateway: Gateway) -> dict[tuple[str, str], int] | str:
        """Touches no database: this is not the look's thread."""
        try:
            return self.counters.read_in_flight(
                gateway=gateway.name, admin_url=gateway.admin_url, timeout_s=READ_TIMEOUT_S
            )
        except GatewayError as error:
            return error.message
        except Exception as error:  # what one gateway says must not blind the look to all the others
            log.exception("in_flight_not_read", gateway=gateway.name)
            return f"{gateway.name} tells what cannot be made out ({type(error).__name__}: {error})"
