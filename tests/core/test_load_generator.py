"""What the benchmarks' users send, and what their models make of it."""

from __future__ import annotations

import ast
import json
import random
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmarks import load_generator
from benchmarks.faulty_code import breaking, late
from benchmarks.load_generator import MARK, POISON, Kind, LoadGenerator, Mix, body_of


def test_the_mix_draws_its_shares() -> None:
    chance = random.Random(1)
    drawn = Counter(Mix(poisoned_frac=0.2, malformed_frac=0.1).draw(chance) for _ in range(10_000))
    assert drawn[Kind.POISONED] == pytest.approx(2000, rel=0.1)
    assert drawn[Kind.MALFORMED] == pytest.approx(1000, rel=0.1)
    assert {Mix().draw(chance) for _ in range(100)} == {Kind.GOOD}


def test_only_malformed_requests_cannot_be_read() -> None:
    assert json.loads(body_of(Kind.GOOD, 7.0))["inputs"][0]["data"] == [7.0, *MARK]
    assert json.loads(body_of(Kind.POISONED, 7.0))["inputs"][0]["data"] == [POISON, *MARK]
    with pytest.raises(json.JSONDecodeError):
        json.loads(body_of(Kind.MALFORMED, 7.0))


@pytest.mark.parametrize(
    "code", [breaking(share=0.05), late(Path("/tmp/x"), late_s=2.0, share=0.01)], ids=["breaking", "late"]
)  # fmt: skip
def test_the_code_of_releases_is_python(code: str) -> None:
    assert "TritonPythonModel" in {node.name for node in ast.parse(code).body if isinstance(node, ast.ClassDef)}


@dataclass
class Held(LoadGenerator):
    """Its users are answered when the test says so."""

    answers: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def _ask(self, kind: Kind, number: float) -> None:
        self.answers.acquire()

    def until(self, asked: int) -> None:
        while self.asked < asked:
            threading.Event().wait(0.001)


@pytest.mark.parametrize(
    ("most_waiting", "behind_s", "is_late"), [(3, 1e9, True), (1000, 1e9, False), (1000, -1.0, True)]
)
def test_requests_that_waited_for_others_or_for_the_machine_are_told(
    monkeypatch: pytest.MonkeyPatch, most_waiting: int, behind_s: float, is_late: bool
) -> None:
    monkeypatch.setattr(load_generator, "BEHIND_S", behind_s)
    with Held("", 500, most_waiting=most_waiting) as users:
        users.until(5)
        users.answers.release(100_000)
    assert bool(users.late) is is_late
