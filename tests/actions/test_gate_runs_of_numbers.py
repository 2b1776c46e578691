"""Gate runs whose golden set expects numbers: stable is asked, and what does not fit is refused before anything runs."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from accounts.core.access import Actor
from ledger.core.errors import Invalid
from registry.models import ServedModel
from serving.models import Replica
from tests.support.worlds.factories import make_node, make_release, make_server
from tests.support.worlds.gate_setup import Arrays, Stage, developer, judge_text, model, promote, stage, validated  # noqa: F401
from validators import actions

pytestmark = pytest.mark.django_db


def off_by(factor: float) -> Any:
    def compute(tensors: Arrays) -> Arrays:
        return {"probabilities": (judge_text(tensors)["probabilities"] * factor).astype(np.float32)}

    return compute


@pytest.fixture
def expecting(developer: Actor, model: ServedModel) -> ServedModel:
    """The model with a golden set of probabilities, asked by the golden gate alone."""
    texts = [f"{'good' if at % 2 else 'bad'} {at}" for at in range(60)]
    rows = [[0.1, 0.9] if "good" in text else [0.8, 0.2] for text in texts]
    lines = [
        json.dumps(
            {"id": f"i{at}", "inputs": {"TEXT": text}, "expected": {"probabilities": row}, "slice": "ab"[at < 30]}
        )
        for at, (text, row) in enumerate(zip(texts, rows, strict=True))
    ]
    golden, _ = actions.add_golden_set(actor=developer, model=model, data="\n".join(lines).encode())
    asked = {"set": golden.digest, "compare": "largest_relative_error", "alone_items": 8}
    model.gate_policy = {"gates": ["golden"], "golden": asked}
    model.save()
    return model


def test_a_release_that_moved_every_number_fails_against_a_stable_one_in_production(
    stage: Stage, developer: Actor, expecting: ServedModel
) -> None:
    stable = make_release(expecting)
    first = validated(developer, stable).results.get(gate="golden")
    assert first.verdict == "passed", first.reason
    server = Replica.objects.create(release=stable, environment=promote(stable), node=make_node(), state="ready")
    make_server(server)
    rounded, moved = make_release(expecting), make_release(expecting)
    stage.behave(rounded, off_by(1.001))
    stage.behave(moved, off_by(1.02))
    passed = validated(developer, rounded).results.get(gate="golden")
    assert passed.verdict == "passed", passed.reason
    assert passed.evidence["baseline_source"] == "r1 in production" and passed.evidence["agreement"]["value"] == 1
    failed = validated(developer, moved).results.get(gate="golden")
    assert failed.verdict == "failed"
    assert "agreement with r1 is 0.00%" in failed.reason and "accuracy on slice a is 0.00%" in failed.reason


@pytest.mark.parametrize(
    ("golden", "field"),
    [
        ({"compare": "label"}, "golden.compare"),
        ({"compare": "exact_text"}, "golden.compare"),
        ({"output": "y"}, "golden.output"),
    ],
)
def test_a_policy_that_does_not_fit_its_set_is_refused_before_anything_runs(
    stage: Stage, developer: Actor, expecting: ServedModel, golden: dict[str, str], field: str
) -> None:
    expecting.gate_policy["golden"] |= golden
    expecting.save()
    with pytest.raises(Invalid) as caught:
        actions.request_gate_run(actor=developer, release=make_release(expecting))
    assert caught.value.code == "gate_policy_invalid"
    [error] = caught.value.facts["errors"]
    assert error["field"] == field and error["fix"]
