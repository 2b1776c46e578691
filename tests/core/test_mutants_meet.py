"""How a mutant is put in place of the product's code, and how the children that run tests end."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest

from tests.mutants import children, meet, suite
from tests.mutants.meet import Chosen, Met
from tests.mutants.mutate import Mutant, mutants_of
from tests.mutants.session import Watched

pytestmark = pytest.mark.slow  # processes of its own

SOURCE = """
LIMIT = 3

class Budget:
    @property
    def is_spent(self):
        return super().__init__() is not None or LIMIT > 3

@staticmethod
def many(n):
    return [one for one in range(n) if one < 2]
"""


@pytest.fixture
def living(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(suite, "ROOT", tmp_path)
    (tmp_path / "budget.py").write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("budget", tmp_path / "budget.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mutant(after: str) -> Mutant:
    return next(one for one in mutants_of("budget.py", SOURCE) if one.after == after)


def exchanged(after: str, root: Path) -> bool:
    return meet._exchange(mutant(after), meet._functions({str(root / "budget.py")}))


def test_the_living_function_gets_the_mutants_code(living: ModuleType, tmp_path: Path) -> None:
    assert (living.Budget().is_spent, living.many(5)) == (False, [0, 1])
    assert exchanged("return super().__init__() is not None or LIMIT >= 3", tmp_path)
    assert exchanged("return [one for one in range(n) if one <= 2]", tmp_path)
    assert (living.Budget().is_spent, living.many(5)) == (True, [0, 1, 2])


def test_a_function_that_does_not_live_is_left_for_a_fresh_session(living: ModuleType, tmp_path: Path) -> None:
    del living.many
    assert not exchanged("return [one for one in range(n) if one < 3]", tmp_path)
    assert exchanged("return super().__init__() is None or LIMIT > 3", tmp_path)


def test_a_fresh_session_imports_the_changed_file(living: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [meet._Changed(mutant("LIMIT = 4")), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "budget", raising=False)
    import budget

    monkeypatch.delitem(sys.modules, "budget")
    assert (budget.LIMIT, budget.Budget().is_spent) == (4, True)


def spin() -> tuple[int, str]:
    while True:
        pass


def test_children_end_and_are_ended() -> None:
    work = {0: lambda: (0, ""), 1: lambda: (1, "tests/core/test_a.py::test_b"), 2: lambda: 1 / 0, 3: spin}
    limits_s = {3: 0.1}  # whoever ends by itself may take its time on a busy machine
    jobs = (children.Job(name, one, limits_s.get(name, 60.0)) for name, one in work.items())
    begun = time.monotonic()
    ended = dict(children.run(jobs, 2))
    assert time.monotonic() - begun < 60
    assert {name: ended[name].code for name in (0, 1, 2)} == {0: 0, 1: 1, 2: children.BROKEN}
    assert meet._met(ended[0]) == Met("survived", "")
    assert meet._met(ended[1]) == Met("killed", "tests/core/test_a.py::test_b")
    assert meet._met(ended[3]) == Met("late", "")
    with pytest.raises(SystemExit, match="division by zero"):
        meet._met(ended[2])


ENDLESS = """
import os, signal, sys, time
from tests.mutants import __main__, children, meet

def spin():
    print(os.getpid(), os.getppid(), flush=True)
    while True:
        time.sleep(60)

def work():
    return [name for name, _ in children.run(iter([children.Job(0, spin, 600.0)]), 1)]

__main__.end_children_too()
meet._in_a_child(work, print)
"""


def test_a_run_that_is_asked_to_end_leaves_no_process_behind() -> None:
    with subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, text=True, cwd=suite.ROOT) as run:
        assert run.stdout is not None
        spinning, warm = map(int, run.stdout.readline().split())
        try:
            run.send_signal(signal.SIGTERM)
            assert run.wait(60) == 128 + signal.SIGTERM
            for pid in (warm, spinning):
                with pytest.raises(ProcessLookupError):
                    os.kill(pid, 0)
        finally:
            for pid in (run.pid, warm, spinning):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def test_quick_tests_that_run_the_line_come_first_and_failing_ones_never() -> None:
    place = mutant("return [one for one in range(n) if one <= 2]")
    assert place.first == 11
    tests = {
        "slow": Watched(1.5, True, {"budget.py": [11]}),
        "quick": Watched(0.2, True, {"budget.py": [11]}),
        "quickest": Watched(0.1, True, {"budget.py": [10, 11]}),
        "elsewhere": Watched(0.1, True, {"budget.py": [7]}),
        "fails": Watched(0.1, False, {"budget.py": [11]}),
        "endless": Watched(100.0, True, {"budget.py": [11]}),
    }
    nodes = {f"tests/core/test_mutants.py::{name}": one for name, one in tests.items()}
    chosen = Chosen(nodes).by_lines(place)
    assert [name.partition("::")[2] for name in chosen] == ["quickest", "quick", "slow"]
    assert Chosen(nodes).limit_s(chosen) == pytest.approx(5 + 3 * 1.8)
