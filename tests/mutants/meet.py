"""Mutants meet the tests: in a warm session by exchanging one function's code, or in a fresh one that imports the changed file."""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import importlib.util
import os
import pickle
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple, NoReturn

import pytest

from tests.mutants import children, session, suite
from tests.mutants.mutate import Mutant
from tests.mutants.session import Watched

#: A test that computes longer than this comes after the quicker ones, and all that one mutant meets takes no longer than that.
SLOW_S, MOST_S = 0.5, 5.0
#: What many modules import and none of ours defines: read once, before the first fork.
HEAVY = (
    *(
        "numpy",
        "hypothesis",
        "hypothesis.strategies",
        "yaml",
        "django",
        "django.db.models",
        "django.conf",
        "celery",
        "redis",
        "httpx",
    ),
    *(
        "grpc",
        "google.protobuf.text_format",
        "tritonclient.grpc",
        "cryptography.x509",
        "boto3",
        "rich.console",
        "structlog",
    ),
    *(
        "celery.app.base",
        "celery.app.amqp",
        "celery.app.task",
        "kombu",
        "psycopg",
        "psycopg_pool",
        "django.urls",
        "django.template",
    ),
    *("jsonschema", "onnx", "uuid", "asyncio", "unittest.mock", "rest_framework.status"),
)


class Met(NamedTuple):
    """`status` is killed, late (killed by its time limit) or survived; `by` is the test that noticed."""

    status: str
    by: str


Told = Callable[[int, Met], None]


def meet_all(mutants: Sequence[Mutant], jobs: int, store: session.Store, told: Told) -> None:
    """Let every mutant meet its tests; `told` hears of each by its place in `mutants`, in no order."""
    session.prepare()
    for name in HEAVY:
        with suppress(Exception):
            importlib.import_module(name)
    files = sorted({path for module in {one.path for one in mutants} for path in suite.reaching(module)})
    left = _in_a_child(lambda: _warm(mutants, files, jobs, store), told)
    tests = store.read(files)
    fresh = ((place, mutants[place]) for place in left)
    with closing(children.run((_fresh_job(place, one, tests) for place, one in fresh), jobs)) as all_ended:
        for place, ended in all_ended:
            told(place, _met(ended))


def _in_a_child(work: Callable[[], list[int]], told: Told) -> list[int]:
    """The warm session lives in a process of its own, so that fresh ones start from one that has imported nothing of ours."""
    ours, theirs = os.pipe()
    left: list[int] | None = None
    pid = 0
    try:
        with children.asked_to_end_later():
            pid = os.fork()
            if not pid:
                os.close(ours)
                _work_and_exit(work, theirs)
        os.close(theirs)
        with os.fdopen(ours, "rb") as stream, suppress(EOFError):
            while True:
                kind, value = pickle.load(stream)
                if kind == "left":
                    left = value
                else:
                    told(*value)
    except BaseException:
        if pid:
            os.kill(pid, signal.SIGTERM)  # it ends its own children
        raise
    finally:
        if pid:
            os.waitpid(pid, 0)
    if left is None:
        raise SystemExit("the warm session ended early; what it said is above")
    return left


def _work_and_exit(work: Callable[[], list[int]], theirs: int) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # pytest makes a mere error of a SystemExit
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        with os.fdopen(theirs, "wb") as out:
            _STREAM.append(out)
            left = work()
            pickle.dump(("left", left), out)
        code = 0
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


_STREAM: list[Any] = []


def _warm(mutants: Sequence[Mutant], files: list[str], jobs: int, store: session.Store) -> list[int]:
    """In the child: collect once, watch what is not known yet, then one fork per mutant. Returns who must be met afresh."""
    plugin = _Warm(mutants, files, jobs, store)
    base = tempfile.mkdtemp(prefix="sluicegate-mutants-")
    try:
        with plugin.watch.on():
            status = pytest.main([*session.ARGUMENTS, f"--basetemp={base}/tests", *files], plugins=[plugin])
    finally:
        shutil.rmtree(base, ignore_errors=True)
    if status == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if plugin.left is None:
        raise SystemExit(f"not every mutant was met (pytest ended with {status})")
    return plugin.left


class _Warm:
    def __init__(self, mutants: Sequence[Mutant], files: list[str], jobs: int, store: session.Store) -> None:
        self.mutants, self.files, self.jobs, self.store = mutants, files, jobs, store
        self.watch = session.Watch()
        self.left: list[int] | None = None

    def pytest_configure(self, config: pytest.Config) -> None:
        session.configure(config)
        session.set_up_django()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        sys.settrace(None)
        if session.testsfailed:
            raise pytest.UsageError("a test file could not be collected; see above")
        at_import = {path: set(lines) for path, lines in self.watch.taken().items()}
        self.learn(session.items)
        chosen = Chosen(self.store.read(self.files))
        by_name = {item.nodeid: item for item in session.items}
        functions = _functions({str(suite.ROOT / one.path) for one in self.mutants})
        left, again = list[int](), set[int]()
        warm: list[tuple[int, Mutant]] = []
        for place, one in enumerate(self.mutants):
            if one.scope is None:
                left.append(place)
                continue
            warm.append((place, one))
            if at_import.get(one.path, set()) & set(range(one.first, one.last + 1)):
                again.add(place)
        gc.freeze()  # what a child does not touch is not copied
        waiting = (self.job(place, one, chosen, by_name, functions) for place, one in warm)
        with closing(children.run(waiting, self.jobs)) as all_ended:
            for place, ended in all_ended:
                met = _met(ended)
                if met.status == "survived" and (place in again or met.by):
                    left.append(place)
                else:
                    pickle.dump(("met", (place, met)), _STREAM[0])
                    _STREAM[0].flush()
        self.left = left
        return True

    def learn(self, items: list[pytest.Item]) -> None:
        """Watch the tests of the files that changed, a file at a time."""
        waiting = self.store.missing(self.files)

        def learned(path: str) -> tuple[int, str]:
            children.silence()
            tests = session.watch_items([item for item in items if session.file_of(item.nodeid) == path])
            self.store.write(path, tests)
            return 0, ""

        work = (children.Job(place, lambda path=path: learned(path), 900.0) for place, path in enumerate(waiting))
        with closing(children.run(work, self.jobs)) as all_ended:
            for place, ended in all_ended:
                if not ended.code:
                    continue
                raise SystemExit(f"{waiting[place]} could not be watched: {ended.code} {ended.told}")

    def job(
        self,
        place: int,
        one: Mutant,
        chosen: Chosen,
        items: dict[str, pytest.Item],
        functions: dict[Any, list[FunctionType]],
    ) -> children.Job:
        names = [name for name in chosen.by_lines(one) if name in items]

        def work() -> tuple[int, str]:
            children.silence()
            if not names:
                return 0, ""
            if not _exchange(one, functions):
                return 0, "afresh"
            failed = session.run_items([items[name] for name in names])
            return (1, failed) if failed else (0, "")

        return children.Job(place, work, chosen.limit_s(names))


class Chosen:
    """Which tests a mutant meets, the quick and near ones first."""

    def __init__(self, tests: dict[str, Watched]) -> None:
        self.tests = {name: one for name, one in tests.items() if one.passed}
        self.running: dict[tuple[str, int], list[str]] = {}
        for name, one in self.tests.items():
            for path, lines in one.lines.items():
                for line in lines:
                    self.running.setdefault((path, line), []).append(name)

    def by_lines(self, mutant: Mutant) -> list[str]:
        """The tests that run a line of it."""
        lines = range(mutant.first, mutant.last + 1)
        return self.in_order(mutant, {name for line in lines for name in self.running.get((mutant.path, line), ())})

    def by_module(self, mutant: Mutant) -> list[str]:
        """The tests of files that name the module or run any of it; failing these, all of files that import it somehow."""
        reaching = set(suite.reaching(mutant.path))
        near = {name for name, one in self.tests.items() if mutant.path in one.lines}
        near |= {name for name in self.tests if mutant.path in suite.imported_by(session.file_of(name))}
        return self.in_order(mutant, near or [name for name in self.tests if session.file_of(name) in reaching])

    def in_order(self, mutant: Mutant, names: Any) -> list[str]:
        def order(name: str) -> tuple[bool, bool, float, str]:
            is_near = mutant.path in suite.imported_by(session.file_of(name))
            return self.tests[name].cpu_s > SLOW_S, not is_near, self.tests[name].cpu_s, name

        chosen, total = [], 0.0
        for name in sorted(names, key=order):
            total += self.tests[name].cpu_s
            if total > MOST_S and chosen:
                break
            chosen.append(name)
        return chosen

    def limit_s(self, names: list[str]) -> float:
        return 5 + 3 * sum(self.tests[name].cpu_s for name in names)


def _functions(files: set[str]) -> dict[tuple[str, str, int], list[FunctionType]]:
    """Every living function of these files by file, qualified name and first line."""
    found: dict[tuple[str, str, int], list[FunctionType]] = {}
    for one in gc.get_objects():
        if type(one) is FunctionType and one.__code__.co_filename in files:
            code = one.__code__
            found.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno), []).append(one)
    return found


def _exchange(mutant: Mutant, functions: dict[Any, list[FunctionType]]) -> bool:
    """Put the mutant's code into the living function; False where there is no such function or it holds other variables."""
    assert mutant.scope is not None
    path = suite.ROOT / mutant.path
    changed = compile(mutant.applied(path.read_text()), str(path), "exec", dont_inherit=True)
    living = functions.get((str(path), *mutant.scope), [])
    code = next((one for one in _codes(changed) if (one.co_qualname, one.co_firstlineno) == mutant.scope), None)
    if code is None or not living or any(len(one.__code__.co_freevars) != len(code.co_freevars) for one in living):
        return False
    for one in living:
        one.__code__ = code
    return True


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _fresh_job(place: int, mutant: Mutant, tests: dict[str, Watched]) -> children.Job:
    chosen = Chosen(tests)
    names = chosen.by_module(mutant)

    def work() -> tuple[int, str]:
        children.silence()
        if not names:
            return 0, ""
        changed = _Changed(mutant)
        if changed.name in sys.modules:
            raise RuntimeError(f"{changed.name} was imported before it was changed")
        sys.meta_path.insert(0, changed)
        plugin = _Fresh(names)
        base = tempfile.mkdtemp(prefix="sluicegate-mutants-")
        try:
            files = list(dict.fromkeys(map(session.file_of, names)))
            status = pytest.main([*session.ARGUMENTS, "-x", f"--basetemp={base}/tests", *files], plugins=[plugin])
        finally:
            shutil.rmtree(base, ignore_errors=True)
        return (0, "") if status == pytest.ExitCode.OK else (1, plugin.failed or files[0])

    return children.Job(place, work, chosen.limit_s(names) + 15)


class _Fresh:
    def __init__(self, names: list[str]) -> None:
        self.order = {name: place for place, name in enumerate(names)}
        self.failed = ""

    def pytest_configure(self, config: pytest.Config) -> None:
        session.configure(config)
        if any(map(suite.needs_django, {session.file_of(name) for name in self.order})):
            session.set_up_django()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.order), key=lambda item: self.order[item.nodeid]
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


class _Changed(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    """Imports the one module from its changed source, and nothing else."""

    def __init__(self, mutant: Mutant) -> None:
        path = Path(mutant.path)
        parts = path.parent.parts if path.name == "__init__.py" else path.with_suffix("").parts
        super().__init__(".".join(parts), str(suite.ROOT / path))
        self.source = mutant.applied((suite.ROOT / path).read_text())

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> Any:
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.source, self.path, "exec", dont_inherit=True)


def _met(ended: children.Ended) -> Met:
    if ended.code == children.BROKEN:
        raise SystemExit(f"a child of this tool failed:\n{ended.told}")
    if ended.is_late:
        return Met("late", "")
    return Met("survived" if ended.code == 0 else "killed", ended.told)
