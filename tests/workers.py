"""How a run is shared among workers: whole files, those that start servers first, and some apart.

A file's tests share servers and a database, so they stay together. What takes a minute, and what waits for servers or
browsers, comes first, then what is marked `slow`, since a short file fills the end better than a long one. A file that
measures time comes last: beside others, on as many processor cores as workers, it would measure them. Those that wait more
than they work may run beside one another (`QUIET`); what takes the whole machine runs when the other workers are gone
(`ALONE`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.assertion import rewrite
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

#: More would need more memory than a small machine has: each has a PostgreSQL, and some tests a whole stack.
MOST_WORKERS = 4
#: Files and folders in the order in which they are begun; what is not named comes after. Files that take minutes of a core are
#: first, and between them such as wait: beside one another the former would only share the cores.
FIRST = (
    "tests/flows/test_main_job.py",
    "tests/kills/test_kills.py",
    "tests/real/test_agent.py",
    "tests/flows/test_upload_kills.py",
    "tests/real/test_prober.py",
    "tests/flows/test_stack.py",
    "tests/flows/test_browser_story.py",
    "tests/pages/test_every_page.py",
    "tests/api/test_route_roles.py",
    "tests/pages/test_access_of_pages.py",
    "tests/real",
    "tests/flows",
    "tests/kills",
    "tests/contracts",
    "tests/migrations",
    "tests/pages",
)
#: Files that measure, and leave most of a core to others: they begin when all else is done, but for each worker's last test; the
#: longest first.
QUIET = {
    "tests/real/test_candidates_under_load.py": "asks servers at steady rates, and is late where it does not run",
    "tests/real/test_gates.py": "measures how many requests a server takes",
    "tests/real/test_gpu_gate.py": "asks servers at a steady rate, and is late where it does not run",
    "tests/real/test_candidates_in_use.py": "asks servers at a steady rate, and is late where it does not run",
    "tests/real/test_bound.py": "counts what is in flight at a steady rate",
}
#: Files that compare rates and short times with what the machine can do, and what any other beside them would spoil.
ALONE = {
    "tests/real/test_overload.py": "measures a server's capacity, and what is left of it under three times the load",
}


def is_worker(config: pytest.Config) -> bool:
    """Whether this process runs a share of the tests for another one."""
    return hasattr(config, "workerinput")


def is_shared(config: pytest.Config) -> bool:
    """Whether this process runs no test itself, but has workers for that."""
    return not is_worker(config) and bool(config.getoption("numprocesses", None))


def how_many(*, wait_for_servers: bool = True) -> int:
    """One more than there are processor cores for this process, where servers are mostly waited for. None at all, where there
    is one core or stores were named: two runs on the same Redis would take each other's messages."""
    cores = len(os.sched_getaffinity(0))
    named = {"DATABASE_URL", "DATABASE_URL_FILE", "REDIS_URL", "REDIS_URL_FILE"} & set(os.environ)
    return 0 if cores == 1 or named else min(cores + wait_for_servers, MOST_WORKERS)


def rewrite_assertions(config: pytest.Config) -> None:
    """Writes the bytecode of this worker's share of the test files, with their assertions rewritten.

    Collecting imports every file, and a new tree has no bytecode: each worker would rewrite each file. pytest finds what is
    written here in the place where it would write it itself.
    """
    number, count = share(config)
    if sys.dont_write_bytecode:
        return
    for file in sorted(Path(__file__).parent.rglob("*.py"))[number::count]:
        folder = rewrite.get_cache_dir(file)
        folder.mkdir(parents=True, exist_ok=True)
        pyc = folder / (file.name.removesuffix(".py") + rewrite.PYC_TAIL)
        if rewrite._read_pyc(file, pyc) is None:
            source_hash, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source_hash, pyc)


def share(config: pytest.Config) -> tuple[int, int]:
    """The number of this worker, from 0, and the count of workers."""
    name, count = config.workerinput["workerid"], config.workerinput["workercount"]  # type: ignore[attr-defined]
    return int(name.removeprefix("gw")) % count, count  # a worker that replaces a dead one has a higher number


def begins_at(path: str) -> int:
    """The rank of a file, given by its path from the project's folder, in the order in which files are begun."""
    ranks = [number for number, name in enumerate(FIRST) if path == name or path.startswith(f"{name}/")]
    if path in QUIET:
        return len(FIRST) + 1 + list(QUIET).index(path)
    if path in ALONE:
        return len(FIRST) + 1 + len(QUIET)
    return ranks[0] if ranks else len(FIRST)


def ports(config: pytest.Config, whole: range) -> range:
    """This worker's own part of a range: a port that one has chosen, or left for an instant, no other may take."""
    if not is_worker(config):
        return whole
    number, count = share(config)
    size = len(whole) // count
    begin = whole.start + number * size
    return range(begin, begin + size)


class Files(LoadScopeScheduling):
    """Whole files to each worker: first those that no table names, then those of `QUIET`, then those of `ALONE`, one by one.

    A worker begins a test only when it knows the one after it, or that there is none. So who waits for others has one test left.
    """

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0]

    def _assign_work_unit(self, node: WorkerController) -> None:
        if self._may_begin(node):
            super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if not self.workqueue or self._may_begin(node):
            super()._reschedule(node)
        elif self._next() in ALONE and node is not self._last() and not node.shutting_down:
            node.shutdown()

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        super().mark_test_complete(node, item_index, duration)
        if not self.workqueue or self._next() in QUIET or self._next() in ALONE:
            for other in self.nodes:
                if other is not node:
                    self._reschedule(other)  # it may be waiting for this one

    def _next(self) -> str:
        return next(iter(self.workqueue))

    def _may_begin(self, node: WorkerController) -> bool:
        """Whether the next file of the queue may be given to this worker now. One of `QUIET` is given to nobody before its last test."""
        if self._next() in ALONE:
            others = [work for other, work in self.assigned_work.items() if other is not node]
            return node is self._last() and not any(map(self._pending_of, others))
        if self._next() in QUIET:
            loud = (
                {path: tests for path, tests in work.items() if path not in QUIET}
                for work in self.assigned_work.values()
            )
            own = self._pending_of(self.assigned_work[node])
            return own <= 1 and all(self._pending_of(work) <= 1 for work in loud)
        return True

    def _last(self) -> WorkerController | None:
        """The worker that takes the files that run alone."""
        return next((node for node in self.nodes if not node.shutting_down), None)


def scheduler(config: pytest.Config, log: Any) -> Files:
    """For xdist's hook `pytest_xdist_make_scheduler`."""
    config.option.loadscopereorder = False  # the order is that of the collection
    return Files(config, log)
