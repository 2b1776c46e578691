"""The roles of our own PostgreSQL: who owns the tables, who works with their rows, and nobody who may do everything.

| role | may | who has its password |
|---|---|---|
| superuser, from initdb | everything; it cannot log in, only `postgres --single` on a stopped server is it | nobody, it has none |
| `sluicegate_owner` | make, change and drop tables and triggers | migrations |
| `sluicegate_service` | select, insert, update and delete rows | every service |

So what triggers refuse stays refused to whoever has got a service's password: it takes the tables' owner to drop a trigger, and a
superuser to switch triggers off, to read files or to run programs. `manage.py migrate` grants the service its rights on tables.
"""

from __future__ import annotations

OWNER, SERVICE = "sluicegate_owner", "sluicegate_service"
#: PostgreSQL's settings for a log without what statements carry: no statement beside an error, and neither its DETAIL nor its CONTEXT.
#: Source: tried with refused inserts, client-side and server-side bound; either alone leaves the values in (docs/operations.md).
QUIET_LOG = {"log_min_error_statement": "panic", "log_error_verbosity": "terse"}

_PLAIN = "NOSUPERUSER NOCREATEROLE NOREPLICATION NOBYPASSRLS NOINHERIT LOGIN"
#: Tables take along the sequences that belong to their columns; those that are left belong to none.
_ADOPT = """
DO $$ DECLARE one record; BEGIN
FOR one IN SELECT oid::regclass AS name FROM pg_class WHERE relnamespace = 'public'::regnamespace
AND relkind IN ('r', 'p', 'v', 'm', 'f') AND relowner <> '{owner}'::regrole
LOOP EXECUTE format('ALTER TABLE %s OWNER TO {owner}', one.name); END LOOP;
FOR one IN SELECT oid::regclass AS name FROM pg_class WHERE relnamespace = 'public'::regnamespace
AND relkind = 'S' AND relowner <> '{owner}'::regrole
LOOP EXECUTE format('ALTER SEQUENCE %s OWNER TO {owner}', one.name); END LOOP;
FOR one IN SELECT oid::regprocedure AS name FROM pg_proc WHERE pronamespace = 'public'::regnamespace
AND proowner <> '{owner}'::regrole
LOOP EXECUTE format('ALTER ROUTINE %s OWNER TO {owner}', one.name); END LOOP;
END $$
"""


def statements(*, database: str, owner_password: str, service_password: str, is_for_tests: bool) -> str:
    """What `postgres --single` is to run in `database` before each start, one statement a line.

    Run again it changes nothing, but for a password that a service has changed: any role may change its own. A cluster of an older
    version, where the services were the superuser, becomes one like this; its tables change hands, its rows stay.
    """
    lines = [
        *(
            f"DO $$ BEGIN IF to_regrole('{role}') IS NULL THEN CREATE ROLE {role}; END IF; END $$"
            for role in (OWNER, SERVICE)
        ),
        f"ALTER ROLE {OWNER} {_PLAIN} {'CREATEDB' if is_for_tests else 'NOCREATEDB'} PASSWORD {_quoted(owner_password)}",
        f"ALTER ROLE {SERVICE} {_PLAIN} NOCREATEDB PASSWORD {_quoted(service_password)}",
        "ALTER ROLE CURRENT_USER NOLOGIN PASSWORD NULL",
        f"ALTER DATABASE {database} OWNER TO {OWNER}",
        f"REVOKE ALL ON DATABASE {database} FROM PUBLIC",
        f"GRANT CONNECT ON DATABASE {database} TO {SERVICE}",
        "REVOKE ALL ON DATABASE postgres, template1 FROM PUBLIC",
        f"ALTER SCHEMA public OWNER TO {OWNER}",
        "REVOKE ALL ON SCHEMA public FROM PUBLIC",
        f"GRANT USAGE ON SCHEMA public TO {SERVICE}",
        " ".join(_ADOPT.format(owner=OWNER).split()),
    ]
    if is_for_tests:  # they make databases, and empty tables between two tests in spite of the triggers
        lines += [
            f"GRANT CONNECT ON DATABASE postgres TO {OWNER}",
            f"GRANT SET ON PARAMETER session_replication_role TO {OWNER}",
        ]
    return "".join(f"{line}\n" for line in lines)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
