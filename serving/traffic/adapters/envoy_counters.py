"""Reads what an Envoy gateway counted, over its admin interface."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from urllib.parse import quote

from django.utils import timezone

from serving.environments.core.addresses import TlsFiles
from serving.ports import GatewayCounters, GatewayError
from serving.traffic.adapters.envoy_admin import EnvoyAdmin, client_context
from serving.traffic.adapters.envoy_stats import Counted, parse

#: More models than this are not named to Envoy: matching every stat with a long pattern takes longer than writing it.
_NAMED_AT_MOST = 100


class EnvoyCounters:
    """TrafficCounters over an Envoy that was started by `serving.traffic.adapters.envoy_bootstrap`.

    Requests that forced a release are left out: they were not randomized by the split, so they would bias a comparison.
    Requests and attempts are counted when they end, and each first attempt has a latency, in whole milliseconds:
    an edge that is not whole, such as 7500 µs, counts what took less than the next whole one.

    Connections are kept from reading to reading. `now` is the clock that readings are dated by. `tls`: what is shown to gateways of other
    machines, whose `admin_url` begins with https (`envoy_bootstrap`, `counters_address`).
    """

    def __init__(self, now: Callable[[], datetime] = timezone.now, tls: TlsFiles | None = None) -> None:
        self._now, self._context = now, client_context(tls) if tls else None
        self._kept: dict[tuple[str, str], EnvoyAdmin] = {}

    def read(
        self, *, gateway: str, admin_url: str, timeout_s: float, models: Collection[str] | None = None
    ) -> dict[str, GatewayCounters]:
        """Never older than `envoy_bootstrap.FLUSH_S`, or dated back. Raises GatewayError."""
        admin = self._kept.pop((gateway, admin_url), None) or EnvoyAdmin(gateway, admin_url, self._context)
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

    def _page(self, admin: EnvoyAdmin, deadline: float, models: Collection[str] | None) -> tuple[str, datetime]:
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


def _pattern(models: Collection[str] | None) -> str:
    """Of the names of the statistics that are asked for."""
    if models is None or not 0 < len(models) <= _NAMED_AT_MOST:
        return r"^(sli\.|server\.uptime$|cluster\..*_forced\.upstream_rq_active$)"
    named = "|".join(map(re.escape, sorted(models)))
    return (
        rf"^(sli\.\w+\.model\.({named})\.(digest|tenant|class)\.|server\.uptime$"
        rf"|cluster\.({named})_[^.]*_forced\.upstream_rq_active$)"
    )
