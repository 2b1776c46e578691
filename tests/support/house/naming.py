"""Counts about names and places, for `tests.support.house.architecture`: retired words, classes with one name, modules without a floor."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PROJECT = ROOT / "pyproject.toml"
#: Words of our own that the field has a word for, with that word. Banned in the names of modules, classes and functions.
RETIRED = {
    "book": "cache, tallies",
    "carry": "engine state",
    "cast": "actors",
    "crowd": "load generator",
    "deafness": "source unavailable",
    "door": "endpoint, view, middleware",
    "doubt": "inconclusive",
    "fitting": "node fit",
    "glance": "poll",
    "held": "locked, received, stored",
    "keeper": "shim, supervisor",
    "letter": "outbound message",
    "patience": "timeout",
    "said": "message, printed",
    "tender": "reconciler",
    "told": "the noun itself",
    "unseal": "decrypt",
    "validation": "gate run",
    "wanted": "requested, desired",
    "keep_house": "housekeeping",
    "let_go": "release, drain",
    "put_off": "defer",
    "take_back": "roll back",
    "taken_back": "reverted",
    "way_back": "undo window",
}
#: Names in which a retired word means what everybody means by it.
ALLOWED = {"is_wanted", "_carry_out"}
#: Django's and the framework's own: every app has one.
_IN_EVERY_APP = {"Meta", "Command"}


def names_of(path: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, name) of the module, its classes and its functions, methods included."""
    yield 0, path.stem
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name


def snake(name: str) -> str:
    """`LetterBox` as `letter_box`, so that words are parted by `_` alone."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_")


def retired_in(name: str) -> list[str]:
    """The retired words in a name, their plurals included."""
    if name in ALLOWED:
        return []
    return [word for word in RETIRED if re.search(rf"(?:^|_){word}s?(?:_|$)", snake(name))]


def retired_words(trees: dict[Path, ast.Module]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line} {name} (say {RETIRED[word]})"
        for path, tree in trees.items()
        for line, name in names_of(path, tree)
        for word in retired_in(name)
    ]


def duplicate_classes(trees: dict[Path, ast.Module]) -> list[str]:
    """Classes of one app that have the same name."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path, tree in trees.items():
        name = path.relative_to(ROOT)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name not in _IN_EVERY_APP:
                found[name.parts[0], node.name].append(f"{name}:{node.lineno}")
    return [f"{name}: {', '.join(where)}" for (_, name), where in found.items() if len(where) > 1]


def modules_without_floor(apps: list[str]) -> list[str]:
    """Direct children of an app that the layer contract does not name. Import-linter's `exhaustive` says so too, of its containers."""
    contracts = tomllib.loads(PROJECT.read_text())["tool"]["importlinter"]["contracts"]
    exhaustive = [one for one in contracts if one.get("exhaustive")]
    inside = {app for one in exhaustive for app in one["containers"]}
    found = [app for app in apps if app not in inside]
    for contract in exhaustive:
        floors = set(re.findall(r"\w+", " ".join(contract["layers"]))) | set(contract["exhaustive_ignores"])
        for app in contract["containers"]:
            folder = ROOT.joinpath(*app.split("."))
            children = {path.stem for path in folder.glob("*.py")} | {
                path.parent.name for path in folder.glob("*/__init__.py")
            }
            found += [f"{app}.{child}" for child in sorted(children - floors - {"__init__"})]
    return found
