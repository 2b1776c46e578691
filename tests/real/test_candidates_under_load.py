"""Releases with a stated fate that shows under a steady load meet it on real servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.rigs.candidate_rig import Stage, stage
from tests.support.worlds.candidates import CANDIDATES, Candidate

pytestmark = pytest.mark.real("triton", "onnx")
CHOSEN = [one for one in CANDIDATES if one.in_tests and one.judge == "load"]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("node")) as opened:
        yield opened


@pytest.mark.parametrize("candidate", CHOSEN, ids=[one.name for one in CHOSEN])
def test_a_candidate_meets_its_fate_under_load(servers: Stage, candidate: Candidate) -> None:
    servers.assert_fate(candidate)
