"""An indicator is a value: no other module compares its name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from rollouts.core.indicators import INDICATORS
from tests.support.house.architecture import ROOT, sources
from tests.support.house.switches import found_in, switches

ROOMS = ("sluicegate", "web", "notifications", "audit", "rollouts")
OWN = "rollouts/core/indicators.py"
#: Identifiers that stand for the name of an indicator.
CONSTANTS = ("ERRORS", "REFUSED", "WRONG", "CALLERS")
#: Files that know guards but use the same words for something else.
HOMONYMS = {
    "rollouts/actions/preview.py": "levels of a line",
    "rollouts/core/counter_deltas.py": "counters",
    "rollouts/engine/gateway_counters.py": "counters",
}


def files() -> list[Path]:
    """Files that know guards: elsewhere the same words have other meanings."""
    others = {OWN, *HOMONYMS}
    known = [path for path in sources(*ROOMS) if re.search("guard|indicator", path.read_text())]
    return [path for path in known if str(path.relative_to(ROOT)) not in others]


def test_nobody_else_compares_the_name_of_an_indicator() -> None:
    assert found_in(files(), INDICATORS, constants=CONSTANTS) == []


@pytest.mark.parametrize("path", HOMONYMS)
def test_a_file_with_other_meanings_reads_no_indicator(path: str) -> None:
    assert "indicator" not in (ROOT / path).read_text()


@pytest.mark.parametrize(
    "source",
    [
        "guard.indicator == 'slow'",
        "guard.indicator not in {'errors', 'wrong'}",
        "guard.name == ERRORS",
        "x = {'slow': 1, 'wrong': 2}",
    ],
)
def test_each_form_of_a_comparison_is_seen(source: str) -> None:
    assert list(switches(ast.parse(source), INDICATORS, constants=CONSTANTS))


def test_each_indicator_has_a_row_in_the_docs() -> None:
    rows = (ROOT / "docs" / "rollouts.md").read_text().splitlines()
    assert [name for name in INDICATORS if not any(row.startswith(f"| `{name}` |") for row in rows)] == []
