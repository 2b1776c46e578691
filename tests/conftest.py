"""The stores that a test run needs, the rules of the run, and its last line: what was left out."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import workers
from tests.support.house.capabilities import Shown, claims_of
from tests.support.rigs.parts import absent, is_needed

#: Tables whose rows are those of the code.
WRITTEN_BY_MIGRATE = {"auth_permission", "django_content_type"}
#: Tests whose tables are emptied row by row, to one after which their files are made anew.
TRUNCATED_EVERY = 40
NOT_ROOT = "it needs root"
_STOP: list[Callable[[], None]] = []


@pytest.hookimpl(tryfirst=True)  # before pytest-django reads the settings
def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(LeftOut())
    if not workers.is_worker(config):
        config.pluginmanager.register(Shown())
    if workers.is_shared(config):
        return  # the workers do all this, each for itself; what was set here would be set in theirs too early
    if workers.is_worker(config):
        workers.rewrite_assertions(config)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sluicegate.settings")
    if not config.option.collectonly:
        state = Path(tempfile.mkdtemp(prefix="sluicegate-tests-"))
        _STOP.append(lambda: shutil.rmtree(state, ignore_errors=True))
        os.environ["SLUICEGATE_STATE_DIR"] = str(state)
        (state / "static").mkdir()  # WhiteNoise warns of a missing folder, and warnings are errors
        _take_ports(config)
        _start_stores(state)
    import django.conf

    django.setup()  # pytest-django does it itself only where the environment is complete before any conftest runs
    django.conf.settings.PASSWORD_HASHERS = ["tests.support.worlds.hashing.OnceHashed"]
    # files as they are written, under plain names; tests/pages/test_static_files.py collects them once as the web process does
    django.conf.settings.STORAGES["staticfiles"]["BACKEND"] = "django.contrib.staticfiles.storage.StaticFilesStorage"
    django.conf.settings.WHITENOISE_USE_FINDERS = True
    _give_one_look()
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request would bury why a test failed
    gc.disable()  # until the tests are collected


def _give_one_look() -> None:
    """Presets convict at the first crossing here, so that a test of another subject ends there. Tests of the second look state it."""
    from rollouts.core.presets import PRESETS

    for preset in PRESETS.values():
        preset["second_look"] = {**preset["second_look"], "looks": 1}


def _take_ports(config: pytest.Config) -> None:
    """This process and those that it starts choose ports that no other worker chooses."""
    from serving.targets.agent import server_ports
    from sluicegate.stack import tcp_ports

    mine = workers.ports(config, tcp_ports.CHOICES)
    tcp_ports.CHOICES = server_ports.CHOICES = mine
    os.environ["SLUICEGATE_PORTS"] = f"{mine.start}-{mine.stop - 1}"


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return workers.how_many(wait_for_servers=config.option.numprocesses == "auto")  # else it is "logical"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> workers.Files:
    return workers.scheduler(config, log)


def _start_stores(state: Path) -> None:
    """A PostgreSQL and a Valkey of this run's own (of each worker's, where there are some), unless the environment names others."""
    if "DATABASE_URL" not in os.environ and "DATABASE_URL_FILE" not in os.environ:
        from sluicegate.stack.postgres import Postgres

        postgres = Postgres(state, is_durable=False, is_for_tests=True)
        _STOP.append(postgres.remove)
        postgres.start()
        os.environ["DATABASE_URL"] = postgres.owner_url  # tests make databases and empty tables
    if "REDIS_URL" not in os.environ and "REDIS_URL_FILE" not in os.environ:
        from sluicegate.stack.valkey import Valkey

        valkey = Valkey(state)
        _STOP.append(valkey.stop)
        os.environ["REDIS_URL"] = valkey.start()


@pytest.hookimpl(trylast=True)  # after the last fixture has ended
def pytest_sessionfinish() -> None:
    """Not later: a worker that has told that it is done is soon killed."""
    while _STOP:
        _STOP.pop()()


def pytest_unconfigure() -> None:
    pytest_sessionfinish()  # where there was no session


@pytest.hookimpl(trylast=True)  # after others have put the tests in an order of theirs
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    core = Path(__file__).parent / "core"
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (workers.begins_at(item.nodeid.partition("::")[0]), item.path not in slow))
    for item in items:
        if claims := claims_of(item):
            item.user_properties.append(("shows", claims))
        if core in item.path.parents and _uses_database(item):
            raise pytest.UsageError(
                f"{item.nodeid} asks for the database, but tests/core is for pure functions; move it."
            )


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What collecting made, over a million objects, lives to the end: looked through at every full collection of garbage,
    such as the one after each browser test, it would take most of the time of those."""
    gc.collect()
    gc.freeze()
    gc.enable()


def _uses_database(item: pytest.Item) -> bool:
    asked = {"db", "transactional_db", "client", "admin_client", "live_server"} & set(getattr(item, "fixturenames", ()))
    return bool(asked) or item.get_closest_marker("django_db") is not None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("needs_root") and os.geteuid() != 0:
        pytest.skip(NOT_ROOT)
    for mark in item.iter_markers("real"):
        for part in mark.args:
            if how := absent(part):
                if is_needed(part):
                    pytest.fail(f"{part} is not here, and SLUICEGATE_TESTS_NEED names it ({how})")
                pytest.skip(f"{part} is not here ({how})")


class LeftOut:
    """Names at the end of the run what was left out and why, whichever worker left it out."""

    def __init__(self) -> None:
        self._tests: dict[str, set[str]] = defaultdict(set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            self._tests[report.longrepr[2].removeprefix("Skipped: ")].add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self._tests:
            return
        not_run = self._tests.pop(NOT_ROOT, set())
        if not_run:
            terminalreporter.section("not run: these need root")
            terminalreporter.line(f"{len(not_run)} tests. Run them as root: make test ARGS='-m needs_root'")
            for name in sorted(not_run):
                terminalreporter.line(f"    {name}")
        if self._tests:
            terminalreporter.section("left out")
        for why, tests in sorted(self._tests.items()):
            terminalreporter.line(f"{len(tests)} because {why}:")
            for name in sorted({test.partition("[")[0] for test in tests}):
                terminalreporter.line(f"    {name}")


@pytest.fixture(autouse=True)
def _own_folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests with a database get a blob store and a signing key of their own."""
    if not _uses_database(request.node):
        return
    settings = request.getfixturevalue("settings")
    folder = tmp_path_factory.mktemp("state")
    settings.BLOB_STORE = str(folder / "blobs")
    settings.SIGNING_KEY_FILE = str(folder / "secrets" / "signing.pem")
    settings.RELEASE_KEY_FILE = str(folder / "secrets" / "release-signing.pem")
    settings.FORMER_KEYS_FILE = str(folder / "secrets" / "former-keys.pem")


@pytest.fixture(autouse=True)
def _arrows(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that says which arrows of lifecycles it takes has taken them (`takes`, see tests/support/house/architecture.py)."""
    claimed = {arrow for mark in request.node.iter_markers("takes") for arrow in mark.args}
    if not claimed:
        yield
        return
    from tests.support.house.architecture import arrows
    from tests.support.house.arrows import recorded

    with recorded() as seen:
        yield
    assert sorted(claimed - seen) == [], f"not taken; these were: {sorted(seen)}"
    assert {one for one in seen if len(set(one.partition(": ")[2].split(" → "))) > 1} <= arrows()


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings: None) -> None:
    """Between tests with real transactions Django empties every table, which the log's triggers rightly refuse.

    So emptying, and nothing else, runs with triggers off; the test run's own role may do that, a service's may not. Rows are
    deleted: to truncate makes every table's files anew, a hundred times slower where tables hold a few rows; now and then it is
    done, since nothing else takes deleted rows out of the files. What Django wrote when it migrated is left, and so needs not be
    written again.
    """
    from django.core.management.commands import flush
    from django.db import connection
    from django.db.backends.postgresql.operations import DatabaseOperations

    def sql_flush(self: Any, style: Any, tables: Any, **options: Any) -> list[str]:
        ours = [self.quote_name(one) for one in tables if one not in WRITTEN_BY_MIGRATE]
        is_due = next(flushes) % TRUNCATED_EVERY == 0
        emptied = [f"TRUNCATE {', '.join(ours)}"] if is_due else [f"DELETE FROM {one}" for one in ours]
        role = "SET session_replication_role = "
        return ["; ".join([f"{role}replica", *emptied, f"{role}DEFAULT"])]

    DatabaseOperations.sql_flush = sql_flush  # type: ignore[method-assign]
    flushes = itertools.count(1)
    flush.emit_post_migrate_signal = lambda *args, **options: None  # type: ignore[attr-defined]
    assert connection.vendor == "postgresql"


@pytest.fixture
def api() -> Callable[..., Any]:
    """`api(user)`: a REST client that is signed in as the user; `api()` is nobody."""
    from rest_framework.test import APIClient

    from accounts.actions import actor_for, issue_token

    def client(user: Any = None) -> Any:
        made = APIClient()
        if user is not None:
            made.credentials(HTTP_AUTHORIZATION=f"Bearer {issue_token(user=user, name='test', actor=actor_for(user))}")
        return made

    return client


@pytest.fixture
def run_jobs() -> Callable[[], int]:
    """`run_jobs()` runs every waiting job that is due, here and now; how many it ran. Celery is left out."""
    from django.db.models.functions import Now

    from ledger.core.lifecycle import JobState
    from ledger.models import Job
    from ledger.tasks import run_job

    def run() -> int:
        ran = 0
        waiting = Job.objects.filter(state=JobState.QUEUED, attempts=0, due_at__lte=Now())
        while job := waiting.order_by("created_at").first():
            run_job(str(job.pk))
            ran += 1
        return ran

    return run
