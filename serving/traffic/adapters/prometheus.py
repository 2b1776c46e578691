"""Reads counters from Prometheus or anything with its HTTP API: Thanos, Mimir, VictoriaMetrics.

`prometheus-api-client` asks for ranges, over a connection of ours: its own has a time-out for each piece of an answer and none for
the whole, no limit of size, and errors that only differ by their text. Single instants need no client.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import math
import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from prometheus_api_client import PrometheusConnect
from requests import PreparedRequest, Response, Session
from requests.adapters import BaseAdapter

from ledger.adapters.deadline_http import DeadlineConnection, TooLong, shown
from ledger.core.proxies import proxy_for
from serving.ports import CounterQuery, CounterSample, MetricsError
from serving.traffic.core.promql import selectors

#: A sample older than this no longer says how things are. Twice the longest scrape interval in use, one minute, and a half.
STALE_S = 150.0
#: Counters that began anew are looked for this far back, PromQL's way to write it; further than between two readings.
RESETS_OVER = "10m"
_FORM = {"Content-Type": "application/x-www-form-urlencoded"}

_Labels = dict[str, str]


class Prometheus:
    """ExternalMetrics over `url`, which may hold a path, and a user and password."""

    def __init__(self, url: str, *, stale_s: float = STALE_S) -> None:
        self.url, self.stale_s = url, stale_s
        self._instant, self._since = 0.0, 0.0  # what Prometheus' clock said last, and since when (monotonic seconds)

    def read(self, queries: Sequence[CounterQuery], *, timeout_s: float) -> dict[str, CounterSample | MetricsError]:
        """All queries at one instant of Prometheus' own clock, so that neither side's clock needs to be right."""
        found: dict[str, CounterSample | MetricsError] = {}
        with self._line(timeout_s) as line:
            asked = _Asked(line, shown(self.url))
            try:
                asked.at = self._now(asked)
            except MetricsError as error:
                return dict.fromkeys((one.name for one in queries), error)
            for one in queries:
                try:
                    found[one.name] = self._sample(asked, one.query)
                except MetricsError as error:
                    found[one.name] = error
        return found

    def vectors(self, queries: Sequence[str], *, timeout_s: float) -> list[list[tuple[_Labels, float]]]:
        """What each query gives now: its series' labels with their values. Raises MetricsError."""
        with self._line(timeout_s) as line:
            asked = _Asked(line, shown(self.url))
            return [asked.vector(query) for query in queries]

    def history(
        self, queries: Sequence[CounterQuery], *, since: int, step_s: int, timeout_s: float
    ) -> list[tuple[float, dict[str, CounterSample | MetricsError]]]:
        """What `read` would have returned at `since` (seconds since 1970) and each `step_s` later, until now. Raises MetricsError."""
        with self._line(timeout_s) as line:
            asked = _Asked(line, shown(self.url))
            past = _Past(asked, since, self._now(asked), step_s)
            columns = {one.name: past.samples(one.query, self.stale_s) for one in queries}
        return [(at, {name: column[at] for name, column in columns.items()}) for at in past.instants]

    def _line(self, timeout_s: float) -> DeadlineConnection:
        return DeadlineConnection(self.url, time.monotonic() + timeout_s, proxy=proxy_for(self.url, os.environ))

    def _now(self, asked: _Asked) -> float:
        """Prometheus' own time. One that does not advance means a response cached by a proxy."""
        at, here = asked.number("time()"), time.monotonic()
        if not (math.isfinite(at) and at > 0):
            raise MetricsError("malformed", f"{shown(self.url)} does not know the time: it says {at}")
        if at != self._instant:
            self._instant, self._since = at, here
        elif here - self._since > self.stale_s:
            raise MetricsError("stale", f"{shown(self.url)} has given the same answer for {here - self._since:.0f} s")
        return at

    def _sample(self, asked: _Asked, query: str) -> CounterSample:
        value = asked.number(query)
        if not math.isfinite(value):
            raise MetricsError("not_a_number", f"the query gives {value}; a counter is a number: {query}")
        if value < 0:
            raise MetricsError("negative", f"the query gives {value:g}; a counter is never below 0: {query}")
        series: set[str] = set()
        newest, resets = -math.inf, 0.0
        for selector in selectors(query):
            for labels, taken_at in asked.vector(f"timestamp({selector})"):
                series.add(_name_of(selector, labels))
                newest = max(newest, taken_at)
            resets += sum(count for _, count in asked.vector(f"sum(resets({selector}[{RESETS_OVER}]))"))
        age_s = asked.at - newest if series else 0.0  # `or vector(0)` gives a number that rests on no sample
        if age_s > self.stale_s:
            raise MetricsError("stale", f"the newest sample is {age_s:.0f} s old: {query}")
        return CounterSample(value, max(0.0, age_s), frozenset(series), resets)


class _Asked:
    """Questions over one line, at one instant (seconds since the epoch, by Prometheus' clock; 0: now)."""

    def __init__(self, line: DeadlineConnection, url: str) -> None:
        self._line, self._url = line, url
        self._known: dict[str, list[tuple[_Labels, float]]] = {}
        self.at = 0.0

    def number(self, query: str) -> float:
        """The one number that the query gives. Raises MetricsError."""
        rows = self.vector(query)
        if not rows:
            raise MetricsError("no_data", f"nothing matches the query: {query}")
        if len(rows) > 1:
            raise MetricsError("many_series", f"the query gives {len(rows)} series; put sum(…) around it: {query}")
        return rows[0][1]

    def vector(self, query: str) -> list[tuple[_Labels, float]]:
        """What the query gives at this instant, a scalar as one row without labels. Raises MetricsError."""
        if query not in self._known:
            self._known[query] = self._vector(query)
        return self._known[query]

    def _vector(self, query: str) -> list[tuple[_Labels, float]]:
        data = self._ask(query)
        kind = data.get("resultType")
        try:
            if kind == "scalar":
                return [({}, float(data["result"][1]))]
            if kind == "vector":
                return [(row["metric"], float(row["value"][1])) for row in data["result"]]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise MetricsError("malformed", f"{self._url} gives what is no number for: {query}") from error
        raise MetricsError("malformed", f"the query gives a {kind}; a counter is one number: {query}")

    def _ask(self, query: str) -> dict[str, Any]:
        form = {"query": query, "timeout": f"{self.left_ms():.0f}ms"}
        if self.at:
            form["time"] = repr(self.at)
        answer = _json(self.body("POST", "/api/v1/query", urlencode(form).encode(), query))
        if answer.get("status") == "success" and isinstance(answer.get("data"), dict):
            data: dict[str, Any] = answer["data"]
            return data
        raise self._refusal(200, answer, query)

    def left_ms(self) -> float:
        try:
            return self._line.left_s() * 1000
        except TimeoutError as error:
            raise MetricsError("timeout", f"{self._url} did not answer in time") from error

    def body(self, method: str, path: str, form: bytes | None, query: str) -> bytes:
        """The answer of status 200. Raises MetricsError."""
        try:
            status, body = self._line.ask(method, path, form, _FORM if form else None)
        except TimeoutError as error:
            raise MetricsError("timeout", f"{self._url} did not answer in time") from error
        except OSError as error:
            raise MetricsError("unreachable", f"{self._url} cannot be reached: {error}") from error
        except (http.client.HTTPException, TooLong, ValueError) as error:
            said = f"{type(error).__name__}: {error}".rstrip(": ")
            raise MetricsError("malformed", f"{self._url} does not answer as a metrics server does ({said})") from error
        if status != 200:
            raise self._refusal(status, _json(body), query)
        return body

    def _refusal(self, status: int, answer: dict[str, Any], query: str) -> MetricsError:
        said = answer.get("error") or f"HTTP {status} without a reason"
        if answer.get("errorType") in {"timeout", "canceled"}:
            return MetricsError("timeout", f"{self._url} gave up on the query: {said}")
        if status >= 500:
            return MetricsError("server_error", f"{self._url} answers {status}: {said}")
        if status >= 400:
            return MetricsError("refused", f"{self._url} refuses the query ({said}): {query}")
        return MetricsError("malformed", f"{self._url} answers {status}, but not as a metrics server does")


class _Past(BaseAdapter):
    """Ranges of one span, asked by `prometheus-api-client` over the line of `asked`."""

    def __init__(self, asked: _Asked, since: int, until: float, step_s: int) -> None:
        super().__init__()
        self._asked, self._step_s, self._query = asked, step_s, ""
        self.instants = [float(at) for at in range(since, int(until) + 1, step_s)]
        session = Session()
        self._client = PrometheusConnect("http://prometheus", session=session)
        session.mount("http://prometheus", self)
        self._known: dict[str, list[tuple[_Labels, dict[float, float]]]] = {}

    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        response = Response()
        response.status_code = 200
        response.raw = io.BytesIO(self._asked.body("GET", str(request.path_url), None, self._query))
        return response

    def close(self) -> None: ...

    def samples(self, query: str, stale_s: float) -> dict[float, CounterSample | MetricsError]:
        """By instant, what `Prometheus.read` returns there."""
        rows = self._ranges(query)
        if len(rows) > 1:
            raise MetricsError("many_series", f"the query gives {len(rows)} series; put sum(…) around it: {query}")
        values = rows[0][1] if rows else {}
        found: dict[float, CounterSample | MetricsError] = {}
        taken = [
            (_name_of(one, labels), times)
            for one in selectors(query)
            for labels, times in self._ranges(f"timestamp({one})")
        ]
        resets = [times for one in selectors(query) for _, times in self._ranges(f"sum(resets({one}[{RESETS_OVER}]))")]
        for at in self.instants:
            value = values.get(at)
            series = {name: times[at] for name, times in taken if at in times}
            age_s = at - max(series.values()) if series else 0.0
            if value is None:
                found[at] = MetricsError("no_data", f"nothing matches the query: {query}")
            elif not math.isfinite(value):
                found[at] = MetricsError("not_a_number", f"the query gives {value}; a counter is a number: {query}")
            elif value < 0:
                found[at] = MetricsError("negative", f"the query gives {value:g}; a counter is never below 0: {query}")
            elif age_s > stale_s:
                found[at] = MetricsError("stale", f"the newest sample is {age_s:.0f} s old: {query}")
            else:
                began_anew = sum(times.get(at, 0.0) for times in resets)
                found[at] = CounterSample(value, max(0.0, age_s), frozenset(series), began_anew)
        return found

    def _ranges(self, query: str) -> list[tuple[_Labels, dict[float, float]]]:
        """The series of the query, each with its values by instant."""
        if query not in self._known:
            self._known[query] = self._asked_ranges(query) if self.instants else []
        return self._known[query]

    def _asked_ranges(self, query: str) -> list[tuple[_Labels, dict[float, float]]]:
        self._query = query
        span = [datetime.fromtimestamp(at, tz=UTC) for at in (self.instants[0], self.instants[-1])]
        limit = {"timeout": f"{self._asked.left_ms():.0f}ms"}
        try:
            rows = self._client.custom_query_range(query, *span, step=f"{self._step_s}", params=limit)
            return [(row["metric"], {float(at): float(value) for at, value in row["values"]}) for row in rows]
        except (KeyError, TypeError, ValueError) as error:
            raise MetricsError("malformed", f"what came for the query is no range of numbers: {query}") from error


def _json(body: bytes) -> dict[str, Any]:
    """The answer's JSON object; empty if it is none."""
    try:
        answer = json.loads(body)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _name_of(selector: str, labels: _Labels) -> str:
    """The same for the same series, short."""
    whole = json.dumps([selector, sorted(labels.items())])
    return hashlib.blake2b(whole.encode(), digest_size=8).hexdigest()


def query_status(line: DeadlineConnection) -> int:
    """The HTTP status of a query that any metrics server can answer. Raises as the line does."""
    return line.ask("POST", "/api/v1/query", urlencode({"query": "1"}).encode(), _FORM)[0]
