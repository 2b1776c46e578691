"""The text of database triggers that refuse a change, for migrations to run."""

from __future__ import annotations

import re

#: Class 23 is "integrity constraint violation": Django raises IntegrityError for it.
INTEGRITY_ERROR = "23000"
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]*")


def refuse_change(
    table: str, *, when: str = "", operations: tuple[str, ...] = ("UPDATE", "DELETE"), message: str
) -> tuple[str, str]:
    """SQL that makes PostgreSQL refuse the operations on a table, and SQL that takes it back: `RunSQL(*refuse_change(…))`.

    `when` is a condition on OLD and NEW for the row operations (UPDATE, DELETE, INSERT); none means every row.
    TRUNCATE has no rows, so it is always refused where it is named. `message` says what is wrong and what to do instead.
    Raises ValueError for a table that is not a plain lower-case name, or for an unknown operation.
    """
    if not _IDENTIFIER.fullmatch(table):
        raise ValueError(f"{table!r} is not a plain table name")
    unknown = set(operations) - {"INSERT", "UPDATE", "DELETE", "TRUNCATE"}
    if unknown or not operations:
        raise ValueError(f"operations must be some of INSERT, UPDATE, DELETE, TRUNCATE, not {sorted(unknown)}")
    name = f"{table}_refuses_{'_'.join(op.lower() for op in operations)}"
    text = message.replace("'", "''").replace("%", "%%")
    condition = f" WHEN ({when})" if when else ""
    rows = [op for op in operations if op != "TRUNCATE"]
    make = [
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$\n"
        f"BEGIN\n    RAISE EXCEPTION '{text}' USING ERRCODE = '{INTEGRITY_ERROR}';\nEND $$;"
    ]
    undo = [f"DROP FUNCTION {name}();"]
    if rows:
        make.append(
            f"CREATE TRIGGER {name} BEFORE {' OR '.join(rows)} ON {table} FOR EACH ROW{condition} EXECUTE FUNCTION {name}();"
        )
        undo.insert(0, f"DROP TRIGGER {name} ON {table};")
    if "TRUNCATE" in operations:
        make.append(
            f"CREATE TRIGGER {name}_all BEFORE TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {name}();"
        )
        undo.insert(0, f"DROP TRIGGER {name}_all ON {table};")
    return "\n".join(make), "\n".join(undo)
