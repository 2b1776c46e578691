"""A fleet: healthy releases of models that differ in load, failures, answers and servers."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.calibration.cells import OBJECTIVES
from benchmarks.calibration.premises.scenario import Answers, Cold, Scenario, Wander
from benchmarks.calibration.traffic import Latency, Spells

FLEET = 1500
HORIZON_S = 8 * 3600


def of_fleet(rng: np.random.Generator) -> Scenario:
    """Returns one model's rollout with the preset `standard`, drawn from the fleet's mix.

    The model gets 1 to 1000 requests/s in all (log-uniform). It fails .05 to .5 % by itself and .02 to .2 % wherever a request goes
    (both log-uniform). Its median answer takes .05 to 5 s (log-uniform, sigma .5); an arm has 1 to 5 servers. Of 10 models 7
    try failed attempts again on stable, 2 fail in batches of 8, 3 have servers that fail 20 % for 10 s in .2 % of the time,
    and 5 have a time guard at 250 ms. Of these 5, the latency of 2 wanders by 5 % in 60 s, and in 1 all answers are slow in the
    first 5 s of new servers.
    """

    def spread(low: float, high: float) -> float:
        return float(low * (high / low) ** rng.random())

    more: dict[str, Any] = {"an_arm": int(rng.integers(1, 6))}
    if rng.random() < 0.3:
        more["spells"] = Spells(0.2, 10, 10 * (1 / 0.002 - 1))
    if rng.random() < 0.5:
        more |= {"objectives": OBJECTIVES, "latency": Latency()}
        chance = rng.random()
        if chance < 0.4:
            more["wander"] = Wander(0.05, 60)
        elif chance < 0.6:
            more["cold"] = Cold(1.0, 5, each_weight=True)
    return Scenario(
        "ordinary",
        "fleet",
        0.05 * spread(1, 1000),
        {"preset": "standard"},
        horizon_s=HORIZON_S,
        base=(spread(0.0005, 0.005),),
        poison=spread(0.0002, 0.002),
        retried=bool(rng.random() < 0.7),
        clump=8 if rng.random() < 0.2 else 1,
        answers=Answers(spread(0.05, 5), 0.5),
        **more,
    )
