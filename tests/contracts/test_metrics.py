"""What every source of external counters must do, fake and real: one number for each query, or the reason why there is none."""

from __future__ import annotations

import http.server
import ipaddress
import math
import ssl
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from serving.ports import CounterQuery, CounterSample, ExternalMetrics, MetricsError
from serving.traffic.adapters.prometheus import Prometheus
from tests.support.fakes.ports import FakeMetrics
from tests.support.rigs.prometheus_rig import ScrapedExporter, prometheus_process
from tests.support.servers.faulty_proxy import FaultyProxy, faulty_proxy

BAD, TOTAL = "orders_failed_total", "orders_total"


class Source(Protocol):
    """What the contract needs to say to either of them. `scraped` makes sure that what was set can be asked for."""

    def set(self, metric: str, value: float, **labels: str) -> None: ...
    def drop(self, metric: str, **labels: str) -> None: ...
    def scraped(self) -> None: ...
    def restart(self) -> None: ...
    def fail(self, reason: str | None) -> None:
        """unreachable · timeout · server_error · malformed; None ends it."""
        ...

    def read(self, queries: list[CounterQuery], timeout_s: float = 30.0) -> dict[str, CounterSample | MetricsError]: ...


class Fake:
    def __init__(self) -> None:
        self.metrics = FakeMetrics()
        self.set, self.drop, self.fail = self.metrics.set, self.metrics.drop, self.metrics.fail

    def scraped(self) -> None: ...

    def restart(self) -> None: ...

    def read(self, queries: list[CounterQuery], timeout_s: float = 30.0) -> dict[str, CounterSample | MetricsError]:
        return self.metrics.read(queries, timeout_s=timeout_s)


class Real:
    """Prometheus behind a proxy that spoils its answers."""

    MODES = {"unreachable": "refuse", "timeout": "hang", "server_error": "error", "malformed": "garbage", None: "ok"}

    def __init__(self, process: ScrapedExporter, proxy: FaultyProxy) -> None:
        self.process, self.proxy = process, proxy
        self.metrics: ExternalMetrics = Prometheus(proxy.url)

    def set(self, metric: str, value: float, **labels: str) -> None:
        self.process.exporter.values[metric, tuple(sorted(labels.items()))] = value

    def drop(self, metric: str, **labels: str) -> None:
        self.process.exporter.values.pop((metric, tuple(sorted(labels.items()))))

    def scraped(self) -> None:
        self.process.scraped()

    def restart(self) -> None:
        self.process.stop()
        self.process.start()

    def fail(self, reason: str | None) -> None:
        self.proxy.mode = self.MODES[reason]

    def read(self, queries: list[CounterQuery], timeout_s: float = 30.0) -> dict[str, CounterSample | MetricsError]:
        return dict(self.metrics.read(queries, timeout_s=timeout_s))


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScrapedExporter]:
    with prometheus_process(tmp_path_factory.mktemp("prometheus")) as one:
        yield one


@pytest.fixture(params=["fake", pytest.param("prometheus", marks=pytest.mark.real("prometheus"))])
def source(request: pytest.FixtureRequest) -> Iterator[Source]:
    if request.param == "fake":
        yield Fake()
        return
    process: ScrapedExporter = request.getfixturevalue("process")
    process.exporter.values.clear()
    process.exporter.is_down = False
    process.scraped()
    with faulty_proxy(process.url) as proxy:
        yield Real(process, proxy)


def of(metric: str, release: str = "r2", *, tail: str = "") -> str:
    return f'sum({metric}{{release="{release}"}}){tail}'


def one(source: Source, query: str, timeout_s: float = 30.0) -> CounterSample | MetricsError:
    return source.read([CounterQuery("it", query)], timeout_s)["it"]


def value(source: Source, query: str) -> float:
    found = one(source, query)
    assert isinstance(found, CounterSample), found
    return found.value


def sample(source: Source, query: str) -> CounterSample:
    found = one(source, query)
    assert isinstance(found, CounterSample), found
    return found


def reason(source: Source, query: str) -> str:
    found = one(source, query)
    assert isinstance(found, MetricsError), found
    assert found.message and found.reason in MetricsError.REASONS
    return found.reason


# -- the contract, on both ---------------------------------------------------------------------------------------------


def test_counters_of_both_releases_come_together(source: Source) -> None:
    for release, bad, total in (("r1", 3, 900), ("r2", 7, 100)):
        source.set(BAD, bad, release=release)
        source.set(TOTAL, total, release=release)
    source.scraped()
    asked = [
        CounterQuery(f"{metric} {release}", of(metric, release)) for metric in (BAD, TOTAL) for release in ("r1", "r2")
    ]
    found = source.read(asked)
    assert {name: one.value for name, one in found.items() if isinstance(one, CounterSample)} == {
        f"{BAD} r1": 3, f"{BAD} r2": 7, f"{TOTAL} r1": 900, f"{TOTAL} r2": 100,
    }  # fmt: skip
    assert all(0 <= one.age_s < 60 for one in found.values() if isinstance(one, CounterSample))


def test_a_sum_is_one_number_and_a_bare_selector_is_one_only_while_one_series_matches(source: Source) -> None:
    source.set(TOTAL, 5, release="r2", pod="a")
    source.scraped()
    assert value(source, f'{TOTAL}{{release="r2"}}') == 5
    source.set(TOTAL, 8, release="r2", pod="b")
    source.scraped()
    assert value(source, of(TOTAL)) == 13
    assert reason(source, f'{TOTAL}{{release="r2"}}') == "many_series"


def test_an_absent_series_is_no_data_and_never_zero_unless_the_query_says_so(source: Source) -> None:
    source.set(TOTAL, 5, release="r1")
    source.scraped()
    assert reason(source, of(TOTAL, "r2")) == "no_data"
    assert reason(source, 'sum(misspelt_total{release="r1"})') == "no_data"
    said = sample(source, of(TOTAL, "r2", tail=" or vector(0)"))
    assert (said.value, said.series) == (0, frozenset())


def test_one_bad_query_spoils_no_other(source: Source) -> None:
    source.set(TOTAL, 5, release="r2")
    source.scraped()
    asked = [CounterQuery("good", of(TOTAL)), CounterQuery("none", of(BAD)), CounterQuery("odd", "sum(((")]
    found = source.read(asked)
    assert isinstance(found["good"], CounterSample)
    none, odd = found["none"], found["odd"]
    assert isinstance(none, MetricsError) and none.reason == "no_data"
    assert isinstance(odd, MetricsError) and odd.reason == "refused" and "sum(((" in odd.message


@pytest.mark.parametrize(
    ("number", "why"),
    [(math.nan, "not_a_number"), (math.inf, "not_a_number"), (-math.inf, "not_a_number"), (-4.0, "negative")],
)
def test_what_is_no_count_is_refused(source: Source, number: float, why: str) -> None:
    source.set(TOTAL, number, release="r2")
    source.scraped()
    assert reason(source, of(TOTAL)) == why


def test_a_reset_is_told(source: Source) -> None:
    source.set(TOTAL, 50, release="r2", pod="a")
    source.set(TOTAL, 1000, release="r2", pod="b")
    source.scraped()
    before = sample(source, of(TOTAL))
    source.set(TOTAL, 2, release="r2", pod="a")  # this one began anew, and the other hides the fall
    source.set(TOTAL, 1100, release="r2", pod="b")
    source.scraped()
    after = sample(source, of(TOTAL))
    assert after.value == 1102 > before.value
    assert (after.series, after.resets) == (before.series, before.resets + 1)


def test_series_that_come_and_go_are_told(source: Source) -> None:
    source.set(TOTAL, 50, release="r2", pod="a")
    source.scraped()
    first = sample(source, of(TOTAL))
    source.set(TOTAL, 5, release="r2", pod="b")
    source.scraped()
    both = sample(source, of(TOTAL))
    source.drop(TOTAL, release="r2", pod="a")
    source.scraped()
    last = sample(source, of(TOTAL))
    assert len(both.series) == 2 and first.series < both.series and last.series == both.series - first.series
    source.set(TOTAL, 50, release="r2", pod="a")
    source.scraped()
    assert sample(source, of(TOTAL)).series == both.series


def test_a_restart_of_the_metrics_server_changes_no_counter(source: Source) -> None:
    source.set(TOTAL, 50, release="r2")
    source.scraped()
    before = sample(source, of(TOTAL))
    source.restart()
    source.scraped()
    after = sample(source, of(TOTAL))
    assert (after.value, after.series, after.resets) == (before.value, before.series, before.resets)


@pytest.mark.parametrize("why", ["unreachable", "timeout", "server_error", "malformed"])
def test_a_metrics_server_that_is_away_is_named_and_comes_back(source: Source, why: str) -> None:
    source.set(TOTAL, 5, release="r2")
    source.scraped()
    source.fail(why)
    began = time.monotonic()
    most_s, many = 1.5 if why == "timeout" else 20.0, [CounterQuery(f"query {i}", of(TOTAL)) for i in range(20)]
    found = source.read(many, most_s)
    assert time.monotonic() - began < 15  # all within the time of one
    assert {error.reason for error in found.values() if isinstance(error, MetricsError)} == {why} and len(found) == 20
    source.fail(None)
    assert value(source, of(TOTAL)) == 5


# -- Prometheus alone --------------------------------------------------------------------------------------------------


@pytest.fixture
def real(process: ScrapedExporter) -> Iterator[Real]:
    process.exporter.values.clear()
    process.exporter.is_down = False
    with faulty_proxy(process.url) as proxy:
        yield Real(process, proxy)


@pytest.mark.real("prometheus")
@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("error", "server_error"),
        ("busy", "server_error"),
        ("hang", "timeout"),
        ("trickle", "timeout"),
        ("refuse", "unreachable"),
        ("garbage", "malformed"),
        ("empty", "malformed"),
        ("cut", "malformed"),
        ("nan", "malformed"),
        ("frozen", "stale"),
    ],
)
def test_every_way_to_answer_badly_has_its_reason(real: Real, mode: str, why: str) -> None:
    real.set(TOTAL, 5, release="r2")
    real.scraped()
    assert value(real, of(TOTAL)) == 5
    real.proxy.mode = mode
    if mode == "frozen":
        one(real, of(TOTAL))
        real.metrics = Prometheus(real.proxy.url, stale_s=0.3)
        one(real, of(TOTAL))
        time.sleep(0.5)
    began = time.monotonic()
    found = one(real, of(TOTAL), timeout_s=0.6 if why == "timeout" else 20.0)
    assert time.monotonic() - began < 15  # the proxy would keep it waiting for a minute
    assert isinstance(found, MetricsError) and found.reason == why, found
    real.proxy.mode, real.metrics = "ok", Prometheus(real.proxy.url)
    assert value(real, of(TOTAL)) == 5


@pytest.mark.real("prometheus")
def test_prometheus_own_words_reach_the_reader_without_its_password(real: Real) -> None:
    real.metrics = Prometheus(real.proxy.url.replace("http://", "http://reader:geheim@"))
    odd = one(real, 'sum(x{a="b"}) by (')
    assert isinstance(odd, MetricsError) and odd.reason == "refused" and "parse error" in odd.message
    for pod in "ab":
        real.set(TOTAL, 5, release="r2", pod=pod)
    real.scraped()
    many = one(real, f'vector(1) + on() {TOTAL}{{release="r2"}}')
    assert isinstance(many, MetricsError) and many.reason == "refused" and "many" in many.message
    real.proxy.mode = "refuse"
    gone = one(real, of(TOTAL))
    assert isinstance(gone, MetricsError) and "geheim" not in gone.message and "127.0.0.1" in gone.message


@pytest.mark.real("prometheus")
def test_what_is_no_single_number_is_malformed(real: Real) -> None:
    for query in (f'{TOTAL}{{release="r2"}}[5m]', '"text"'):
        assert reason(real, query) == "malformed"


@pytest.mark.real("prometheus")
def test_a_target_that_cannot_be_scraped_is_no_data_at_once(real: Real) -> None:
    real.set(TOTAL, 5, release="r2")
    real.scraped()
    real.process.exporter.is_down = True
    real.scraped()
    assert reason(real, of(TOTAL)) == "no_data"


@pytest.mark.real("prometheus")
def test_samples_that_stopped_coming_are_stale(real: Real) -> None:
    """A number at an instant long after its sample: Prometheus itself would serve it for five minutes."""
    real.set(TOTAL, 5, release="r2")
    real.scraped()
    real.metrics = Prometheus(real.proxy.url, stale_s=0.0)
    assert reason(real, of(TOTAL)) == "stale"


@pytest.mark.real("prometheus")
def test_a_path_is_asked_where_it_is_said(real: Real) -> None:
    real.metrics = Prometheus(f"{real.proxy.url}/behind/a/path")
    found = one(real, of(TOTAL))
    assert isinstance(found, MetricsError) and found.reason == "refused" and "404" in found.message


# -- over TLS ----------------------------------------------------------------------------------------------------------


class Five(http.server.BaseHTTPRequestHandler):
    """Answers every query with the number 5."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b'{"status": "success", "data": {"resultType": "scalar", "result": [1, "5"]}}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


def self_signed(folder: Path) -> tuple[Path, Path]:
    """(certificate, key) for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths


def test_a_certificate_is_checked_and_a_trusted_one_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = self_signed(tmp_path)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Five)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        metrics = Prometheus(f"https://127.0.0.1:{server.server_address[1]}")
        asked = [CounterQuery("a", "5"), CounterQuery("b", "5")]
        for found in metrics.read(asked, timeout_s=30).values():
            assert isinstance(found, MetricsError) and found.reason == "unreachable" and "certificate" in found.message
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert [found.value for found in metrics.read(asked, timeout_s=30).values()] == [5, 5]  # type: ignore[union-attr]
    finally:
        server.shutdown()
        server.server_close()
