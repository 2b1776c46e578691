"""Releases with a stated fate that their answers decide meet it on real servers, however busy the machine is.

`python -m benchmarks.candidates` runs all of them, three times in a row.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.rigs.candidate_rig import Stage, stage
from tests.support.worlds.candidates import CANDIDATES, Candidate

pytestmark = [pytest.mark.real("triton", "onnx"), pytest.mark.timeout(900)]
CHOSEN = [one for one in CANDIDATES if one.in_tests and one.judge not in ("load", "resources")]  # in files of their own


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("node")) as opened:
        yield opened


@pytest.mark.parametrize("candidate", CHOSEN, ids=[one.name for one in CHOSEN])
def test_a_candidate_meets_its_fate(servers: Stage, candidate: Candidate) -> None:
    servers.assert_fate(candidate)


def test_every_candidate_has_a_name_of_its_own() -> None:
    assert len({one.name for one in CANDIDATES}) == len(CANDIDATES)
