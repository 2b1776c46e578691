"""The test session that mutants meet: pytest with fixed hypothesis examples, Django without a database, and what each test runs."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import pytest

from tests.mutants import suite

#: Without the project's conftest, which starts stores, and without plugins. Asserts stay as they are: only "failed" is asked.
ARGUMENTS = [
    *(
        "-c",
        os.devnull,
        f"--rootdir={suite.ROOT}",
        "--noconftest",
        "--import-mode=importlib",
        "--assert=plain",
        "--tb=native",
    ),
    *("-q", "-s", "-W", "error", "-p", "no:cacheprovider", "-m", "not slow", "-o", "tmp_path_retention_policy=none"),
]
#: A test that computes longer while it is watched (watching makes it two to ten times slower) is ended, and meets no mutant.
MOST_WATCHED_S = 8.0
#: When the tests of one file have been watched for so long, its others are left alone: simulations with many parameters.
MOST_WATCHED_OF_A_FILE_S = 40.0
FUNCTION_FLAG = 0x2  # CO_NEWLOCALS: a function's body, not a module's or a class's
NOWHERE = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "REDIS_URL": "redis://127.0.0.1:1/0"}


class Watched(NamedTuple):
    """One test, alone: the seconds that it computed while it was watched, whether it passed, and the lines of cores that it ran."""

    cpu_s: float
    passed: bool
    lines: dict[str, list[int]]


def prepare() -> None:
    """The environment of every session: no store is contacted, and nothing is drawn at random."""
    os.environ.update(NOWHERE)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sluicegate.settings")
    for library in ("OPENBLAS", "OMP", "MKL"):
        os.environ[f"{library}_NUM_THREADS"] = "1"
    sys.dont_write_bytecode = True


def configure(config: pytest.Config) -> None:
    """The project's own marks, and fixed examples."""
    project = tomllib.loads((suite.ROOT / "pyproject.toml").read_text())
    for line in project["tool"]["pytest"]["ini_options"]["markers"]:
        config.addinivalue_line("markers", line)
    fix_hypothesis()


def fix_hypothesis() -> None:
    """The same examples each time; a failure is a failure, however large."""
    from hypothesis import HealthCheck, Phase, settings

    settings.register_profile(
        "mutants",
        max_examples=50,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("mutants")


def set_up_django() -> None:
    import django

    django.setup()


class Watch:
    """Notes the lines of core functions that run while it is on."""

    def __init__(self) -> None:
        root = f"{suite.ROOT}/"
        self.paths = {f"{root}{path}": path for path in suite.modules()}
        self.lines: dict[str, set[int]] = {}
        self.is_of_core: dict[CodeType, set[int] | None] = {}

    @contextmanager
    def on(self) -> Iterator[None]:
        former = sys.gettrace()
        sys.settrace(self.called)
        try:
            yield
        finally:
            sys.settrace(former)

    def taken(self) -> dict[str, list[int]]:
        """What was noted since it was last asked."""
        lines = {path: sorted(noted) for path, noted in self.lines.items() if noted}
        self.lines.clear()
        self.is_of_core.clear()
        return lines

    def called(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        if code not in self.is_of_core:
            path = self.paths.get(code.co_filename) if code.co_flags & FUNCTION_FLAG else None
            self.is_of_core[code] = None if path is None else self.lines.setdefault(path, set())
        noted = self.is_of_core[code]
        if noted is None:
            return None
        noted.add(frame.f_lineno)
        seen = noted

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            seen.add(frame.f_lineno)
            return line

        return line


def run_items(items: list[pytest.Item]) -> str:
    """Run in order until one fails; its name, or nothing."""
    for item, following in zip_longest(items, items[1:]):
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        except BaseException:  # SystemExit and the like end a session: the test has noticed
            return item.nodeid
        if item.session.testsfailed:
            return item.nodeid
    return ""


class TooSlow(BaseException):
    """Ends a watched test; no `except Exception` of the product stops it."""


class _Limit:
    """Ends what a test does, but not its report, when it has computed for long enough."""

    def __init__(self) -> None:
        signal.signal(signal.SIGVTALRM, self.late)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        signal.setitimer(signal.ITIMER_VIRTUAL, MOST_WATCHED_S, 0.5)  # again, should something have caught the first
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def late(self, signum: int, frame: FrameType | None) -> None:
        raise TooSlow


def watch_items(items: list[pytest.Item]) -> dict[str, Watched]:
    """Run all, each watched, and none for longer than it is worth; what was ended counts as not passed."""
    watch = Watch()
    found: dict[str, Watched] = {}
    if items:
        items[0].config.pluginmanager.register(_Limit())
    for item, following in zip_longest(items, items[1:]):
        begun, failed = time.process_time(), item.session.testsfailed
        if sum(one.cpu_s for one in found.values()) > MOST_WATCHED_OF_A_FILE_S:
            break
        with watch.on():
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        passed = item.session.testsfailed == failed
        found[item.nodeid] = Watched(round(time.process_time() - begun, 4), passed, watch.taken())
    return found


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


class Store:
    """What each test file's tests run, kept by the digest of all that the file depends on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tests"
        self.folder.mkdir(parents=True, exist_ok=True)

    def place(self, path: str) -> Path:
        return self.folder / f"{Path(path).stem}-{suite.digest(path)}-{suite.digest_of_tool()}.json"

    def read(self, paths: Iterable[str]) -> dict[str, Watched]:
        found = {}
        for path in paths:
            if self.place(path).is_file():
                found |= {name: Watched(*one) for name, one in json.loads(self.place(path).read_text()).items()}
        return found

    def missing(self, paths: Iterable[str]) -> list[str]:
        return [path for path in paths if not self.place(path).is_file()]

    def write(self, path: str, tests: dict[str, Watched]) -> None:
        write(self.place(path), json.dumps(tests))


def write(path: Path, text: str) -> None:
    """Whole or not at all: several runs may share the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text)
    part.replace(path)
