"""Input of a diagnosis: counts by minute, of a model and of each value of its dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Counts:
    """Counts by minute; NaN in a minute without a reading.

    Attributes:
        total: requests.
        bad: by signal (`slow`, `errors`, `refused`), the requests that it counts.
        stages: by stage, milliseconds summed over requests. `total` is what the gateway saw; the others are the server's.
        p99_ms: dates a shift if no signal counts slow requests.
    """

    total: Array
    bad: Mapping[str, Array]
    stages: Mapping[str, Array] = field(default_factory=dict)
    p99_ms: Array | None = None


@dataclass(frozen=True)
class Change:
    """An event that may have caused a shift; `at_s` in seconds of the Unix epoch."""

    at_s: float
    verb: str
    subject: str
    facts: str = ""


@dataclass(frozen=True)
class Window:
    """Minutes that begin at `begin_s` (seconds of the Unix epoch).

    Attributes:
        by: dimension → value → its counts.
        crossed: two dimensions → two values → their counts.
        gauges: resource → its reading by minute, NaN if unknown.
        capacity_per_s: requests that all servers are proven for; None if unknown.
        missing: what a source that is absent would have given.
    """

    begin_s: float
    whole: Counts
    by: Mapping[str, Mapping[str, Counts]] = field(default_factory=dict)
    crossed: Mapping[tuple[str, str], Mapping[tuple[str, str], Counts]] = field(default_factory=dict)
    gauges: Mapping[str, Array] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    capacity_per_s: float | None = None
    missing: tuple[str, ...] = ()
