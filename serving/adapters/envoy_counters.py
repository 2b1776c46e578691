"""Reads what an Envoy gateway counted, over its admin interface."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from urllib.parse import quote

from django.utils import timezone

from ledger.adapters.deadline_http import DeadlineConnection, TooLong
from serving.adapters.envoy_stats import Counted, Series, parse
from serving.core.addresses import TlsFiles, gateway_identity
from serving.ports import GatewayCounters, GatewayError

MAX_ANSWER_BYTES = 64 * 2**20
#: More models than this are not named to Envoy: matching every stat with a long pattern takes longer than writing it.
_NAMED_AT_MOST = 100
#: `server.uptime` is whole seconds, set with every flush of the statistics.
_UPTIME_STEP_S = 1.0


class EnvoyCounters:
    """TrafficCounters over an Envoy that was started by `serving.adapters.envoy_bootstrap`.

    Requests that forced a release are left out: they were not randomized by the split, so they would bias a comparison.
    Requests and attempts are counted when they end, and each first attempt has a latency, in whole milliseconds:
    an edge that is not whole, such as 7500 µs, counts what took less than the next whole one.

    Connections are kept from reading to reading. `now` is the clock that readings are dated by. `tls`: what is shown to gateways of other
    machines, whose `admin_url` begins with https (`envoy_bootstrap`, `counters_address`).
    """

    def __init__(self, now: Callable[[], datetime] = timezone.now, tls: TlsFiles | None = None) -> None:
        self._now, self._context = now, _context(tls) if tls else None
        self._kept: dict[tuple[str, str], _Admin] = {}

    def read(
        self, *, gateway: str, admin_url: str, timeout_s: float, models: Collection[str] | None = None
    ) -> dict[str, GatewayCounters]:
        """Never older than `envoy_bootstrap.FLUSH_S`, or dated back. Raises GatewayError."""
        admin = self._kept.pop((gateway, admin_url), None) or _Admin(gateway, admin_url, self._context)
        try:
            page, read_at = self._page(admin, time.monotonic() + timeout_s, models)
        except GatewayError:
            admin.close()
            raise
        finally:
            self._kept[gateway, admin_url] = admin
        counted = parse(page, admin.series)
        missing = Counted()
        return {
            model: counted.get(model, missing).counters(gateway, admin.epoch, read_at)
            for model in (counted if models is None else models)
        }

    def _page(self, admin: _Admin, deadline: float, models: Collection[str] | None) -> tuple[str, datetime]:
        """The statistics, and when the gateway last brought them up to date."""
        path = f"/stats?histogram_buckets=cumulative&filter={quote(_pattern(models))}"
        for _ in range(3):
            page = admin.page(path, deadline)
            if page is not None:
                break
        else:
            raise GatewayError("unreachable", f"{admin.gateway} keeps restarting; see its log")
        found = re.search(r"^server\.uptime: (\d+)$", page, re.MULTILINE)
        if found is None:
            raise GatewayError(
                "malformed",
                f"{admin.gateway} answers at {admin.url}, but not with Envoy's statistics; check its admin_url",
            )
        return page, self._now() - timedelta(seconds=admin.age_s(int(found[1])))


def _context(tls: TlsFiles) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.authority)
    context.load_cert_chain(tls.certificate, tls.key)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _pattern(models: Collection[str] | None) -> str:
    """Of the names of the statistics that are asked for."""
    if models is None or not 0 < len(models) <= _NAMED_AT_MOST:
        return r"^(sli\.|server\.uptime$)"
    return rf"^(sli\.\w+\.model\.({'|'.join(map(re.escape, sorted(models)))})\.(digest|tenant)\.|server\.uptime$)"


class _Admin:
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

    def get(self, path: str) -> str:
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
