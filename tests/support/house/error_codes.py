"""Every stable code that the product's own source raises or answers with, found in its syntax trees."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from ledger.core import errors
from tests.support.house.architecture import ROOT, sources, tree_of

#: What REST framework answers with by itself, and what `sluicegate/api.py` says of exceptions that are not ours.
OF_FRAMEWORKS = {
    "authentication_failed", "bad_request", "conflict", "error", "internal", "locked", "method_not_allowed", "not_acceptable",
    "not_authenticated", "not_found", "parse_error", "permission_denied", "throttled", "unsupported_media_type",
}  # fmt: skip
#: Functions that take the code of the refusal that they raise or answer with, first.
_TAKERS = {"refuse", "_refuse", "_unavailable", "problem"}
#: Programs of their own, with families of their own.
_ELSEWHERE = {"sluicegate/demo", "sluicegate/cli", "notifications/adapters", "sluicegate/stack"}
_CODE = re.compile(r"[a-z][a-z0-9_]{2,}\Z")


@cache
def raised_codes() -> dict[str, frozenset[int]]:
    """The HTTP statuses by code; none where only the code could be read."""
    family = _family()
    found: dict[str, set[int]] = {}
    for path in sources():
        if any(str(path.relative_to(ROOT)).startswith(one) for one in _ELSEWHERE):
            continue
        for node in ast.walk(tree_of(path)):
            for code, status in _said(node, family):
                if _CODE.match(code):
                    found.setdefault(code, set()).update({status} - {0})
    return {code: frozenset(statuses) for code, statuses in found.items()}


def _said(node: ast.AST, family: dict[str, int]) -> Iterator[tuple[str, int]]:
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if node.args and (name in family or name in _TAKERS):
            yield from ((text, family.get(name, 0)) for text in _texts(node.args[0]))
        for word in node.keywords:
            if word.arg == "problem_code" or (
                word.arg == "code" and name in {"AuthenticationFailed", "ValidationError"}
            ):
                yield from ((text, 0) for text in _texts(word.value))
    elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id in {"problem_code"} for target in targets):
            yield from ((text, 0) for text in _texts(node.value))
        is_chosen = isinstance(node.value, ast.IfExp)
        if is_chosen and any(isinstance(target, ast.Name) and target.id == "code" for target in targets):
            yield from ((text, 0) for text in _texts(node.value))


def _texts(node: ast.expr) -> list[str]:
    """The literal texts that an expression may be."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    return [*_texts(node.body), *_texts(node.orelse)] if isinstance(node, ast.IfExp) else []


def _family() -> dict[str, int]:
    """The status by name of every error class, those of other rooms that build on them included."""
    found = {
        name: one.status
        for name, one in vars(errors).items()
        if isinstance(one, type) and issubclass(one, errors.DomainError)
    }
    classes = [node for path in sources() for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef)]
    for _ in range(3):  # as deep as they build on each other
        for node in classes:
            for base in node.bases:
                if isinstance(base, ast.Name) and base.id in found:
                    found.setdefault(node.name, _status_in(node) or found[base.id])
    return found


def _status_in(node: ast.ClassDef) -> int | None:
    for line in node.body:
        is_set = isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "status"
        if is_set and isinstance(line.value, ast.Constant) and isinstance(line.value.value, int):  # type: ignore[attr-defined]
            return line.value.value  # type: ignore[attr-defined]
    return None
