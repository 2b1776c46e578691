"""`manage.py migrate`: Django's own, as the role that owns the tables where there is one, which then lets the services work with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.core.management.commands import migrate
from django.db import connections


class Command(migrate.Command):
    def handle(self, *args: Any, **options: Any) -> None:
        owner = settings.DATABASE_OWNER
        if owner is None:
            super().handle(*args, **options)
            return
        with _as(owner, options["database"]) as service:
            super().handle(*args, **options)
            if not options["plan"]:
                grant_rows(options["database"], service)


@contextmanager
def _as(owner: Mapping[str, object], alias: str) -> Iterator[str]:
    """Inside, the connection is one of this role's; yields the name of the services' own."""
    connection = connections[alias]
    usual = dict(connection.settings_dict)
    connection.close()
    connection.settings_dict.update({key: owner[key] for key in ("NAME", "USER", "PASSWORD", "HOST", "PORT")})
    try:
        yield str(usual["USER"])
    finally:
        connection.close()
        connection.settings_dict.update(usual)


def grant_rows(alias: str, role: str) -> None:
    """Rows of every table of this schema, and no more: neither TRUNCATE nor triggers."""
    name = connections[alias].ops.quote_name(role)
    with connections[alias].cursor() as cursor:
        cursor.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {name}")
        cursor.execute(f"GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO {name}")
