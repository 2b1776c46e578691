"""A PostgreSQL of a benchmark's own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluicegate.stack.postgres import Postgres


@contextmanager
def database(*, is_durable: bool = True, **env: str) -> Iterator[Postgres]:
    """One with every table; Django talks to it, set up with these variables of the environment too.

    Durable as in use: fsync and synchronous_commit on.
    """
    from sluicegate.stack.postgres import Postgres

    folder = Path(tempfile.mkdtemp(prefix="sluicegate-bench-"))
    postgres = Postgres(folder, is_durable=is_durable)
    try:
        postgres.start()
        os.environ.update(
            DATABASE_URL=postgres.owner_url,
            SLUICEGATE_STATE_DIR=str(folder),
            DJANGO_SETTINGS_MODULE="sluicegate.settings",
            **env,
        )
        import django
        from django.core.management import call_command
        from django.db import connection

        django.setup()
        call_command("migrate", verbosity=0)
        try:
            yield postgres
        finally:
            connection.close()
    finally:
        postgres.remove()
        shutil.rmtree(folder, ignore_errors=True)
