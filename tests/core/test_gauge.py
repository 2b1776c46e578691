"""Numbers against their limits."""

from __future__ import annotations

import pytest

from web.gauge import Gauge, gauge, number_text


@pytest.mark.parametrize(
    ("value", "limit", "options", "expected"),
    [
        (40.0, 50.0, {"unit": "ms"}, Gauge("ok", 64.0, 80.0, "40 ms of 50 ms")),
        (50.0, 50.0, {"unit": "ms"}, Gauge("ok", 80.0, 80.0, "50 ms of 50 ms")),
        (500.0, 50.0, {"unit": "ms"}, Gauge("bad", 100.0, 80.0, "500 ms of 50 ms")),
        (None, 50.0, {"unit": "ms"}, Gauge("idle", 0.0, None, "– of 50 ms")),
        (12.0, None, {}, Gauge("idle", 0.0, None, "12")),
        (None, None, {}, Gauge("idle", 0.0, None, "–")),
        (0.0, 0.0, {}, Gauge("ok", 0.0, 0.0, "0 of 0")),
        (1.0, 0.0, {}, Gauge("bad", 100.0, 0.0, "1 of 0")),
        (0.5, 1.0, {"unit": "share", "at_least": True}, Gauge("bad", 40.0, 80.0, "50 % of at least 100 %")),
        (2.0, 1.0, {"at_least": True}, Gauge("ok", 100.0, 50.0, "2 of at least 1")),
        (2**30, 2**31, {"unit": "bytes"}, Gauge("ok", 40.0, 80.0, "1.0 GiB of 2.0 GiB")),
    ],
)
def test_gauge(value: float | None, limit: float | None, options: dict[str, object], expected: Gauge) -> None:
    assert gauge(value, limit, **options) == expected  # type: ignore[arg-type]


def test_numbers_have_four_figures_and_their_unit() -> None:
    assert [number_text(n, "req/s") for n in (0.123456, 12.3456, 1234.56, 1234567)] == [
        "0.1235 req/s", "12.35 req/s", "1,235 req/s", "1,234,567 req/s",
    ]  # fmt: skip
    assert (number_text(90, "seconds"), number_text(None, "ms")) == ("90 s", "–")
