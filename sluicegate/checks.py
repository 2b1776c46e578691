"""Deployment checks: `manage.py check --deploy` prints them, and the web process does not start unless they pass."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import Error, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connection

from registry.storage.cors import cors_problem

#: Known to everyone who can read the source.
INSECURE_PREFIX = "insecure-"
LEAST_SECRET_CHARACTERS = 32


@register(Tags.security, deploy=True)
def secret_key_is_secret(app_configs: Any = None, **_: Any) -> list[Error]:
    """An error while DEBUG is off and the secret key is the built-in one, or a short one."""
    key = settings.SECRET_KEY
    if settings.DEBUG or (not key.startswith(INSECURE_PREFIX) and len(key) >= LEAST_SECRET_CHARACTERS):
        return []
    return [
        Error(
            "SLUICEGATE_SECRET_KEY is the built-in key or shorter than 32 characters, so anyone can forge sessions.",
            hint="Set SLUICEGATE_SECRET_KEY, or SLUICEGATE_SECRET_KEY_FILE, to at least 32 random characters. "
            "`sluicegate up` makes one by itself.",
            id="sluicegate.E001",
        )
    ]


#: Whether this role could switch off what triggers refuse: by being a superuser, or by being (a member of) the tables' owner.
_COULD_DROP_TRIGGERS = """
SELECT rolsuper, EXISTS (
    SELECT FROM pg_class WHERE relname = 'ledger_event' AND relkind = 'r' AND pg_has_role(current_user, relowner, 'MEMBER')
) FROM pg_roles WHERE rolname = current_user
"""


@register(Tags.security, deploy=True)
def database_role_is_plain(app_configs: Any = None, **_: Any) -> list[Warning]:
    """A warning if the services' role could drop the triggers that protect releases and the log; silent without a database."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(_COULD_DROP_TRIGGERS)
            is_superuser, owns = cursor.fetchone()
    except DatabaseError:
        return []
    if not (is_superuser or owns):
        return []
    what = "a superuser of PostgreSQL" if is_superuser else "the owner of the tables"
    return [
        Warning(
            f"The services log in as {connection.settings_dict['USER']}, {what}: whoever has their password can drop the triggers "
            "that keep releases, reports and the log from being changed.",
            hint="Let another role own the tables: DATABASE_OWNER_URL for `manage.py migrate`, a plain role in DATABASE_URL "
            "(docs/operations.md, “The database's roles”, also how the tables change hands).",
            id="sluicegate.W001",
        )
    ]


@register(Tags.security, deploy=True)
def bucket_lets_pages_in(app_configs: Any = None, **_: Any) -> list[Warning]:
    """A warning for each origin of the pages (`SLUICEGATE_CSRF_TRUSTED_ORIGINS`) from which browsers may not send to the bucket."""
    return [
        Warning(problem, hint="docs/uploads.md, “An S3 bucket”.", id="sluicegate.W002")
        for origin in settings.CSRF_TRUSTED_ORIGINS
        if (problem := cors_problem(origin))
    ]


def refuse_unsafe_start() -> None:
    """Raises ImproperlyConfigured, with what to do, unless the checks above pass."""
    for error in secret_key_is_secret():
        raise ImproperlyConfigured(f"{error.msg} {error.hint}")
