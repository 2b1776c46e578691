"""How a run is shared: who gets which file, what waits for the others' end, and whose ports are whose."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from tests import workers
from tests.workers import ALONE, QUIET, Files, begins_at, ports

LONE = "tests/real/test_overload.py"


class Node:
    """A worker as the scheduler sees it; `given` has the tests that it was sent."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.shutting_down = False
        self.gateway = Mock()

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def started(tests: list[str], count: int = 2) -> tuple[Files, list[Any]]:
    config = Mock()
    config.option.loadscopereorder = False
    config.getvalue.return_value = config.option.tx = ["popen"] * count
    files, nodes = Files(config, Mock()), [Node() for _ in range(count)]
    for node in nodes:
        files.add_node(node)  # type: ignore[arg-type]
    for node in nodes:
        files.add_node_collection(node, tests)  # type: ignore[arg-type]
    files.schedule()
    return files, nodes


def done(files: Files, node: Any, test: int) -> None:
    files.mark_test_complete(node, test)


def test_a_file_stays_with_one_worker() -> None:
    tests = [f"tests/core/test_{file}.py::test_{n}" for file in "abcd" for n in range(3)]
    files, nodes = started(tests)
    assert nodes[0].given == [0, 1, 2] and nodes[1].given == [3, 4, 5]
    done(files, nodes[1], 3)
    assert nodes[1].given[3:] == [6, 7, 8] and nodes[0].given == [0, 1, 2]


def test_a_file_that_measures_waits_until_the_others_are_done() -> None:
    tests = ["tests/core/test_a.py::test_1", "tests/core/test_b.py::test_1", f"{LONE}::test_1", f"{LONE}::test_2"]
    files, (last, other) = started(tests)
    assert last.given == [0] and other.given == [1] and other.shutting_down and not last.shutting_down
    done(files, last, 0)
    assert last.given == [0] and not files.tests_finished  # the other one still works
    done(files, other, 1)
    assert last.given == [0, 2, 3] and not last.shutting_down
    done(files, last, 2)
    done(files, last, 3)
    assert files.tests_finished and other.given == [1]


def test_files_that_measure_follow_one_another_on_one_worker() -> None:
    lone = [f"{file}::test_{n}" for file in ALONE for n in range(2)]
    files, (last, other) = started(lone)
    assert other.given == [] and other.shutting_down
    for test in range(len(lone)):
        assert test in last.given
        done(files, last, test)
    assert last.given == list(range(len(lone))) and files.tests_finished


def test_files_that_wait_begin_beside_one_another_when_all_else_is_done() -> None:
    quiet = list(QUIET)
    loud = ["tests/core/test_a.py", "tests/core/test_b.py"]
    tests = [f"{file}::test_{n}" for file in (*loud, *quiet[:2], LONE) for n in range(2)]
    files, (one, two) = started(tests)
    assert (one.given, two.given) == ([0, 1], [2, 3])
    done(files, one, 0)
    assert one.given == [0, 1] and not one.shutting_down  # the other one has more than its last test to do
    done(files, two, 2)
    assert sorted(one.given[2:] + two.given[2:]) == [4, 5, 6, 7]
    mine = {test: node for node in (one, two) for test in node.given}
    for test in (1, 3, 4, 6):
        done(files, mine[test], test)
    assert two.shutting_down and not one.shutting_down and 8 not in mine
    done(files, two, max(two.given))
    assert 8 not in one.given[:-2]
    assert one.given[-2:] == [8, 9], "what runs alone begins when the others are gone"
    for test in one.given[-3:]:
        done(files, one, test)
    assert files.tests_finished


def test_a_quiet_file_waits_though_its_worker_has_nothing_else() -> None:
    quiet = next(iter(QUIET))
    files, (one, two) = started([*(f"tests/core/test_a.py::test_{n}" for n in range(3)), f"{quiet}::test_1"])
    assert two.given == [] and not two.shutting_down
    done(files, one, 0)
    assert two.given == []
    done(files, one, 1)
    assert one.given == [0, 1, 2, 3] and two.shutting_down, "a worker for which nothing is left ends"
    done(files, one, 2)
    assert one.shutting_down


def test_a_quiet_file_is_for_whoever_comes_to_its_last_test_first() -> None:
    files_of = zip(list(QUIET)[:3], (4, 2, 1), strict=True)
    files, (one, two) = started([f"{file}::test_{n}" for file, count in files_of for n in range(count)])
    for test in (0, 1):
        done(files, one, test)
    assert (one.given, two.given) == ([0, 1, 2, 3], [4, 5]), "nobody has it in advance, behind a test of a minute"
    done(files, two, 4)
    assert two.given == [4, 5, 6]


def test_servers_begin_first_and_what_measures_ends_the_run() -> None:
    paths = ["tests/core/test_a.py", LONE, "tests/real/test_agent.py", "tests/api/test_b.py", "tests/flows/test_c.py"]
    assert sorted(paths, key=begins_at) == [paths[2], paths[4], paths[0], paths[3], LONE]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_no_two_workers_choose_a_port_of_each_other(count: int) -> None:
    whole = range(20_000, 32_000)

    def of(number: int) -> range:
        return ports(Mock(workerinput={"workerid": f"gw{number}", "workercount": count}), whole)

    parts = [of(number) for number in range(count)]
    assert sum(map(len, parts)) == len(set().union(*map(set, parts))) and set().union(*map(set, parts)) <= set(whole)
    assert of(count) == parts[0]  # in the place of a dead one
    assert ports(Mock(spec=[]), whole) == whole


def test_stores_that_were_named_are_for_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "DATABASE_URL_FILE", "REDIS_URL", "REDIS_URL_FILE"):
        monkeypatch.delenv(name, raising=False)
    for cores, count in ((1, 0), (2, 3), (3, 4), (64, 4)):
        monkeypatch.setattr(workers.os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        assert workers.how_many() == count
        assert workers.how_many(wait_for_servers=False) == min(count, cores)
    monkeypatch.setenv("REDIS_URL", "redis://elsewhere")
    assert workers.how_many() == 0


def test_every_file_that_is_named_is_there() -> None:
    from tests.support.rigs.parts import ROOT

    assert [file for file in (*ALONE, *QUIET, *workers.FIRST) if not (ROOT / file).exists()] == []
