"""The scenarios that break a premise of the judgement on purpose. Both arms are alike unless the words say otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.calibration.cells import OBJECTIVES
from benchmarks.calibration.premises.faults import ROOMY, hidden, plain
from benchmarks.calibration.premises.scenario import Answers, BadClient, Cold, Fault, Scenario, Wander
from benchmarks.calibration.traffic import Latency, Spells
from rollouts.core.presets import PRESETS

#: The presets with a short bake: what a change of weight breaks shows within minutes of it. The bars are the presets' own.
SHORT: dict[str, Any] = {"min_s": 300, "min_samples": 200, "deadline_s": 1800}
STANDARD = {"preset": "standard"}
BRIEF: dict[str, dict[str, Any]] = {name: {"preset": name, "bake": SHORT} for name in ("standard", "careful", "fast")}
#: No prober compares answers here.
UNCOMPARED = {"guards": [{"indicator": "errors"}], "shadow": PRESETS["careful"]["shadow"] | {"sample_pct": 0}}
BRIEF["careful"] |= UNCOMPARED
#: How long a healthy rollout takes with these, in seconds, and some more.
LASTS_S = {"standard": 1500, "careful": 2700, "fast": 900}
NORMAL = Latency()


def scenarios() -> list[Scenario]:
    """Every one, in the order of the page."""
    return [*_lag(), *_gateways(), *_crowds(), *_servers(), *_fixes(), *_alike(), *hidden(), *plain()]


# --- healthy releases -------------------------------------------------------------------------------------------------


def _lag() -> list[Scenario]:
    """Failures end at once, answers seconds later: after a change of weight only failures have ended."""

    def one(kind: str, rate: float, answers: Answers, preset: str = "standard", **more: Any) -> Scenario:
        words = kind if preset == "standard" else f"{kind}, {preset}"
        horizon_s = 2700 if rate < 10 else LASTS_S[preset]
        found = Scenario("lag", words, rate, BRIEF[preset], horizon_s=horizon_s, answers=answers)
        return replace(found, **more)

    found = [
        one(f"answers take {seconds} s", rate, Answers(seconds), runs=40 if rate > 1 else 20)
        for seconds in (1, 2, 5, 10, 30)
        for rate in (1.0, 10.0, 100.0, 500.0)
    ]
    for preset in ("careful", "fast"):
        found += [one(f"answers take {seconds} s", 100.0, Answers(seconds), preset, runs=30) for seconds in (2, 10)]
    found += [
        one("answers take 10 s, 2 % fail", 10.0, Answers(10), base=(0.02,), objectives=ROOMY, runs=40),
        one("answers take about 2 s, some far longer", 100.0, Answers(2, sigma=1.0), runs=40),
        one("the same, the candidate 30 % slower", 10.0, Answers(2, sigma=1.0, candidate_times=1.3), runs=40),
        one("the same, the candidate 30 % slower", 100.0, Answers(2, sigma=1.0, candidate_times=1.3), runs=40),
        one("answers take 5 s, the candidate's 6.5 s", 100.0, Answers(5, candidate_times=1.3), runs=40),
        one("answers take 5 s, the candidate's 6.5 s", 500.0, Answers(5, candidate_times=1.3), runs=40),
        one("answers take .1 s, failures 2 s", 100.0, Answers(0.1, failed_s=2), runs=40),
    ]
    return found


def _gateways() -> list[Scenario]:
    """Two gateways of different regions, the second of which follows each weight late."""
    regions = (0.02, 0.001)
    return [
        Scenario(
            "gateways", f"one follows {late} s late", 10.0, BRIEF["standard"], ROOMY, 2400, runs=40, base=regions,
            late_s=(0.0, float(late)),
        )
        for late in (0, 30, 300)
    ]  # fmt: skip


def _crowds() -> list[Scenario]:
    """A client whose every request fails."""

    def one(kind: str, rate: float, client: BadClient, **more: Any) -> Scenario:
        return Scenario("bad client", kind, rate, horizon_s=2700, bad_client=client, **{"runs": 40, **more})

    return [
        one("every 10 min, split", 0.2, BadClient(600)),
        one("every 10 min, split, retried", 0.2, BadClient(600), retried=True),
        one("every 30 min, split", 0.2, BadClient(1800)),
        one("every 5 min, all to one arm, 1 s", 10.0, BadClient(300, 1, is_sticky=True)),
        one("every 5 min, all to one arm, 5 s", 10.0, BadClient(300, 5, is_sticky=True)),
        one("every 5 min, all to one arm, 15 s", 10.0, BadClient(300, 15, is_sticky=True)),
        one("every 5 min, all to one arm, 15 s, retried", 10.0, BadClient(300, 15, is_sticky=True), retried=True),
        one("every 5 min, all to one arm, 5 s", 1.0, BadClient(300, 5, is_sticky=True)),
    ]


def _servers() -> list[Scenario]:
    """Servers that have spells of their own, and a new one that warms up."""
    found = []
    for frac, mean_s in ((0.05, 120), (0.2, 30), (0.2, 3)):
        for servers in (1, 2):
            found.append(
                Scenario(
                    "servers", f"{servers} for the candidate, fail {frac:.0%} for {mean_s} s, 2 % of the time", 10.0,
                    horizon_s=2700, runs=40, servers=servers, spells=Spells(frac, mean_s, mean_s / 0.02),
                )
            )  # fmt: skip
    found += [
        Scenario(
            "servers", f"latency wanders by {sd:.0%} over {tau} s", 10.0, STANDARD, OBJECTIVES, 2700, runs=30,
            latency=NORMAL, wander=Wander(sd, tau),
        )
        for sd, tau in ((0.1, 10), (0.1, 120), (0.1, 600), (0.2, 30), (0.2, 120))
    ]  # fmt: skip
    found += [
        Scenario(
            "cold", f"{slow:.0%} slow for the first {for_s} s", 10.0, BRIEF["standard"], OBJECTIVES, 1500, runs=30,
            latency=NORMAL, cold=Cold(slow, for_s),
        )
        for slow, for_s in ((0.1, 60), (1.0, 3), (1.0, 5))
    ]  # fmt: skip
    return found


def _fixes() -> list[Scenario]:
    """Stable is over its objective of 1 %."""
    return [
        Scenario(
            "fix", f"stable fails {stable:.1%}, the candidate {candidate:.1%}", 10.0, BRIEF["standard"], horizon_s=1800,
            runs=30, base=(stable,), candidate_base=candidate,
        )
        for stable, candidate in ((0.05, 0.02), (0.05, 0.005), (0.016, 0.016), (0.05, 0.05))
    ]  # fmt: skip


def _alike() -> list[Scenario]:
    """What must not be blamed, and what lies just within the tolerance of 1.2 times stable's and .1 % on top."""
    found = [
        Scenario("alike", "the candidate exactly at the tolerance", rate, BRIEF["standard"], horizon_s=1800, runs=60,
                 candidate_base=0.007)
        for rate in (10.0, 100.0)
    ]  # fmt: skip
    found += [
        Scenario("alike", f"both fail {share:.1%}", 10.0, BRIEF["standard"], horizon_s=1500, runs=40, base=(share,))
        for share in (0.014, 0.03)
    ]
    found += [
        Scenario("alike", f"{share:.0%} of the requests fail on stable alone, others on the candidate{beside}", 10.0,
                 BRIEF["standard"], ROOMY, 1500, runs=60, base=(0.0,), swapped=share, poison=poison, retried=True)
        for share, poison, beside in ((0.01, 0.0, ""), (0.02, 0.0, ""), (0.01, 0.01, "; 1 % fail anywhere"))
    ]  # fmt: skip
    shared = Fault(0.025, 120, in_bake=True, is_shared=True)
    found.append(
        Scenario("alike", "both fail 3 % from the bake on", 10.0, BRIEF["standard"], horizon_s=1500, runs=40,
                 faults=(shared,))
    )  # fmt: skip
    found += [
        Scenario("alike", "clumps of 3 at low traffic", rate, horizon_s=5400, runs=20, clump=3) for rate in (0.05, 0.2)
    ]
    holdback = BRIEF["standard"] | {"holdback_pct": 0.1}
    found.append(Scenario("alike", "a holdback of .1 %", 10.0, holdback, horizon_s=3600, runs=30))
    return found
