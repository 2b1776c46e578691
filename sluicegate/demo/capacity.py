"""What this machine can serve, measured, and what the demo therefore asks of it.

A machine may be small, shared, or pinned to one core; a story told at a rate that it cannot serve ends in timeouts, and says
nothing about releases. So the users ask a third of what was measured, and each step gets the time that its proof takes
at that rate.
"""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollouts.core.policy_schema import parse_policy
from rollouts.core.presets import PRESETS
from rollouts.core.preview import PolicyPreview, preview
from sluicegate.cli import exits
from sluicegate.cli.errors import CommandError
from sluicegate.demo.corpus import read_sentences, write_one
from sluicegate.demo.releases import EXAMPLE, GOLDEN_FILE
from sluicegate.stack import child
from sluicegate.stack.machine import BASE_DIR

#: What users ask at most, and the share of the capacity that they ask: two releases, the gates of a third, and whatever
#: else a machine does have to find room beside them.
MOST_PER_S, SHARE = 22.0, 1 / 3
#: What r1 needs to be released at all. Its load gate asks for 8 requests a second, one in eight of them 128 tokens long, and
#: fails where clearly more than one in ten takes over 250 ms; a rollout goes back where more than 3.5 % of the users' do.
#: A machine of 12/s needs a quarter of a second for each long text, without any queue, and fails the gate; one of 16/s
#: proves it in one run of three, and its users are at the edge of 3.5 %; one of 18/s in three of four, its users at about 2 %.
#: Source: the gate and the users as a queue of texts of 2 ms + .26 ms a token, slowed down as a whole; the tests repeat it.
LEAST_CAPACITY_PER_S = 18.0
LEAST_PER_S = LEAST_CAPACITY_PER_S * SHARE
#: One look at the graph alone, before anything is served. A machine that was disturbed is looked at once more.
GRAPH_S, GRAPH_LOOKS = 3.0, 2
#: The weights are loaded first. A look that is not over by then is no look.
_LOOKED_WITHIN_S = 60.0
#: Users keep this many seconds and as many requests under way as there are protocols while the capacity is measured.
MEASURE_S = 4.0
#: The load gate asks at this share of what the graph alone answers, within these bounds in requests a second. The same number of
#: requests proves the same at any rate, and a faster machine needs less time. The least is that of examples/sentiment/model.yaml.
GATE_SHARE, GATE_PER_S = 1 / 5, (8.0, 16.0)
#: A rollout that takes longer than this leaves stable more than the usual holdback, since the bake waits for what stable gets.
PATIENT_S, HOLDBACKS_PCT = 60.0, (5, 10, 20)
#: A step's deadline, as a multiple of its expected time.
ROOM = 3.0


class TooSmall(CommandError):
    """This machine cannot serve the demo's users."""

    def __init__(self, measured: str) -> None:
        super().__init__(
            f"This machine is too small for the demo, or too busy: {measured}, and {LEAST_CAPACITY_PER_S:g} are needed, "
            f"so that the first release keeps its objective of 250 ms.",
            exit_code=exits.INFRASTRUCTURE,
            next_step="End what else runs here, or take a machine with a faster core; then run the demo again.",
        )


@dataclass(frozen=True)
class Capacity:
    """Answers a second of the users' mix through the gateway, with `at_once` requests under way for `seconds`."""

    per_s: float
    at_once: int
    seconds: float

    @property
    def users_per_s(self) -> float:
        """What the users will ask, in requests a second."""
        return round(min(MOST_PER_S, SHARE * self.per_s), 1)

    def check(self) -> None:
        """Raises TooSmall where even a good release is too slow."""
        if self.per_s < LEAST_CAPACITY_PER_S:
            raise TooSmall(f"it serves {self.per_s:.1f} requests a second of the users' mix")

    def to_json(self) -> dict[str, Any]:
        return {
            "capacity_per_s": self.per_s,
            "at_once": self.at_once,
            "seconds": self.seconds,
            "users_per_s": self.users_per_s,
        }


def check_graph(release: Path, *, look: Callable[[Path], float] | None = None) -> float:
    """Texts a second that one thread answers with the release's graph alone, one by one: a server does about as much.

    Raises TooSmall after `GRAPH_LOOKS` looks that found too few, CommandError (exit 2) where it cannot be run.
    """
    found = 0.0
    for _ in range(GRAPH_LOOKS):
        found = max(found, (look or _graph_per_s)(release))
        if found >= LEAST_CAPACITY_PER_S:
            return found
    raise TooSmall(f"the model alone, without any server, answers {found:.1f} requests a second of the users' mix")


def gate_rate(alone_per_s: float) -> float:
    """Returns the requests a second that the load gate asks on a machine whose graph alone answers so many."""
    least, most = GATE_PER_S
    return round(min(most, max(least, GATE_SHARE * alone_per_s)), 1)


def _graph_per_s(release: Path) -> float:
    sentences, chance = read_sentences(GOLDEN_FILE), random.Random(1)
    texts = "\n".join(json.dumps(write_one(sentences, chance).text) for _ in range(400))
    venv = Path(os.environ.get("SLUICEGATE_SERVING_VENV", BASE_DIR / ".venv-serving"))
    argv = [str(venv / "bin" / "python"), str(EXAMPLE / "speed.py"), str(release), "--seconds", str(GRAPH_S)]
    try:
        said = child.run(argv, timeout_s=_LOOKED_WITHIN_S, text=texts)
    except child.ChildFailed as error:
        raise CommandError(
            f"The model could not be tried: {error}",
            exit_code=exits.INFRASTRUCTURE,
            next_step="`make setup` installs the serving environment.",
        ) from error
    return float(json.loads(said)["per_s"])


def plan_for(users_per_s: float, objectives: Mapping[str, Any]) -> dict[str, Any]:
    """The rollout policy that can be proven at this rate: the demo's preset, with deadlines that its stages can keep.

    Steps, samples and bounds are the preset's at any rate. The guard on slow requests counts at the objective's threshold alone.
    By default it also counts at a fifth and two fifths of it. A small machine is near those points: requests over them come
    in clumps, and 295 samples in place of 40 then proved the same.
    """
    guards = [
        {"indicator": "errors"},
        {"indicator": "slow", "thresholds_ms": [objectives["slow"]["threshold_ms"]]},
    ]
    for holdback in HOLDBACKS_PCT:
        expected = _expected({**_demo(holdback), "guards": guards}, users_per_s, objectives)
        if sum(expected) <= PATIENT_S:
            break
    preset, deadlines = PRESETS["demo"], [math.ceil(ROOM * seconds) for seconds in expected]
    stages = [
        {**stage, "deadline_s": max(stage["deadline_s"], deadline)}
        for stage, deadline in zip([*preset["steps"], preset["bake"]], deadlines, strict=True)
    ]
    return {
        "preset": "demo",
        "holdback_pct": holdback,
        "guards": guards,
        "steps": stages[:-1],
        "bake": stages[-1],
        "deadline_s": max(preset["deadline_s"], sum(deadlines)),
    }


def _demo(holdback_pct: float) -> dict[str, Any]:
    """The preset with deadlines that nothing misses, to see how long its stages take."""
    preset, forever = PRESETS["demo"], {"deadline_s": 86_400}
    return {
        "preset": "demo",
        "holdback_pct": holdback_pct,
        "steps": [{**step, **forever} for step in preset["steps"]],
        "bake": {**preset["bake"], **forever},
    }


def _expected(document: dict[str, Any], users_per_s: float, objectives: Mapping[str, Any]) -> list[float]:
    """Seconds that each stage takes a healthy candidate beside a stable release, at this rate."""
    policy = parse_policy(document, objectives)
    found: PolicyPreview = preview(policy, rate_per_s=users_per_s, has_stable=True)
    return [stage.expected_s or 0.0 for stage in found.stages]
