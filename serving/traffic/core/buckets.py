"""The edges of latencies and sizes that every gateway counts by."""

from __future__ import annotations

#: Upper edges in µs. A slow-request threshold must be one of them: a histogram has no resolution between edges.
EDGES_US: tuple[int, ...] = (
    1_000,
    2_000,
    3_000,
    5_000,
    7_500,
    10_000,
    15_000,
    20_000,
    30_000,
    50_000,
    75_000,
    100_000,
    150_000,
    200_000,
    250_000,
    300_000,
    400_000,
    500_000,
    750_000,
    1_000_000,
    1_500_000,
    2_000_000,
    3_000_000,
    5_000_000,
    10_000_000,
    15_000_000,
    30_000_000,
    60_000_000,
    120_000_000,
    300_000_000,
    600_000_000,
)

#: Of them, those by which the answers to each tenant are counted: fewer, as there may be fifty tenants for each model.
TENANT_EDGES_US: tuple[int, ...] = (
    5_000, 10_000, 20_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_000_000, 5_000_000, 30_000_000,
)  # fmt: skip

#: Upper edges in bytes of a request's body, by which the mix of requests is compared between releases. Envoy writes six digits.
SIZE_EDGES: tuple[int, ...] = (512, 4096, 32_768, 262_144, 2_000_000)

#: Upper edges of a stream's events with text. An edge counts the streams that have as many, too.
TEXT_EDGES: tuple[int, ...] = (0, *(2**power for power in range(15)))
