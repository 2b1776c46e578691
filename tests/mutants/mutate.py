"""Every single-operator and constant mutant of one source file, as edits of its text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

Edit = tuple[int, int, str]

OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
#: Names whose assignment says how a class is stored or what a module exports, not what it does.
NO_BEHAVIOUR = {"__slots__", "__all__", "__match_args__"}
#: Keywords that are checks of the caller (`zip(strict=True)`) or say how a class is stored.
NO_BEHAVIOUR_KEYWORDS = {"strict", "kw_only", "repr", "slots", "frozen", "stacklevel"}
TYPE_CHECKS = {"isinstance", "issubclass", "cast", "TypeVar", "NewType"}


@dataclass(frozen=True)
class Mutant:
    """One change of one file. Lines count from 1; `first` to `last` are the lines of the changed expression."""

    path: str
    first: int
    last: int
    before: str
    after: str
    #: The qualified name and first line of the outermost function whose body holds it; None: it acts at import.
    scope: tuple[str, int] | None
    edits: tuple[Edit, ...]

    def applied(self, source: str) -> str:
        """The whole source with this change in it."""
        raw = source.encode()
        for begin, end, text in sorted(self.edits, reverse=True):
            raw = raw[:begin] + text.encode() + raw[end:]
        return raw.decode()

    def __str__(self) -> str:
        return f"{self.path}:{self.first}: {self.before} → {self.after}"


def mutants_of(path: str, source: str) -> list[Mutant]:
    """All mutants in the order of the text; `path` is only carried along."""
    return _Walk(path, source).found()


class _Walk:
    def __init__(self, path: str, source: str) -> None:
        self.path = path
        self.source = source
        self.raw = source.encode()
        self.starts = [0]
        for line in self.raw.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.mutants: list[Mutant] = []

    def found(self) -> list[Mutant]:
        self.visit(ast.parse(self.source), None, "")
        return sorted(self.mutants, key=lambda one: (one.edits, one.first))

    def visit(self, node: ast.AST, scope: tuple[str, int] | None, prefix: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self.visit_function(node, scope, prefix)
        elif isinstance(node, ast.ClassDef):
            for child in node.body:
                self.visit(child, scope, f"{prefix}{node.name}.")
        elif not _is_silent(node):
            for edits in self.edits_of(node):
                self.add(node, edits, scope)
            for child in _children(node):
                self.visit(child, scope, prefix)

    def visit_function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: tuple[str, int] | None, prefix: str
    ) -> None:
        for default in [*node.args.defaults, *(one for one in node.args.kw_defaults if one is not None)]:
            self.visit(default, scope, prefix)
        first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
        own = scope or (f"{prefix}{node.name}", first)
        for child in node.body:
            self.visit(child, own, prefix)

    def add(self, node: ast.AST, edits: list[Edit], scope: tuple[str, int] | None) -> None:
        begin, end = self.span(node)
        changed = sorted(edits)
        first_line = self.raw.rfind(b"\n", 0, changed[0][0]) + 1
        last_line = self.raw.find(b"\n", changed[-1][1])
        last_line = len(self.raw) if last_line < 0 else last_line
        before = self.raw[first_line:last_line]
        after = before
        for start, stop, text in reversed(changed):
            after = after[: start - first_line] + text.encode() + after[stop - first_line :]
        self.mutants.append(
            Mutant(
                self.path,
                self.raw.count(b"\n", 0, begin) + 1,
                self.raw.count(b"\n", 0, end) + 1,
                " ".join(before.decode().split()),
                " ".join(after.decode().split()),
                scope,
                tuple(changed),
            )
        )

    def edits_of(self, node: ast.AST) -> Iterator[list[Edit]]:
        """The changes of this very node; what is inside it is visited by itself."""
        if isinstance(node, ast.Compare):
            for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                yield [self.between(left, operator, right)]
        elif isinstance(node, ast.BinOp):
            if type(node.op) in OPERATORS and not (_is_text(node.left) or _is_text(node.right)):
                yield [self.between(node.left, node.op, node.right)]
        elif isinstance(node, ast.BoolOp):
            yield [self.between(one, node.op, other) for one, other in zip(node.values, node.values[1:], strict=False)]
        elif isinstance(node, ast.AugAssign):
            if type(node.op) in OPERATORS and not _is_text(node.value):
                yield [self.between(node.target, node.op, node.value)]
        elif isinstance(node, ast.UnaryOp):
            yield from self.edits_of_sign(node)
        elif isinstance(node, ast.Constant):
            if (changed := _other_constant(node.value)) is not None:
                yield [(*self.span(node), changed)]
        elif isinstance(node, ast.Return):
            if node.value is not None and not _is_no(node.value):
                yield [(*self.span(node), "return None")]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            yield [(*self.span(node.func), CALLS[node.func.id])]

    def edits_of_sign(self, node: ast.UnaryOp) -> Iterator[list[Edit]]:
        begin, _ = self.span(node)
        if isinstance(node.op, ast.Not):
            yield [(begin, begin + 3, "")] if self.raw[begin + 3 : begin + 4] != b" " else [(begin, begin + 4, "")]
        elif isinstance(node.op, ast.USub):
            yield [(begin, begin + 1, "")]

    def between(self, left: ast.AST, operator: ast.AST, right: ast.AST) -> Edit:
        """The operator's place in the text between its two sides, where brackets and comments may stand too."""
        begin, end = self.span(left)[1], self.span(right)[0]
        gap = re.sub(rb"#[^\n]*", lambda comment: b" " * len(comment[0]), self.raw[begin:end])
        old, new = OPERATORS[type(operator)]
        found = re.search(rb"\s+".join(re.escape(word).encode() for word in old.split()), gap)
        assert found is not None, f"{self.path}: no {old} in {gap!r}"
        return begin + found.start(), begin + found.end(), new

    def span(self, node: ast.AST) -> tuple[int, int]:
        return (
            self.starts[node.lineno - 1] + node.col_offset,  # type: ignore[attr-defined]
            self.starts[node.end_lineno - 1] + node.end_col_offset,  # type: ignore[attr-defined]
        )


def _is_silent(node: ast.AST) -> bool:
    """Assertions narrow types; text, type checks and what says how a class is stored decide nothing."""
    if isinstance(node, ast.Assert | ast.JoinedStr):
        return True
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.Assign):
        return any(isinstance(one, ast.Name) and one.id in NO_BEHAVIOUR for one in node.targets)
    if isinstance(node, ast.keyword):
        return node.arg in NO_BEHAVIOUR_KEYWORDS
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in TYPE_CHECKS


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Without annotations."""
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "type_comment"}:
            continue
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, ast.AST):
                yield one


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _is_no(node: ast.expr) -> bool:
    """None already, or False, which reads the same and has a change of its own."""
    return isinstance(node, ast.Constant) and (node.value is None or node.value is False)


def _other_constant(value: object) -> str | None:
    if isinstance(value, bool):
        return str(not value)
    if isinstance(value, int):
        return str(value + 1)
    if isinstance(value, float):
        return repr(value * 2 if value else 1.0)
    return None
