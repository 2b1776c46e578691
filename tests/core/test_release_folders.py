"""The table of release folders, judged without a server: `tests/pages/test_four_doors.py` compares all doors."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluicegate.client.checks import NEEDS_SERVER, judge
from sluicegate.client.folder import read_folder
from tests.support.worlds.release_folders import CASES, Case


@pytest.mark.parametrize(
    "case", [one for one in CASES if one.model == "free"], ids=lambda one: one.name.replace(" ", "-")
)
def test_a_folder_is_judged_without_a_server(case: Case, tmp_path: Path) -> None:
    verdict = judge(None, read_folder(case.write(tmp_path)))
    found = [(one["file"], one["field"], one["message"]) for one in verdict.problems]
    wanted = [(file, *said.partition("|")[::2]) for file, said in case.expected]
    assert [one[:2] for one in found] == [one[:2] for one in wanted], found
    assert all(words in message for (_, _, message), (_, _, words) in zip(found, wanted, strict=True)), found
    assert set(NEEDS_SERVER) <= set(verdict.not_checked)
