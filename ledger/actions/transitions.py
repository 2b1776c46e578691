"""How the state of a row changes, in every room: one move of its lifecycle's table, by compare-and-set.

A room's own `move` wraps this and appends the event that it names. Nothing else writes a state column; `tests.support.house.architecture`
looks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

from django.db.models import F, Model, QuerySet

from ledger.core.errors import StateChanged

S = TypeVar("S", bound=StrEnum)


def transition(
    row: Model,
    to: S,
    *,
    moves: Mapping[S, frozenset[S]],
    where: Mapping[str, Any] | None = None,
    may_stay: bool = False,
    **changes: Any,
) -> S:
    """The state that `row` left; the row is then in state `to`, with `changes` in its columns, and as the database has it.

    The UPDATE compares the state that was seen, the version too where the model counts versions (it counts one more), and the
    columns of `where`. `may_stay`: writing other columns without leaving the state is allowed as well.

    Raises StateChanged: "illegal_transition" when `moves` has no such move, "state_changed" when the row was written meanwhile.
    """
    was = type(to)(getattr(row, "state"))  # noqa: B009  (models declare it, Model does not)
    columns = {field.name for field in row._meta.concrete_fields}
    seen = {"pk": row.pk, **(where or {})}
    if "version" in columns:
        seen["version"] = getattr(row, "version")  # noqa: B009
        changes["version"] = F("version") + 1
    rows = type(row)._default_manager.filter(**seen)
    if not transition_rows(rows, was, to, moves=moves, may_stay=may_stay, **changes):
        raise StateChanged(
            "state_changed", f"{_name(row)} changed meanwhile. Read it again, then repeat.", **_facts(row, was)
        )
    reread(row, also=changes)
    return was


def transition_rows(
    rows: QuerySet[Any], was: S, to: S, *, moves: Mapping[S, frozenset[S]], may_stay: bool = False, **changes: Any
) -> int:
    """How many of `rows` were in state `was` and are now in `to`, with `changes` in their columns. Reads none of them.

    Raises StateChanged("illegal_transition") when `moves` has no such move.
    """
    if to not in moves[was] and not (may_stay and to is was):
        name, left, entered = (str(one).replace("_", " ") for one in (rows.model._meta.verbose_name, was, to))
        article = "An" if name[0] in "aeiou" else "A"
        raise StateChanged(
            "illegal_transition",
            f"{article} {name} that is {left} cannot become {entered}.",
            state=was.value,
            to=to.value,
        )
    return rows.filter(state=was).update(state=to, **changes)


def reread(row: Model, also: Mapping[str, Any] | None = None) -> None:
    """Takes the row's own columns from the database, and the relations named in `also`; what else it points at never changes.

    Columns that were not loaded stay so.
    """
    left = row.get_deferred_fields()
    row.refresh_from_db(
        fields=[
            field.name
            for field in row._meta.concrete_fields
            if field.attname not in left and (not field.is_relation or field.name in (also or {}))
        ]
    )


def _name(row: Model) -> str:
    name = str(row._meta.verbose_name)
    return f"{name.capitalize()} {row.pk}" if isinstance(row.pk, int) else f"This {name}"


def _facts(row: Model, state: StrEnum) -> dict[str, Any]:
    key = row.pk if isinstance(row.pk, int) else str(row.pk)
    return {str(row._meta.verbose_name).replace(" ", "_"): key, "state": state.value}
