"""Reads what an Envoy gateway counted, over its admin interface."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import quote, urlsplit

from django.utils import timezone

from serving.core.buckets import EDGES_US, is_failure
from serving.ports import ArmCounters, GatewayCounters, GatewayError

#: Response flags of an attempt or request that got no whole answer, through no doing of the caller.
#: Source: Envoy's access log documentation, %RESPONSE_FLAGS%.
CUT_FLAGS = frozenset({"UF", "UC", "UR", "UT", "UO", "UH", "UPE", "NC", "LR", "OM", "UMSDR", "SI"})
MAX_ANSWER_BYTES = 64 * 2**20

_LINE = re.compile(r"^envoy_sli_(attempt_count|latency_bucket|request_count)\{(.*)\} (\d+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class EnvoyCounters:
    """TrafficCounters over an Envoy that was started by `serving.envoy_bootstrap`.

    Requests that forced a release are left out: nobody drew lots for them, so they say nothing in a comparison.
    Attempts are counted when they end, refused and timed-out ones too, and each has a latency, in whole milliseconds:
    an edge that is not whole, such as 7500 µs, counts what took less than the next whole one.
    """

    def read(self, *, gateway: str, admin_url: str, model: str, timeout_s: float) -> GatewayCounters:
        """Never older than `envoy_bootstrap.FLUSH_S`. Raises GatewayError."""
        admin = _Admin(admin_url, gateway, time.monotonic() + timeout_s)
        wanted = quote(rf"^(sli\.\w+\.model\.{re.escape(model)}\.digest\.|server\.uptime$)")
        for _ in range(3):
            epoch = admin.epoch()
            read_at = timezone.now()
            page = admin.get(f"/stats/prometheus?filter={wanted}")
            if admin.epoch() != epoch:
                continue  # it restarted in between: counts and epoch do not belong together
            if "envoy_server_uptime" not in page:
                raise GatewayError(
                    "malformed",
                    f"{gateway} answers at {admin_url}, but not with Envoy's statistics; check its admin_url",
                )
            tally = _Tally(model)
            for stat, labels, value in _samples(page):
                tally.add(stat, labels, value)
            return tally.counters(gateway, epoch, read_at)
        raise GatewayError("unreachable", f"{gateway} keeps restarting; see its log")


@dataclass
class _Tally:
    model: str
    attempts: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    errors: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    routed: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    latency_us: defaultdict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    user_requests: int = 0
    user_errors: int = 0

    def add(self, stat: str, labels: dict[str, str], value: int) -> None:
        if labels.get("model") != self.model or labels.get("entry") != "split":
            return
        digest = labels.get("digest", "")
        if stat == "latency_bucket":
            if labels["le"] != "+Inf":
                self.latency_us[digest][round(float(labels["le"]) * 1000)] = value
        elif stat == "attempt_count":
            self.attempts[digest] += value
            self.errors[digest] += value * _failed(labels)
        else:
            self.routed[digest] += value
            self.user_requests += value
            self.user_errors += value * _failed(labels)

    def counters(self, gateway: str, epoch: str, read_at: datetime) -> GatewayCounters:
        digests = {one for one in (*self.attempts, *self.routed) if one}
        return GatewayCounters(
            gateway=gateway,
            epoch=epoch,
            read_at=read_at,
            by_release={
                digest: ArmCounters(
                    attempts=self.attempts[digest],
                    errors=self.errors[digest],
                    routed=self.routed[digest],
                    latency_us={edge: self.latency_us[digest].get(edge, 0) for edge in EDGES_US},
                )
                for digest in sorted(digests)
            },
            user_requests=self.user_requests,
            user_errors=self.user_errors,
        )


@dataclass(frozen=True)
class _Admin:
    """Envoy's admin interface. `deadline` (monotonic seconds) holds for everything asked of it."""

    url: str
    gateway: str
    deadline: float

    def epoch(self) -> str:
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
            parts = urlsplit(self.url)
            line = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=self._left())
            with contextlib.closing(line):
                line.request("GET", path)
                return self._body(line.getresponse(), path)
        except TimeoutError as error:
            raise GatewayError("timeout", f"{self.gateway} did not answer at {self.url} in time") from error
        except OSError as error:
            raise GatewayError("unreachable", f"{self.gateway} cannot be reached at {self.url}: {error}") from error
        except (http.client.HTTPException, UnicodeDecodeError) as error:
            raise GatewayError("malformed", f"{self.gateway} does not speak HTTP at {self.url}") from error

    def _body(self, answer: http.client.HTTPResponse, path: str) -> str:
        pieces, size = [], 0
        while piece := answer.read1(2**16):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_ANSWER_BYTES:
                raise GatewayError("malformed", f"{self.gateway} answered with more than {MAX_ANSWER_BYTES} bytes")
            self._left()
        if answer.status != 200:
            raise GatewayError("malformed", f"{self.gateway} answered {answer.status} to {path}")
        return b"".join(pieces).decode()

    def _left(self) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


def _samples(page: str) -> Iterator[tuple[str, dict[str, str], int]]:
    for line in page.splitlines():
        if found := _LINE.match(line):
            yield found[1], dict(_LABEL.findall(found[2])), int(found[3])


def _failed(labels: dict[str, str]) -> bool:
    code, status = labels.get("code", ""), labels.get("grpc", "")
    return is_failure(
        http_status=int(code) if code.isdigit() else 0,
        grpc_status=int(status) if status.isdigit() else None,
        was_cut=not CUT_FLAGS.isdisjoint(labels.get("flags", "").split(",")),
    )
