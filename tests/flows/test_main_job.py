"""The main job on the real Triton, Envoy, PostgreSQL and Valkey: promoted through three kills, and rolled back by evidence."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from sluicegate.stack import Stack, running
from tests.flows.tiny import ENVIRONMENT, FAILS_ON_LARGE, Shop, Users

pytestmark = [pytest.mark.real("envoy", "triton"), pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with tempfile.TemporaryDirectory(prefix="sluicegate-flow-") as folder, running(Path(folder) / "state") as up:
        yield up


def test_first_release_then_promoted_through_kills_then_rolled_back(stack: Stack, tmp_path: Path) -> None:
    with Shop(stack, tmp_path, step_s=8) as shop:
        first = shop.start(shop.prove("one"))
        shop.until(first, "shifting")
        shop.until_acknowledged(first)
        with Users(stack) as users:
            assert "absolute" in " ".join(d["reason"] for d in shop.until(first, "promoted")["decisions"])

            second = shop.start(shop.prove("two"))
            shop.until(second, "shifting")
            for name in ("engine", "control_plane", "worker"):
                kill(stack, name)
            seen = shop.until(second, "promoted")
            assert [step["weight_bp"] for step in seen["steps"]] == [5000, 9500]

            third = shop.start(shop.prove("three", code=FAILS_ON_LARGE))
            seen = shop.until(third, "rolled_back")

        assert users.failures == []
        assert_each_move_happened_once(shop, second)
        assert seen["clock"]["bad_candidate_attempts"] > 0
        assert 0 <= seen["clock"]["decision_to_zero_s"] < 2
        # what users got agrees with what the engine says it did
        last_bad = max(asked for name, asked in users.answers if name == "r3")
        assert last_bad <= time_of(seen["clock"]["zero_at"]) + 0.2
        after = [name for name, asked in users.answers if asked > time_of(seen["clock"]["zero_at"]) + 0.2]
        assert set(after) == {"r2"}
        assert shop.author.get(f"/environments/{ENVIRONMENT}")["routes"][0]["stable"] == "r2"


def kill(stack: Stack, name: str) -> None:
    """SIGKILL, and wait until the stack has started it again."""
    pid = stack.pid_of(name)
    os.kill(pid, signal.SIGKILL)
    assert stack.pid_of(name, unlike=pid) != pid
    time.sleep(0.5)


def time_of(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def assert_each_move_happened_once(shop: Shop, rollout_id: int) -> None:
    events = list(shop.author.pages(f"/events?subject_type=rollout&subject_id={rollout_id}"))
    moves = [(event["from_state"], event["to_state"]) for event in events if event["to_state"] != event["from_state"]]
    assert len(moves) == len(set(moves)), moves
    assert moves[0][1] == "promoted"
