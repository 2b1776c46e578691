"""The house plan, checked: who imports whom, how state moves, how time is told, how long things are."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.house.architecture import CHECKS, ROOMS, ROOT, sources
from tests.support.house.platform_port import names_across

pytestmark = pytest.mark.slow  # every file is parsed and walked

MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 60
MOST_COLUMNS_OF_A_TEMPLATE = 120
#: Written for people or machines elsewhere; what the machine of whoever wrote it looked like belongs nowhere.
MACHINE_PATHS = re.compile(r"(?<![\w.$}/])/(?:work|home|root|Users|mnt)/[\w.-]+")
SHOWN = [
    "*.py",
    "*.md",
    "*.toml",
    "*.yaml",
    "*.yml",
    "*.json",
    "*.html",
    "*.css",
    "*.js",
    "*.sh",
    "*.in",
    "Makefile",
    ".ci/run",
    ".gitignore",
]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    return {name_of(path): ast.parse(path.read_text(), filename=str(path)) for path in sources()}


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def test_rooms_import_downwards_and_core_is_pure() -> None:
    program = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    done = subprocess.run(
        [sys.executable, "-c", program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_every_core_is_watched() -> None:
    import tomllib

    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    watched = {module for contract in contracts for module in contract.get("source_modules", [])}
    cores = {path.parent for room in ROOMS for path in (ROOT / room).rglob("core/__init__.py")}
    assert watched >= {".".join(core.relative_to(ROOT).parts) for core in cores}


def test_state_is_assigned_nowhere(trees: dict[str, ast.Module]) -> None:
    """A state moves by a compare-and-set UPDATE (ledger/actions/transitions.py), never by setting an attribute of a row."""
    found = []
    for name, tree in trees.items():
        for node in ast.walk(tree):
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AugAssign | ast.AnnAssign)
                else []
            )
            for target in targets:
                if isinstance(target, ast.Attribute) and target.attr == "state" and not _is_self(target.value):
                    found.append(f"{name}:{node.lineno}")
    assert found == []


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


#: Who may write a state column: the one transition, and the claim of a job, which compares lease and due time beside two states.
MOVERS = {("ledger/actions/transitions.py", "transition_rows"), ("ledger/actions/jobs.py", "claim")}


def test_state_is_updated_by_the_one_transition_only(trees: dict[str, ast.Module]) -> None:
    found = []
    for name, tree in trees.items():
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            for call in calls(function):
                is_update = isinstance(call.func, ast.Attribute) and call.func.attr == "update"
                if is_update and any(word.arg == "state" for word in call.keywords):
                    found.append((name, function.name))
    assert set(found) == MOVERS


#: What runs code that it reads. Uploads are bytes, never code.
LOADERS = {"pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle", "torch", "runpy", "imp"}


def test_rows_are_held_without_their_keys(trees: dict[str, ast.Module]) -> None:
    """FOR UPDATE also waits for every row elsewhere that names this one, and those for it: a deadlock with whoever holds the log."""
    calls = [
        (place, node)
        for place, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "select_for_update"
    ]
    assert len(calls) > 10
    assert [place for place, call in calls if all(word.arg != "no_key" for word in call.keywords)] == []


def test_nothing_is_unpickled_or_run(trees: dict[str, ast.Module]) -> None:
    found = []
    for name, tree in trees.items():
        for node in ast.walk(tree):
            modules = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            found += [f"{name}:{node.lineno} {m}" for m in modules if m.split(".")[0] in LOADERS]  # type: ignore[attr-defined]
        for call in calls(tree):
            said = ast.unparse(call.func)
            unsafe = said.endswith(("yaml.unsafe_load", "yaml.full_load")) or said in {"eval", "exec", "compile"}
            unsafe = unsafe or any(word.arg == "allow_pickle" for word in call.keywords)
            found += [f"{name}:{call.lineno} {said}"] if unsafe else []
    assert found == []


def test_time_is_told_with_its_zone(trees: dict[str, ast.Module]) -> None:
    found = []
    for name, tree in trees.items():
        for call in calls(tree):
            said = ast.unparse(call.func)
            naive = said.endswith(("utcnow", "utcfromtimestamp", "date.today", "datetime.today"))
            with_zone = any(word.arg == "tz" for word in call.keywords) or len(call.args) == 1 + said.endswith(
                "fromtimestamp"
            )
            if naive or (said.endswith(("datetime.now", "datetime.fromtimestamp")) and not with_zone):
                found.append(f"{name}:{call.lineno} {said}")
    assert found == []


@pytest.mark.parametrize("check", CHECKS)
def test_the_counts_of_the_house_are_zero(check: str) -> None:
    """`python -m tests.support.house.architecture` prints them."""
    assert CHECKS[check]() == []


def test_every_verb_of_an_event_is_known(trees: dict[str, ast.Module]) -> None:
    from ledger.core.verbs import EventVerb

    found = []
    for name, tree in trees.items():
        for call in calls(tree):
            said = ast.unparse(call.func).rpartition(".")[2]
            if said not in {"append_event", "_move", "_event"}:
                continue
            for word in call.keywords:
                if (
                    word.arg == "verb"
                    and isinstance(word.value, ast.Constant)
                    and word.value.value not in set(EventVerb)
                ):
                    found.append(f"{name}:{call.lineno} {word.value.value}")
    assert found == []


def test_tasks_take_ids_only(trees: dict[str, ast.Module]) -> None:
    found = []
    for name, tree in trees.items():
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            if any("shared_task" in ast.unparse(decorator) for decorator in function.decorator_list):
                found += [f"{name}:{function.lineno} {a.arg}" for a in function.args.args if not a.arg.endswith("_id")]
    assert found == []


def test_no_file_is_long() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in sources()}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES_OF_A_FILE} == {}


def test_no_line_of_a_template_is_long() -> None:
    long = [
        f"{name_of(path)}:{number} has {len(line)} columns"
        for path in sorted((ROOT / "templates").rglob("*.html"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > MOST_COLUMNS_OF_A_TEMPLATE
    ]
    assert long == []


def test_no_function_is_long(trees: dict[str, ast.Module]) -> None:
    long = []
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MOST_LINES_OF_A_FUNCTION:
                    long.append(f"{name}:{node.lineno} {node.name} has {lines} lines")
    assert long == []


def test_no_drawer_for_odds_and_ends() -> None:
    odd = {"utils", "helpers", "common", "misc", "signals"}
    assert [
        name_of(path) for path in sources() if path.stem in odd or odd & set(path.parent.parts[len(ROOT.parts) :])
    ] == []


def test_functions_and_classes_that_others_use_say_what_one_gets(trees: dict[str, ast.Module]) -> None:
    """Every module with something in it has a docstring; so has every public function of core and actions that is no one-liner."""
    missing = [
        name
        for name, tree in trees.items()
        if tree.body and not ast.get_docstring(tree) and not name.endswith(("apps.py", "urls.py"))
    ]
    for name, tree in trees.items():
        if "actions" in name or "/core/" in name:
            missing += [
                f"{name}:{node.lineno} {node.name}"
                for node in tree.body
                if isinstance(node, ast.FunctionDef)
                and not node.name.startswith("_")
                and not ast.get_docstring(node)
                and len(node.body) > 1
            ]
    assert missing == []


def test_no_path_of_anybodys_machine() -> None:
    listed = subprocess.run(["git", "ls-files", *SHOWN], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("there is no git checkout to list the files of")
    found = []
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.is_file() and not name.startswith("tests/"):
            found += [f"{name}: {match.group()}" for match in MACHINE_PATHS.finditer(path.read_text(errors="replace"))]
    assert found == []


def test_every_setting_is_documented() -> None:
    read = re.compile(r"env\.(?:text|flag|number|names|networks)\(\s*\"(\w+)\"")
    used = set(read.findall((ROOT / "sluicegate" / "settings.py").read_text()))
    told = set(re.findall(r"^\| `(\w+)`", (ROOT / "docs" / "settings.md").read_text(), re.M))
    assert used == told


def test_mypy_is_strict_where_it_counts() -> None:
    import tomllib

    override = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"][0]
    assert {"*.core.*", "*.actions", "*.actions.*", "serving.ports"} <= set(override["module"])
    assert override["disallow_untyped_defs"] and override["disallow_any_generics"] and override["warn_return_any"]


@pytest.mark.parametrize(("room", "most"), [("rollouts", 8), ("validators", 6)])
def test_a_room_reaches_where_releases_run_by_few_names(room: str, most: int) -> None:
    """A ratchet: lower `most` with every name that goes."""
    assert len(names_across(room)) <= most
