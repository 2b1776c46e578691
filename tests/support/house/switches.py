"""Finds code that switches on the name of a value, such as a gate or an indicator."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from tests.support.house.architecture import ROOT, tree_of


def switches(
    tree: ast.AST, names: Collection[str], *, constants: Collection[str] = (), keyword: str = "", package: str = ""
) -> Iterator[ast.expr | ast.stmt]:
    """Returns comparisons with a name, tables and lists of names, and `match` on a name.

    `constants` are identifiers that stand for a name. Also returned: an argument whose keyword begins with `keyword`, and imports
    from the file that one name has in `package`.
    """

    def is_name(node: ast.AST | None) -> bool:
        if isinstance(node, ast.Name):
            return node.id in constants
        return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names

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
        elif isinstance(node, ast.Call):
            found = any(keyword and (one.arg or "").startswith(keyword) and is_name(one.value) for one in node.keywords)
        elif isinstance(node, ast.match_case):
            found = any(isinstance(one, ast.MatchValue) and is_name(one.value) for one in ast.walk(node.pattern))
        elif isinstance(node, ast.ImportFrom):
            found = bool(package) and (node.module or "").removeprefix(f"{package}.") in names
        if found:
            yield node.body[0] if isinstance(node, ast.match_case) else node  # type: ignore[misc]


def found_in(paths: Iterable[Path], names: Collection[str], **how: str | Collection[str]) -> list[str]:
    """One line for each switch in these files."""
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in paths
        for node in switches(tree_of(path), names, **how)  # type: ignore[arg-type]
    ]
