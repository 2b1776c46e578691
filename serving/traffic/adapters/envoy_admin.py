"""Envoy's admin interface: one connection to it, and what is remembered of the process at its other end."""

from __future__ import annotations

import http.client
import json
import ssl
import time

from ledger.adapters.deadline_http import DeadlineConnection, TooLong
from serving.environments.core.addresses import TlsFiles, gateway_identity
from serving.ports import GatewayError
from serving.traffic.adapters.envoy_stats import Series

MAX_ANSWER_BYTES = 64 * 2**20
#: `server.uptime` is whole seconds, set with every flush of the statistics.
_UPTIME_STEP_S = 1.0


def client_context(tls: TlsFiles) -> ssl.SSLContext:
    """What is shown to gateways of other machines, and whom they have to be vouched for by."""
    context = ssl.create_default_context(cafile=tls.authority)
    context.load_cert_chain(tls.certificate, tls.key)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


class EnvoyAdmin:
    """Envoy's admin interface over one connection, and what is remembered of the process at its other end."""

    def __init__(self, gateway: str, url: str, context: ssl.SSLContext | None = None) -> None:
        self.gateway, self.url = gateway, url
        self.epoch = ""
        self.series: dict[str, Series] = {}
        self._line = DeadlineConnection(
            url,
            deadline=0.0,
            most_bytes=MAX_ANSWER_BYTES,
            context=context,
            identity=gateway_identity(gateway) if context else "",
        )
        self._uptime, self._uptime_since = -1, 0.0

    def page(self, path: str, deadline: float) -> str | None:
        """The body at `path`, from the process that `epoch` identifies; None when it restarted meanwhile.

        No connection outlives its process, so on a kept one the epoch is asked but once. `deadline` in monotonic seconds.
        """
        self._line.deadline = deadline
        if not self._line.is_quiet():
            self.close()
            self._begin(self._ask_epoch())
        connections = self._line.connections
        page = self.get(path)
        if self._line.connections == connections:
            return page
        was = self.epoch
        self._begin(self._ask_epoch())
        return page if self.epoch == was else None

    def _begin(self, epoch: str) -> None:
        if epoch != self.epoch:
            self.epoch, self.series, self._uptime = epoch, {}, -1

    def close(self) -> None:
        self._line.close()

    def __del__(self) -> None:
        self.close()

    def age_s(self, uptime: int) -> float:
        """Seconds since the statistics were brought up to date, by the monotonic clock; 0 while that cannot be told.

        A hung worker keeps Envoy from merging what its workers counted; the page is then served as it was, and `uptime`
        with it.
        """
        now = time.monotonic()
        if uptime != self._uptime:
            self._uptime, self._uptime_since = uptime, now
        return max(0.0, now - self._uptime_since - _UPTIME_STEP_S)

    def _ask_epoch(self) -> str:
        """When this Envoy read its configuration: another one after every restart."""
        try:
            configs = json.loads(self.get("/config_dump?mask=last_updated"))["configs"]
            return next(str(one["last_updated"]) for one in configs if one["@type"].endswith("BootstrapConfigDump"))
        except (ValueError, KeyError, TypeError, StopIteration) as error:
            raise GatewayError(
                "malformed", f"{self.gateway} does not tell when it started; is {self.url} an Envoy?"
            ) from error

    def get(self, path: str, deadline: float | None = None) -> str:
        """The body at `path`; `deadline` as `page` has it, None: the last one. Raises GatewayError."""
        if deadline is not None:
            self._line.deadline = deadline
        try:
            status, body = self._line.ask("GET", path)
            page = body.decode()
        except TimeoutError as error:
            raise GatewayError("timeout", f"{self.gateway} did not answer at {self.url} in time") from error
        except OSError as error:
            raise GatewayError("unreachable", f"{self.gateway} cannot be reached at {self.url}: {error}") from error
        except TooLong as error:
            raise GatewayError("malformed", f"{self.gateway} answered with {error}") from error
        except (http.client.HTTPException, UnicodeDecodeError) as error:
            raise GatewayError("malformed", f"{self.gateway} does not speak HTTP at {self.url}") from error
        if status != 200:
            raise GatewayError("malformed", f"{self.gateway} answered {status} to {path}")
        return page
