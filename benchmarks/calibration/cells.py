"""All that is simulated: which traffic meets which policy, and how long it is watched."""

from __future__ import annotations

from typing import Any

from benchmarks.calibration.simulate import Cell
from benchmarks.calibration.traffic import EDGES_MS, SLOW, Clump, Latency, Scenario, Spells

RATES = (1.0, 10.0, 100.0)
HALF_HOUR_S, HOUR_S, LONGEST_S = 1800, 3600, 10_800

STANDARD: dict[str, Any] = {"preset": "standard"}
OBJECTIVES = {"slow": {"threshold_ms": EDGES_MS[-1], "max_frac": 0.01}}


def _steps(weights: tuple[float, ...], min_s: float) -> list[dict[str, Any]]:
    return [{"weight_pct": w, "min_s": min_s, "min_samples": 300, "deadline_s": 4 * HOUR_S} for w in weights]


#: `standard` with its first weight kept for longer than anything is watched: its bars are those of `standard`.
HELD = STANDARD | {"steps": _steps((5, 25, 50), 2 * HOUR_S)}
#: Nothing is tolerated, and one test may err by 1 %: the test that the goals come from.
BARE = HELD | {
    "alpha_roll_back": 0.08,
    "guards": [{"indicator": "errors", "roll_back_over": {"ratio": 1, "plus_frac": 0}}],
}
RAMP = STANDARD | {"steps": _steps((1, 5, 10, 25), 300)}


def _strict_on_slow(policy: dict[str, Any]) -> dict[str, Any]:
    strict = {"indicator": "slow", "roll_back_over": {"ratio": 1.05, "plus_frac": 0.001}}
    return policy | {"guards": [{"indicator": "errors"}, strict]}


def _scenario(rate: float, weight_pct: float = 5, **more: Any) -> Scenario:
    """So much traffic that the candidate gets `rate` at its first weight, on one server."""
    return Scenario(total_per_s=rate * 100 / weight_pct, server_per_s=rate, **more)


EIGHT, TWO, FIVE = Clump(8), Clump(2, is_fixed=False), Clump(5, is_fixed=False)
NORMAL, ONE_TENTH, ONE_FIFTH = Latency(), Latency(median_ms=99), Latency(median_ms=108)
TAIL = Latency(tail_frac=0.03)


def cells() -> list[Cell]:
    """Every cell, in the order of the page."""
    return [
        cell
        for rate in RATES
        for cell in (*_healthy(rate), *_held(rate), *_broken(rate), *_slower(rate), *_late(rate), *_whole(rate))
    ] + _presets()


def _healthy(rate: float) -> list[Cell]:
    """Whole rollouts of healthy releases, from the first weight until promoted."""
    alike: dict[str, dict[str, Any]] = {
        "independent errors": {},
        "independent errors, 0.1 %": {"base": 0.001},
        "clumps of 8": {"clump": EIGHT},
        "clumps of about 2": {"clump": TWO},
        "clumps of about 5": {"clump": FIVE},
        "incident, 5 % of both arms": {"incident": 0.05, "incident_within_s": 2400},
        "incident, 50 % of both arms": {"incident": 0.5, "incident_within_s": 2400},
        "load swings fivefold": {"load_swing": 5.0},
        "harder mix, as tolerated": {"hard": (0.1, 0.15)},
    }
    found = [Cell("healthy", kind, rate, _scenario(rate, **more), STANDARD, LONGEST_S) for kind, more in alike.items()]
    ramp = _scenario(rate, 1, swings=True)
    found.append(Cell("healthy", "ramp from 1 %, errors swing ×10", rate, ramp, RAMP, LONGEST_S))
    for kind, clump in {"latency alike": Clump(), "latency alike, in clumps of 2": TWO}.items():
        scenario = _scenario(rate, latency=NORMAL, clump=clump)
        found.append(_slow_cell("healthy", kind, rate, scenario, STANDARD, LONGEST_S))
    stress = {
        "harder mix, beyond tolerance": {"hard": (0.1, 0.25)},
        "servers fail 20 % for 10 s at a time": {"base": 0.001, "spells": Spells(0.2, 10, 500)},
    }
    cold = "clumps of 8, stable not watched before"
    found.append(Cell("stress", cold, rate, _scenario(rate, clump=EIGHT), STANDARD, LONGEST_S, warm_s=0))
    found += [Cell("stress", kind, rate, _scenario(rate, **more), STANDARD, LONGEST_S) for kind, more in stress.items()]
    return found


def _held(rate: float) -> list[Cell]:
    """Half an hour at 5 %: the setting that the goals come from."""
    alike: dict[str, dict[str, Any]] = {
        "independent errors": {},
        "clumps of 8": {"clump": EIGHT},
        "incident, 5 % of both arms": {"incident": 0.05},
    }
    found = [Cell("held", kind, rate, _scenario(rate, **more), HELD, HALF_HOUR_S) for kind, more in alike.items()]
    found.append(Cell("bare", "healthy", rate, _scenario(rate), BARE, HALF_HOUR_S))
    return found + [
        Cell(group, f"{share:.0%}", rate, _scenario(rate, bad=share, clump=clump), BARE, HALF_HOUR_S)
        for group, clump in (("bare", Clump()), ("bare clumped", EIGHT))
        for share in (0.02, 0.05, 0.2)
    ]


def _broken(rate: float) -> list[Cell]:
    """Failing from the first second, at 5 % of the traffic for half an hour."""
    found = [
        Cell("errors", f"{share:.0%}", rate, _scenario(rate, bad=share), HELD, HALF_HOUR_S)
        for share in (0.01, 0.02, 0.05, 0.2, 1.0)
    ]
    found += [
        Cell("clumped", f"{share:.0%}", rate, _scenario(rate, bad=share, clump=EIGHT), HELD, HALF_HOUR_S)
        for share in (0.02, 0.05, 0.2)
    ]
    found += [
        Cell("low base", f"{share:.1%}", rate, _scenario(rate, base=0.001, bad=share), HELD, HALF_HOUR_S)
        for share in (0.005, 0.01, 0.05)
    ]
    return found


def _slower(rate: float) -> list[Cell]:
    faults = {"all 10 % slower": ONE_TENTH, "all 20 % slower": ONE_FIFTH, "3 % five times slower": TAIL}
    policies = {"slow": HELD, "slow, strict": _strict_on_slow(HELD)}
    return [
        _slow_cell(group, kind, rate, _scenario(rate, latency=NORMAL, slower=slower), policy, HALF_HOUR_S)
        for group, policy in policies.items()
        for kind, slower in faults.items()
    ]


def _late(rate: float) -> list[Cell]:
    """Half an hour of health at one weight, then the fault."""
    return [
        Cell("late", f"{share:.0%}", rate, _scenario(rate, bad=share, onset_s=HALF_HOUR_S), HELD, HOUR_S)
        for share in (0.02, 0.05, 0.2)
    ]


def _whole(rate: float) -> list[Cell]:
    """Mild faults in whole rollouts, whose weights grow unless the fault is found; and faults that begin late in one."""
    found = [
        Cell("whole", f"{share:.0%}", rate, _scenario(rate, bad=share), STANDARD, LONGEST_S)
        for share in (0.01, 0.02, 0.05)
    ]
    return found + [
        Cell("whole, late", f"{share:.0%}", rate, _scenario(rate, bad=share, onset_s=1200), STANDARD, HOUR_S)
        for share in (0.02, 0.05, 0.2)
    ]


def _presets() -> list[Cell]:
    """The other presets, at 10 requests/s of the candidate."""
    found = []
    for preset, weight in (("careful", 1), ("fast", 10)):
        alike: dict[str, dict[str, Any]] = {
            "independent errors": {},
            "clumps of about 5": {"clump": FIVE},
            "incident, 5 % of both arms": {"incident": 0.05},
        }
        found += [
            Cell(f"preset {preset}", kind, 10.0, _scenario(10.0, weight, **more), {"preset": preset}, LONGEST_S)
            for kind, more in alike.items()
        ]
        found += [
            Cell(f"preset {preset}", f"{share:.0%}", 10.0, _scenario(10.0, weight, bad=share), {"preset": preset}, 1800)
            for share in (0.02, 0.05, 0.2)
        ]
    return found


def _slow_cell(group: str, kind: str, rate: float, scenario: Scenario, policy: dict[str, Any], horizon_s: int) -> Cell:
    return Cell(group, kind, rate, scenario, policy, horizon_s, counter=SLOW[-1], objectives=OBJECTIVES)
