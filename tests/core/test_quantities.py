"""Sizes, durations and shares in words."""

from __future__ import annotations

import pytest

from accounts.core.quantities import duration_text, share_text, size_text, weight_text


@pytest.mark.parametrize(
    ("count_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (100_000, "97.7 KiB"),
        (2**20, "1.0 MiB"),
        (90_868_376, "86.7 MiB"),
        (20 * 2**30, "20.0 GiB"),
        (2**40, "1.0 TiB"),
        (5000 * 2**40, "5000.0 TiB"),
    ],
)
def test_a_size_is_in_binary_units(count_bytes: int, text: str) -> None:
    assert size_text(count_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0.5, "0.5 s"),
        (12, "12 s"),
        (119, "119 s"),
        (120, "2 min"),
        (2460, "41 min"),
        (7199, "120 min"),
        (7200, "2 h"),
        (172_799, "48 h"),
        (172_800, "2 d"),
    ],
)
def test_a_duration_is_in_the_largest_unit_that_it_has_two_of(seconds: float | None, text: str) -> None:
    assert duration_text(seconds) == text


def test_a_weight_and_a_share_are_percentages() -> None:
    assert [weight_text(bp) for bp in (None, 0, 1, 50, 2550, 10_000)] == [
        "–",
        "0 %",
        "0.01 %",
        "0.5 %",
        "25.5 %",
        "100 %",
    ]
    assert [share_text(frac) for frac in (0.0000355, 0.000355, 0.00000012)] == ["0.004 %", "0.036 %", "0.00001 %"]
    assert [share_text(frac) for frac in (None, 0.0, 0.00123, 0.01234, 0.98765, 1.0)] == [
        "–",
        "0 %",
        "0.123 %",
        "1.23 %",
        "98.8 %",
        "100 %",
    ]
