"""The house plan as counts, which are all 0.

`python -m tests.support.house.architecture` prints one line for each check, and exits 1 if a count is not 0.
Each check is a function without arguments that returns what is wrong, one line each. They read the sources' syntax trees and run
nothing of them but pure tables. `tests/test_architecture.py` asserts that each list is empty.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import cache
from itertools import product
from pathlib import Path

from ledger.core import lifecycle as jobs
from ledger.core.verbs import EventVerb
from notifications.core import delivery
from registry.core import blob_lifecycle as blobs
from registry.core import lifecycle as releases
from registry.core import uploads
from rollouts.core import lifecycle as rollouts
from rollouts.core.decision import Code
from serving.environments.core import lifecycle as replicas
from serving.environments.core import sleep_lifecycle as sleeps
from tests.support.house.naming import duplicate_classes, modules_without_floor, retired_words
from validators.core import lifecycle as gate_runs

ROOT = Path(__file__).resolve().parents[3]
ROOMS = [
    "sluicegate",
    "web",
    "notifications",
    "audit",
    "insights",
    "rollouts",
    "validators",
    "serving",
    "registry",
    "accounts",
    "ledger",
]
#: Rooms that are Django apps with floors of their own; `web` has pages alone, `sluicegate` no models.
APPS = [room for room in ROOMS if room not in {"sluicegate", "web"}]
#: Those that write the log; the others only show it, or name verbs in their help.
_WRITERS = ["notifications", "audit", "insights", "rollouts", "validators", "serving", "registry", "accounts", "ledger"]
_FIGURES = {f"insights/{one}.py" for one in ("api/targets", "queries/database_figures", "queries/traffic_figures")}
#: Every table of moves, by the word that `takes` of a test names it with, and the app whose actions take them.
LIFECYCLES: dict[str, tuple[Mapping[StrEnum, frozenset[StrEnum]], str]] = {
    "rollout": (rollouts.MOVES, "rollouts"),  # type: ignore[dict-item]
    "gate run": (gate_runs.MOVES, "validators"),  # type: ignore[dict-item]
    "deployment": (replicas.MOVES, "serving"),  # type: ignore[dict-item]
    "sleep": (sleeps.MOVES, "serving"),  # type: ignore[dict-item]
    "release": (releases.MOVES, "registry"),  # type: ignore[dict-item]
    "upload": (uploads.MOVES, "registry"),  # type: ignore[dict-item]
    "blob": (blobs.MOVES, "registry"),  # type: ignore[dict-item]
    "job": (jobs.MOVES, "ledger"),  # type: ignore[dict-item]
    "delivery": (delivery.MOVES, "notifications"),  # type: ignore[dict-item]
}
REASON_CODES = ROOT / "docs" / "rollouts.md"


def sources(*rooms: str) -> list[Path]:
    """Every Python file of these rooms (of all without any), without migrations."""
    found = (path for room in rooms or ROOMS for path in (ROOT / room).rglob("*.py"))
    return sorted(path for path in found if "migrations" not in path.relative_to(ROOT).parts)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


# --- events -----------------------------------------------------------------------------------------------------------


def event_verbs_never_emitted() -> list[str]:
    """Verbs that no app writes: neither as a literal nor as a member of the enum, other than to look for them.

    It sees that a verb is named where it can be written, not that the line is reached; arrows have a check of their own.
    """
    named: set[str] = set()
    for path in sources(*_WRITERS):
        if path.parts[-2:] == ("core", "verbs.py"):
            continue
        for node in _outside_of_looks(tree_of(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named.add(node.value)
            elif _is_member_of(node, {EventVerb.__name__}):
                named.add(EventVerb[node.attr].value)
    return [verb.value for verb in EventVerb if verb.value not in named]


# --- lifecycles -------------------------------------------------------------------------------------------------------


def arrows() -> set[str]:
    """`rollout: baking → promoted`, for every arrow of every table."""
    return {
        f"{name}: {was.value} → {to.value}"
        for name, (moves, _) in LIFECYCLES.items()
        for was, targets in moves.items()
        for to in targets
    }


def drawings_that_differ() -> list[str]:
    """Arrows that the drawing in a lifecycle's docstring lacks, or has too many. What is in parentheses there is a comment."""
    found = []
    for name, (moves, _) in LIFECYCLES.items():
        module = sys.modules[type(next(iter(moves))).__module__]
        drawn = {f"{name}: {was} → {to}" for line in (module.__doc__ or "").splitlines() for was, to in _drawn(line)}
        real = {arrow for arrow in arrows() if arrow.startswith(f"{name}: ")}
        found += [f"{arrow}: not drawn" for arrow in sorted(real - drawn)]
        found += [f"{arrow}: drawn only" for arrow in sorted(drawn - real)]
    return found


def _drawn(line: str) -> Iterator[tuple[str, str]]:
    parts = re.split(r"\s*(→|⇄)\s*", re.sub(r"\([^)]*\)", "", line).strip())
    groups = [[state.strip() for state in part.split("|")] for part in parts[::2]]
    for sign, left, right in zip(parts[1::2], groups, groups[1:], strict=False):
        for was, to in product(left, right):
            yield was, to
            if sign == "⇄":
                yield to, was


def arrows_never_taken() -> list[str]:
    """Arrows that no test takes through the product's own code, or into a state that no function of the app names.

    A test says with `@pytest.mark.takes("rollout: baking → promoted")` which arrows it takes, and `tests/support/house/arrows.py` fails it
    unless an UPDATE from within an app took them. So what holds is: some entry to the product takes the arrow from a state that
    the test brought about. It cannot see whether users can bring that state about; where a test puts a row there by hand, the
    arrows that lead to it have tests of their own.
    """
    claimed = set(_claimed())
    untested = [f"{one}: no test takes it" for one in sorted(arrows() - claimed)]
    unknown = [f"{one}: a test takes it, and no table has it" for one in sorted(claimed - arrows())]
    return untested + unknown + _states_never_entered()


def _claimed() -> Iterator[str]:
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if "mark.takes(" not in path.read_text():
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and _called(node) == "takes":
                yield from (
                    one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)
                )


def _states_never_entered() -> list[str]:
    found = []
    for name, (moves, app) in LIFECYCLES.items():
        entered = set().union(*moves.values())
        enum = type(next(iter(moves)))
        named = {
            node.attr
            for path in sources(app)
            for function in _functions(tree_of(path))
            for node in _outside_of_looks(function)
            if _is_member_of(node, _names_of(enum, tree_of(path)))
        }
        found += [
            f"{name}: nothing moves to {state.value}" for state in enum if state in entered and state.name not in named
        ]
    return found


def _names_of(enum: type[StrEnum], tree: ast.Module) -> set[str]:
    """The enum's name, and its one-letter names in this module (`S = RolloutState`)."""
    short = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id == enum.__name__
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return {enum.__name__, *short}


# --- reason codes -----------------------------------------------------------------------------------------------------


def unknown_reason_codes() -> list[str]:
    """Codes of decisions that the table of docs/rollouts.md lacks, codes there that no decision can have, and codes never given."""
    _, _, section = REASON_CODES.read_text().partition("\n## Reason codes\n")
    cells = re.findall(r"^\| (`.*?) \|", section.partition("\n## ")[0], re.M)
    told = {code for cell in cells for code in re.findall(r"`(\w+)`", cell)}
    known = {code.value for code in Code}
    given = {
        node.attr
        for path in sources("rollouts")
        for function in _functions(tree_of(path))
        for node in _outside_of_looks(function)
        if _is_member_of(node, {Code.__name__})
    }
    return [
        *(f"{code}: not in {REASON_CODES.name}" for code in sorted(known - told)),
        *(f"{code}: in {REASON_CODES.name} only" for code in sorted(told - known)),
        *(f"{code.value}: never given" for code in Code if code.name not in given),
    ]


# --- rooms -------------------------------------------------------------------------------------------------------------


def uses_of_another_rooms_rows() -> list[str]:
    """Lines that ask or write another room's table by its model: reads go through that room's queries, writes through its actions.

    It sees `Model.objects` of an imported model. Rows that a relation leads to (`release.files`) are not looked for.
    The exported figures may: they count rows of every room, and change none.
    """
    found = []
    for path in sources():
        tree, room = tree_of(path), path.relative_to(ROOT).parts[0]
        if path.relative_to(ROOT).as_posix() in _FIGURES:
            continue
        others = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").endswith(".models")
            if (owner := (node.module or "").split(".")[0]) in ROOMS and owner != room
            for alias in node.names
        }
        found += [
            f"{path.relative_to(ROOT)}:{node.lineno} {node.value.id}.{node.attr}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and node.attr in {"objects", "_default_manager"}
            if isinstance(node.value, ast.Name) and node.value.id in others
        ]
    return found


# --- trees ------------------------------------------------------------------------------------------------------------


def _functions(tree: ast.AST) -> Iterator[ast.AST]:
    """Functions and methods; one within another is part of that one."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        elif not isinstance(node, ast.expr):
            yield from _functions(node)


def _outside_of_looks(node: ast.AST) -> Iterator[ast.AST]:
    """The node and what is below it, without what only asks: comparisons, sets, keys of dicts and filters of rows."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Compare | ast.Set):
            continue
        is_filter = isinstance(child, ast.Call) and _called(child) in {"filter", "exclude", "Q"}
        if is_filter or (isinstance(node, ast.Dict) and child in node.keys):
            continue
        yield from _outside_of_looks(child)


def _called(call: ast.Call) -> str:
    """The last word of what is called: `filter` of `Rollout.objects.filter(…)`."""
    return (
        call.func.attr
        if isinstance(call.func, ast.Attribute)
        else call.func.id
        if isinstance(call.func, ast.Name)
        else ""
    )


def _is_member_of(node: ast.AST, enums: set[str]) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in enums


#: What is printed → the check.
def _trees() -> dict[Path, ast.Module]:
    return {path: tree_of(path) for path in sources()}


CHECKS: dict[str, Callable[[], list[str]]] = {
    "modules outside the layer contract": lambda: modules_without_floor(APPS),
    "event verbs never emitted": event_verbs_never_emitted,
    "arrows never taken": arrows_never_taken,
    "arrows drawn otherwise": drawings_that_differ,
    "unknown reason codes": unknown_reason_codes,
    "uses of another room's rows": uses_of_another_rooms_rows,
    "duplicate class names in one app": lambda: duplicate_classes(_trees()),
    "retired words in names": lambda: retired_words(_trees()),
}


def main() -> int:
    """The exit code; prints each check with its count, and what is wrong."""
    is_right = True
    for name, check in CHECKS.items():
        wrong = check()
        is_right = is_right and not wrong
        print(name, len(wrong), *(f"\n    {one}" for one in wrong), sep=" ")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
