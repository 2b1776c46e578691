"""A gate is a value: no module outside the gates' own files switches on the name of a gate."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.house.architecture import ROOT, sources
from tests.support.house.switches import found_in, switches
from validators.core.gates import GATES
from validators.core.gates.gate import FACTS, Gate
from validators.execution.gates import MEASURES
from web.pages.gate_plots import FIGURES

#: Rooms that know gates. In the rooms to the right of them the same words have other meanings.
ROOMS = ("sluicegate", "web", "notifications", "audit", "rollouts", "validators")
PACKAGE = "validators.core.gates"
OWN = ("validators/core/gates/", "validators/execution/gates/")
GATES_MD = (ROOT / "docs" / "gates.md").read_text()


def test_nobody_else_switches_on_a_gate() -> None:
    files = [path for path in sources(*ROOMS) if not str(path.relative_to(ROOT)).startswith(OWN)]
    assert found_in(files, GATES, keyword="gate", package=PACKAGE) == []


@pytest.mark.parametrize(
    "source",
    [
        "run.gate == 'load'",
        "'golden' in policy.gates",
        "gate in ('load',)",
        "{'load': 1, 'gpu': 2}",
        "NAMES = ('load', 'gpu')",
        "rows.filter(gate='golden')",
        "match gate:\n    case 'gpu':\n        pass",
        "from validators.core.gates.load import LOAD",
    ],
)
def test_each_form_of_a_switch_is_seen(source: str) -> None:
    assert list(switches(ast.parse(source), GATES, keyword="gate", package=PACKAGE))


@pytest.mark.parametrize("source", ["policy.of('load')", "evidence['golden']", "run.gate == name", "('load', 'x')"])
def test_a_read_of_one_section_is_no_switch(source: str) -> None:
    assert not list(switches(ast.parse(source), GATES, keyword="gate", package=PACKAGE))


def test_no_template_switches_on_a_gate() -> None:
    one = re.compile(rf"""gate\s*[!=]=\s*["']({"|".join(GATES)})["']""")
    assert [str(path) for path in (ROOT / "templates").rglob("*.html") if one.search(path.read_text())] == []


def test_each_gate_has_its_part_that_measures() -> None:
    assert set(MEASURES) == set(GATES)


def test_each_figure_is_drawn_for_some_gate() -> None:
    assert {figure for gate in GATES.values() for figure in gate.figures} == set(FIGURES)


def test_the_docs_name_the_gates_that_depend_on_each_fact() -> None:
    rows = re.findall(r"^\| ((?:`[a-z_]+`(?: \(architecture\))?(?:, )?)+) \| ([a-z_, ]+) \|", GATES_MD, re.MULTILINE)
    told = {fact: gates for facts, gates in rows for fact in re.findall("`([a-z_]+)`", facts)}
    for fact in FACTS:
        names = {gate.name for gate in GATES.values() if fact in gate.depends}
        assert names == (set(GATES) if told[fact] == "every gate" else set(told[fact].split(", "))), fact


def test_the_docs_name_the_gates_that_may_end_undecided() -> None:
    names = [gate.name for gate in GATES.values() if "undecided" in gate.section.members]
    assert f"an undecided {', '.join(names[:-1])} or\n{names[-1]} gate" in GATES_MD


@pytest.mark.parametrize("gate", GATES.values(), ids=list(GATES))
def test_each_gate_is_documented_and_its_form_has_fields_of_its_section(gate: Gate) -> None:
    assert f"\n## {gate.name}\n" in GATES_MD
    assert {row.path.split(".")[0] for row in gate.form} <= set(gate.section.members)
    when = [row for row in GATES_MD.splitlines() if row.startswith("| `gates` |")]
    assert len(when) == 1 and f"`{gate.name}`" in when[0]
