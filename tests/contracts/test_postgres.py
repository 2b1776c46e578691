"""Our own PostgreSQL: what the stack relies on."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from sluicegate.stack.postgres import Postgres
from tests.support.rigs.other_user import STRANGER
from tests.support.rigs.postgres_rig import first_started, keep_data, state_folder

pytestmark = pytest.mark.root_too  # root runs servers in other ways


@pytest.fixture
def state_dir() -> Iterator[Path]:
    with state_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def first_data() -> Iterator[Path]:
    with state_folder() as folder:
        server = Postgres(folder)
        try:
            server.start()
            server.stop()
            keep_data(server, folder / "kept")
        finally:
            server.remove()
        yield folder / "kept"


@pytest.fixture
def new_postgres(state_dir: Path) -> Iterator[Postgres]:
    """One that never started."""
    server = Postgres(state_dir)
    yield server
    server.remove()


@pytest.fixture
def postgres(state_dir: Path, first_data: Path) -> Iterator[Postgres]:
    """One that has started before."""
    server = first_started(state_dir, first_data)
    yield server
    server.remove()


@pytest.mark.needs_root
@pytest.mark.parametrize("is_link", [False, True])
def test_a_place_for_the_data_that_somebody_else_made_is_refused(state_dir: Path, is_link: bool) -> None:
    state_dir.chmod(0o700)
    within = (
        state_dir / "state"
    )  # `nobody` cannot pass to it, so the data goes beside it, to a name that anybody can work out
    server = Postgres(within)
    home = server.home
    assert within not in home.parents and home.parent == Path(tempfile.gettempdir()).resolve()
    theirs = state_dir / "theirs"
    theirs.mkdir()
    os.chown(theirs, STRANGER, STRANGER)
    theirs.rename(home) if not is_link else home.symlink_to(theirs)
    try:
        with pytest.raises(RuntimeError, match=f"{home} is not a folder of this user. Remove it, or choose another"):
            server.start()
        assert list(home.iterdir()) == [] and not (within / "postgres" / "location").exists()
    finally:
        home.unlink() if is_link else home.rmdir()
    try:
        server.start()
        assert server.home == home and stat.S_IMODE(home.stat().st_mode) == 0o711
    finally:
        server.remove()


def test_it_answers_keeps_its_data_and_its_port(new_postgres: Postgres) -> None:
    postgres = new_postgres
    url = postgres.start()
    with psycopg.connect(postgres.owner_url) as connection:
        connection.execute("create table kept (n int)")
        connection.execute("insert into kept values (7)")
    assert postgres.start() == url  # idempotent
    postgres.stop()
    assert not postgres.is_ready()
    assert postgres.start() == url
    with psycopg.connect(postgres.owner_url) as connection:
        assert connection.execute("select n from kept").fetchone() == (7,)
        assert connection.execute("select collation for (current_database())").fetchone() is not None


def test_what_was_committed_survives_a_kill(postgres: Postgres) -> None:
    url = postgres.start()
    with psycopg.connect(postgres.owner_url) as connection:
        connection.execute("create table kept (n int)")
        connection.execute("insert into kept values (8)")
    assert postgres.process is not None
    postgres.process.kill()
    postgres.process.wait()
    assert postgres.start() == url
    with psycopg.connect(postgres.owner_url) as connection:
        assert connection.execute("select n from kept").fetchone() == (8,)
        # the seconds of a recovery are those of its fsync calls, one for each file, unless it syncs the file system
        assert connection.execute("show recovery_init_sync_method").fetchone() == ("syncfs",)


def test_only_this_machine_with_the_password_gets_in(postgres: Postgres, state_dir: Path) -> None:
    url = postgres.start()
    password = (state_dir / "secrets" / "postgres").read_text().strip()
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(url.replace(password, "guess"))
    with psycopg.connect(url) as connection:
        assert connection.execute("show listen_addresses").fetchone() == ("127.0.0.1",)
    assert not Path(f"/tmp/.s.PGSQL.{postgres.port}").exists()
    assert stat.S_IMODE((state_dir / "secrets" / "postgres").stat().st_mode) == 0o600
    assert stat.S_IMODE((state_dir / "secrets").stat().st_mode) == 0o700


@pytest.mark.needs_root
def test_root_runs_it_as_nobody_and_keeps_the_data_where_nobody_can_reach_it(state_dir: Path) -> None:
    state_dir.chmod(0o700)
    inside = state_dir / "state"
    postgres = Postgres(inside)
    try:
        postgres.start()
        assert postgres.process is not None
        assert Path(f"/proc/{postgres.process.pid}").stat().st_uid == 65534
        elsewhere = postgres.home
        assert inside not in elsewhere.parents
        assert (inside / "postgres" / "location").read_text().strip() == str(elsewhere)
        assert Postgres(inside).home == elsewhere
    finally:
        postgres.remove()
    assert not elsewhere.exists()


def test_data_of_another_major_version_is_refused(postgres: Postgres) -> None:
    postgres.start()
    postgres.stop()
    (postgres.home / "data" / "PG_VERSION").write_text("15\n")
    with pytest.raises(RuntimeError, match=r"written by PostgreSQL 15, but this installation has \d+"):
        postgres.start()


def test_a_taken_port_is_chosen_anew(postgres: Postgres) -> None:
    url = postgres.start()
    postgres.stop()
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # old connections may linger in TIME_WAIT
        thief.bind(("127.0.0.1", postgres.port))
        thief.listen(1)
        assert postgres.start() != url


def test_a_first_start_that_was_cut_short_is_done_again(new_postgres: Postgres) -> None:
    half = new_postgres.home / "data.new"
    half.mkdir(parents=True)
    (half / "base").mkdir()
    url = new_postgres.start()
    with psycopg.connect(url) as connection:
        assert connection.execute("select current_database()").fetchone() == ("sluicegate",)


#: Takes lock 2 and waits for lock 1.
_WAITS = """
import sys, psycopg
with psycopg.connect(sys.argv[1], autocommit=True) as session:
    session.execute("SELECT pg_advisory_lock(2)")
    session.execute("SELECT pg_advisory_lock(1)")
"""
_IS_WAITED_FOR = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 1 AND NOT granted"


def test_a_killed_process_that_waited_for_a_lock_keeps_no_other_lock(postgres: Postgres) -> None:
    postgres.start()
    with (
        psycopg.connect(postgres.url, autocommit=True) as session,
        psycopg.connect(postgres.url, autocommit=True) as another,
    ):
        session.execute("SELECT pg_advisory_lock(1)")
        with subprocess.Popen([sys.executable, "-c", _WAITS, postgres.url]) as killed:
            until = time.monotonic() + 60
            while session.execute(_IS_WAITED_FOR).fetchone() != (1,) and time.monotonic() < until:
                time.sleep(0.05)
            killed.kill()
        another.execute("SET lock_timeout = '60s'")
        another.execute("SELECT pg_advisory_lock(2)")  # while lock 1 is held still
        held = "SELECT objid, granted FROM pg_locks WHERE locktype = 'advisory' ORDER BY objid"
        assert session.execute(held).fetchall() == [(1, True), (2, True)]
