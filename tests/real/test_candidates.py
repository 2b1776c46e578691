"""Releases with a stated fate meet it on real servers. `python -m benchmarks.candidates` runs all of them, three times in a row."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.candidate_rig import Stage, stage
from tests.candidates import CANDIDATES, Candidate

pytestmark = pytest.mark.real("triton", "onnx")
CHOSEN = [one for one in CANDIDATES if one.in_tests]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("node")) as opened:
        yield opened


@pytest.mark.parametrize("candidate", CHOSEN, ids=[one.name for one in CHOSEN])
def test_a_candidate_meets_its_fate(servers: Stage, candidate: Candidate) -> None:
    judged = servers.judged(candidate)
    assert judged.found.verdict is candidate.verdict, judged
    assert judged.gate == (candidate.gate or candidate.trial.policy["gates"][-1]), judged
    assert re.search(candidate.says, judged.found.reason), judged.found.reason


def test_every_candidate_has_a_name_of_its_own() -> None:
    assert len({one.name for one in CANDIDATES}) == len(CANDIDATES)
