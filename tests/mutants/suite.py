"""Which tests reach which module, and the digests that say whether a former result still holds."""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("notifications", "rollouts", "validators", "serving", "registry", "accounts", "ledger")
#: Tests of pure functions: no database, no server.
TEST_FOLDERS = ("tests/core", "tests/histories")
OURS = {*ROOMS, "sluicegate", "web", "tests", "benchmarks", "examples"}


def modules() -> list[str]:
    """Every file of a `core` that has code in it, as paths below the root."""
    found = sorted(path for room in ROOMS for path in (ROOT / room).rglob("core/**/*.py"))
    return [str(path.relative_to(ROOT)) for path in found if path.stat().st_size]


def test_files() -> list[str]:
    found = sorted(path for folder in TEST_FOLDERS for path in (ROOT / folder).glob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in found]


@cache
def imported_by(path: str) -> frozenset[str]:
    """Our own files that this file names in an import, wherever in it; packages' own files on the way are included."""
    named: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            named |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    files = set()
    for name in named:
        parts = name.split(".")
        if parts[0] in OURS:
            files |= {found for end in range(1, len(parts) + 1) if (found := _file_of(tuple(parts[:end])))}
    return frozenset(files - {path})


@cache
def _file_of(parts: tuple[str, ...]) -> str | None:
    for path in (Path(*parts, "__init__.py"), Path(*parts).with_suffix(".py")):
        if (ROOT / path).is_file():
            return str(path)
    return None


@cache
def reached_by(path: str) -> frozenset[str]:
    """The file itself and everything of ours that it imports, directly or not."""
    reached, waiting = {path}, [path]
    while waiting:
        new = imported_by(waiting.pop()) - reached
        reached |= new
        waiting += new
    return frozenset(reached)


def reaching(module: str) -> list[str]:
    """The test files that import the module, those that name it first."""
    found = [path for path in test_files() if module in reached_by(path)]
    return sorted(found, key=lambda path: (module not in imported_by(path), path))


def needs_django(path: str) -> bool:
    """Does importing this test file define database models?"""
    return any(one.endswith("models.py") or "/models/" in one for one in reached_by(path))


@cache
def digest(path: str) -> str:
    """Of a file and everything that it reaches: what a test's result can depend on, data files aside."""
    hashed = hashlib.sha256()
    for one in sorted(reached_by(path)):
        hashed.update(one.encode() + b"\0" + (ROOT / one).read_bytes() + b"\0")
    return hashed.hexdigest()[:24]


@cache
def digest_of_tests(module: str) -> str:
    """Of all test files that reach the module, and of how they are chosen."""
    return hashlib.sha256("".join([digest_of_tool(), *map(digest, reaching(module))]).encode()).hexdigest()[:24]


@cache
def digest_of_tool() -> str:
    """Of what watches and chooses tests: its limits decide what a former result is worth."""
    sources = (Path(__file__).with_name(name).read_bytes() for name in ("meet.py", "session.py"))
    return hashlib.sha256(b"\0".join(sources)).hexdigest()[:8]
