"""A database of its own with the rows of an older state, to be migrated forwards and back."""

from __future__ import annotations

import gzip
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.db import connection
from django.db.migrations.executor import MigrationExecutor

DUMP = Path(__file__).with_name("demo.sql.gz")
#: By table: its rows as JSON texts, sorted. An object's members are sorted too, so that the order of columns does not matter.
Rows = dict[str, list[str]]
_COPY = re.compile(r"COPY public\.(\w+) \(.*\) FROM stdin;")
#: Written by Django itself while it migrates.
_OF_DJANGO = {"django_migrations", "django_content_type", "auth_permission"}
_FOREIGN_KEYS = """
SELECT c.conrelid::regclass::text, a.attname, c.confrelid::regclass::text, b.attname
FROM pg_constraint c
JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = c.conkey[1]
JOIN pg_attribute b ON b.attrelid = c.confrelid AND b.attnum = c.confkey[1]
WHERE c.contype = 'f' ORDER BY 1, 2
"""
_PRIMARY_KEY = """
SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indisprimary AND i.indrelid = %s::regclass
"""


@contextmanager
def database_of_its_own(template: str = "template0") -> Iterator[None]:
    """Inside, the default connection is one to a new database, a copy of `template`; it is dropped afterwards."""
    usual = connection.settings_dict["NAME"]
    name = f"old_database_{uuid.uuid4().hex}"
    connection.close()  # nobody may be connected to what is copied
    with connection._nodb_cursor() as server:  # as Django's own tests make theirs
        server.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    try:
        connection.settings_dict["NAME"] = name
        yield
    finally:
        connection.close()
        connection.settings_dict["NAME"] = usual
        with connection._nodb_cursor() as server:
            server.execute(f"DROP DATABASE {name} WITH (FORCE)")


def load(dump: Path = DUMP) -> None:
    """The dump's rows, into empty tables of its state. Triggers are off meanwhile; check constraints are not."""
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        for statement, rows in _statements(dump):
            if rows is None:
                cursor.execute(statement)
            else:
                with cursor.copy(statement) as copy:  # type: ignore[attr-defined]
                    copy.write(rows)
        cursor.execute("SET session_replication_role = DEFAULT")


def _statements(dump: Path) -> Iterator[tuple[str, str | None]]:
    """(a COPY, its rows), and (the setting of a sequence, None). The rest of what pg_dump writes is not needed here."""
    lines = iter(gzip.decompress(dump.read_bytes()).decode().splitlines(keepends=True))
    for line in lines:
        if _COPY.match(line):
            yield line, "".join(iter(lambda: next(lines), "\\.\n"))
        elif line.startswith("SELECT pg_catalog.setval("):
            yield line, None


def migrate_to_old_state() -> None:
    """The tables as the squashed migrations leave them, recorded under the names of those that they replace."""
    executor = MigrationExecutor(connection)
    every = executor.loader.replacements
    squashed = {
        key: migration for key, migration in every.items() if key[1].startswith("0001_")
    }  # later ones are newer
    apps = {app for app, _ in squashed}
    leaves = [leaf for leaf in executor.loader.graph.leaf_nodes() if leaf[0] not in apps]
    nodes = executor.loader.graph.nodes
    others = [leaf if type(nodes[leaf]).__module__.startswith("django.") else (leaf[0], None) for leaf in leaves]
    executor.migrate([*squashed, *others])
    for (app, name), migration in squashed.items():
        executor.recorder.record_unapplied(app, name)
        for replaced in migration.replaces:
            executor.recorder.record_applied(*replaced)


def migrate_to_newest() -> None:
    executor = MigrationExecutor(connection)
    executor.migrate(executor.loader.graph.leaf_nodes())


def read_rows() -> Rows:
    """Every row of every table."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
        tables = [name for (name,) in cursor.fetchall() if name not in _OF_DJANGO]
        rows: Rows = {}
        for table in tables:
            cursor.execute(f'SELECT to_jsonb(t)::text FROM "{table}" t')
            rows[table] = sorted(text for (text,) in cursor.fetchall())
    return rows


def primary_key(table: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(_PRIMARY_KEY, [table])
        (name,) = cursor.fetchone()
    return str(name)


def broken_references() -> list[str]:
    """`table.column` of each foreign key that points at a row which is not there; they were not checked while loading."""
    with connection.cursor() as cursor:
        cursor.execute(_FOREIGN_KEYS)
        found: list[Any] = cursor.fetchall()
        broken = []
        for table, column, to, key in found:
            cursor.execute(
                f'SELECT 1 FROM {table} a WHERE a."{column}" IS NOT NULL'
                f' AND NOT EXISTS (SELECT 1 FROM {to} b WHERE b."{key}" = a."{column}") LIMIT 1'
            )
            broken += [f"{table}.{column}"] if cursor.fetchone() else []
    return broken
