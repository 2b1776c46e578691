"""A PostgreSQL of the kill test's own, and databases that are copied from templates, one for each run."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from django.db import connections

BASE = "kills_base"


@contextmanager
def stores() -> Iterator[Path]:
    """PostgreSQL and Valkey, named by the environment; yields the folder they live in: in memory, where there is some."""
    from sluicegate.stack.postgres import Postgres
    from sluicegate.stack.valkey import Valkey

    memory = Path("/dev/shm")
    is_roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2**30
    folder = Path(tempfile.mkdtemp(prefix="sluicegate-kills-", dir=memory if is_roomy else None))
    postgres, valkey = Postgres(folder, is_durable=False, is_for_tests=True), Valkey(folder)
    (folder / "static").mkdir()
    try:
        postgres.start()
        os.environ.update(
            DATABASE_URL=postgres.owner_url,
            REDIS_URL=valkey.start(),
            SLUICEGATE_STATE_DIR=str(folder),
            SLUICEGATE_BLOB_STORE=str(folder / "blobs"),
            SLUICEGATE_SIGNING_KEY_FILE=str(folder / "secrets" / "signing.pem"),
            SLUICEGATE_WEBHOOKS_ALLOW_PRIVATE="1",
            DJANGO_SETTINGS_MODULE="sluicegate.settings",
        )
        os.environ.pop("DATABASE_URL_FILE", None)
        os.environ.pop("REDIS_URL_FILE", None)
        yield folder
    finally:
        valkey.stop()
        postgres.remove()
        shutil.rmtree(folder, ignore_errors=True)


def use(name: str) -> None:
    """From now on this process's Django talks to this database."""
    connections.close_all()
    connections.settings["default"]["NAME"] = name


def let_go_after(seconds: float) -> None:
    """This process's transactions are ended by the database when they are idle for so long."""
    options = connections.settings["default"]["OPTIONS"]
    options["options"] += f" -c idle_in_transaction_session_timeout={seconds * 1000:.0f}"


def make_base() -> None:
    """The database with every table and no rows, from which templates are made."""
    from django.core.management import call_command

    _admin(f'CREATE DATABASE "{BASE}"')
    use(BASE)
    call_command("migrate", interactive=False, verbosity=0)
    connections.close_all()


def copy(template: str, name: str) -> None:
    """A new database like the template; whoever still uses that one is thrown out. An old one of this name is dropped."""
    drop(name)
    _admin(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{template}'")
    _admin(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY file_copy')


def drop(name: str) -> None:
    """Whoever is connected is thrown out."""
    _admin(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def _admin(statement: str) -> None:
    url = os.environ["DATABASE_URL"].rpartition("/")[0] + "/postgres"
    with psycopg.connect(url, autocommit=True) as session:
        session.execute(statement)
