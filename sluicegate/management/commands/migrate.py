"""`manage.py migrate`: Django's own, as the role that owns the tables where there is one, which then lets the services work with them.

Raises CommandError where the tables that are there belong to another role.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError
from django.core.management.commands import migrate
from django.db import connections


class Command(migrate.Command):
    def handle(self, *args: Any, **options: Any) -> None:
        owner = settings.DATABASE_OWNER
        if owner is None:
            super().handle(*args, **options)
            return
        with _as(owner, options["database"]) as service:
            _refuse_tables_of_others(options["database"], str(owner["USER"]))
            super().handle(*args, **options)
            if not options["plan"]:
                grant_rows(options["database"], service)


@contextmanager
def _as(owner: Mapping[str, object], alias: str) -> Iterator[str]:
    """Inside, the connection belongs to this role; yields the name of the services' role."""
    connection = connections[alias]
    usual = dict(connection.settings_dict)
    connection.close()
    connection.settings_dict.update({key: owner[key] for key in ("NAME", "USER", "PASSWORD", "HOST", "PORT")})
    try:
        yield str(usual["USER"])
    finally:
        connection.close()
        connection.settings_dict.update(usual)


#: Who owns tables of ours without letting this role do what they may.
_OTHER_OWNERS = """
SELECT DISTINCT pg_get_userbyid(relowner) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')
AND relname = ANY(%s) AND NOT pg_has_role(current_user, relowner, 'USAGE') ORDER BY 1
"""


def _refuse_tables_of_others(alias: str, owner: str) -> None:
    """Such as those of a database from before there were two roles: only a superuser, or a member of both, may hand them over."""
    connection = connections[alias]
    tables = [*connection.introspection.django_table_names(), "django_migrations"]
    with connection.cursor() as cursor:
        cursor.execute(_OTHER_OWNERS, [tables])
        others = ", ".join(name for (name,) in cursor.fetchall())
    if others:
        raise CommandError(
            f"The tables of this database belong to {others}, not to {owner} of DATABASE_OWNER_URL. Hand them over first: "
            "docs/operations.md, “A database of one role”, has the statements."
        )


def grant_rows(alias: str, role: str) -> None:
    """Rows of every table of this schema, and no more: neither TRUNCATE nor triggers."""
    name = connections[alias].ops.quote_name(role)
    with connections[alias].cursor() as cursor:
        cursor.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {name}")
        cursor.execute(f"GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO {name}")
