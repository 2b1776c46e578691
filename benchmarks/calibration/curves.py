"""How the evidence of one healthy and one bad rollout grows, second by second."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks.calibration.cells import HELD
from benchmarks.calibration.product import Product
from benchmarks.calibration.simulate import SEED
from benchmarks.calibration.traffic import Scenario, Traffic
from rollouts.core.policy_schema import parse_policy

SECONDS, RATE_PER_S = 300, 10.0


def curves() -> dict[str, Any]:
    """log10 E of the errors guard by second, until it is rolled back, with the bar."""
    bad = Scenario(total_per_s=20 * RATE_PER_S, server_per_s=RATE_PER_S, bad=0.02)
    healthy = Scenario(total_per_s=20 * RATE_PER_S, server_per_s=RATE_PER_S)
    return {
        "bad": _curve(bad, "candidate fails 2 %, stable 0.5 %; 10 requests/s"),
        "healthy": _curve(healthy, "both fail 0.5 %; 10 requests/s"),
    }


def _curve(scenario: Scenario, words: str) -> dict[str, Any]:
    traffic, warm_s = Traffic(scenario, 1, np.random.default_rng(SEED)), 60
    product = Product(parse_policy(HELD), 1)
    for at in range(1 - warm_s, 1):
        product.prepare(float(warm_s + at), traffic.second(float(at), np.zeros(1)))
    found = []
    for at in range(1, SECONDS + 1):
        product.absorb(float(warm_s + at), traffic.second(float(at), product.weight_frac))
        found.append(round(float(product.watched[0].log_e_worse()[0]) / math.log(10), 3))
        if np.isfinite(product.ended_s[0]):
            break
    return {"words": words, "log10_e": found, "bar_log10": round(product.watched[0].bar_worse / math.log(10), 3)}
