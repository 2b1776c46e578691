"""A gate is a value: no module outside the gates' own files switches on the name of a gate."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.architecture import ROOT, sources, tree_of
from validators.core.gates import GATES
from validators.core.gates.gate import Gate
from validators.execution.gates import MEASURES
from web.pages.gate_plots import FIGURES

#: Rooms that know gates. In the rooms to the right of them the same words have other meanings.
ROOMS = ("sluicegate", "web", "notifications", "audit", "rollouts", "validators")
OWN = ("validators/core/gates/", "validators/execution/gates/")
GATES_MD = (ROOT / "docs" / "gates.md").read_text()


def is_name(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in GATES


def switches(tree: ast.AST) -> Iterator[ast.AST]:
    """Comparisons with a gate's name, tables and lists of names, arguments `gate=`, and imports of one gate's file."""
    for node in ast.walk(tree):
        found = False
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            listed = [one for side in sides if isinstance(side, ast.Tuple | ast.List | ast.Set) for one in side.elts]
            found = any(map(is_name, [*sides, *listed]))
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            found = sum(map(is_name, node.elts)) >= 2
        elif isinstance(node, ast.Dict):
            found = sum(map(is_name, node.keys)) >= 2
        elif isinstance(node, ast.keyword):
            found = (node.arg or "").startswith("gate") and is_name(node.value)
        elif isinstance(node, ast.MatchValue):
            found = is_name(node.value)
        elif isinstance(node, ast.ImportFrom):
            found = (node.module or "").removeprefix("validators.core.gates.") in GATES
        if found:
            yield node


def test_nobody_else_switches_on_a_gate() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', '?')}: {ast.unparse(node)}"
        for path in sources(*ROOMS)
        if not str(path.relative_to(ROOT)).startswith(OWN)
        for node in switches(tree_of(path))
    ]
    assert found == []


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
    assert list(switches(ast.parse(source)))


@pytest.mark.parametrize("source", ["policy.of('load')", "evidence['golden']", "run.gate == name", "('load', 'x')"])
def test_a_read_of_one_section_is_no_switch(source: str) -> None:
    assert not list(switches(ast.parse(source)))


def test_no_template_switches_on_a_gate() -> None:
    one = re.compile(rf"""gate\s*[!=]=\s*["']({"|".join(GATES)})["']""")
    assert [str(path) for path in (ROOT / "templates").rglob("*.html") if one.search(path.read_text())] == []


def test_each_gate_has_its_part_that_measures() -> None:
    assert set(MEASURES) == set(GATES)


def test_each_figure_is_drawn_for_some_gate() -> None:
    assert {figure for gate in GATES.values() for figure in gate.figures} == set(FIGURES)


@pytest.mark.parametrize("gate", GATES.values(), ids=list(GATES))
def test_each_gate_is_documented_and_its_form_has_fields_of_its_section(gate: Gate) -> None:
    assert f"\n## {gate.name}\n" in GATES_MD
    assert {row.path.split(".")[0] for row in gate.form} <= set(gate.section.members)
    when = [row for row in GATES_MD.splitlines() if row.startswith("| `gates` |")]
    assert len(when) == 1 and f"`{gate.name}`" in when[0]
