"""What the benchmarks' users send, and what their models make of it."""

from __future__ import annotations

import ast
import json
import random
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.faulty_code import breaking, late
from benchmarks.load_generator import MARK, POISON, Kind, Mix, body_of


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
