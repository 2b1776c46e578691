"""Queries that every request asks, written as SQL once: of a query with many parts Django's writing takes longer than the answer."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connection
from django.db.models import QuerySet

#: Texts of one statement that a process remembers.
MOST_SHAPES = 256
_Value = int | datetime | str


@dataclass(frozen=True)
class _Sql:
    text: str
    params: tuple[Any, ...]  # `_Slot` where a value goes
    converters: dict[int, Any]


@dataclass(frozen=True)
class _Slot:
    name: str


class Statement:
    """The rows of a `values_list`. `build(*shape, **values)` makes it: `values` are numbers, instants and texts that go into it as
    parameters and nowhere else; `shape` is all that changes its text, such as how it narrows what may be seen.

    It is built once for each shape; of more than MOST_SHAPES all are built anew. Raises ValueError where a value is not among the
    query's parameters.
    """

    def __init__(self, build: Callable[..., QuerySet[Any, tuple[Any, ...]]]) -> None:
        self._build = build
        self._known: dict[tuple[Hashable, ...], _Sql] = {}

    def rows(self, *shape: Hashable, **values: _Value) -> list[tuple[Any, ...]]:
        found = self._known.get(shape)
        if found is None:
            if len(self._known) >= MOST_SHAPES:
                self._known.clear()
            found = self._known[shape] = self._written(shape, values)
        params = [values[one.name] if isinstance(one, _Slot) else one for one in found.params]
        with connection.cursor() as cursor:
            cursor.execute(found.text, params)
            rows = cursor.fetchall()
        return [_converted(row, found.converters) for row in rows]

    def _written(self, shape: tuple[Hashable, ...], values: dict[str, _Value]) -> _Sql:
        markers = {name: _marker(value, number) for number, (name, value) in enumerate(values.items(), start=1)}
        compiler = self._build(*shape, **markers).query.get_compiler(DEFAULT_DB_ALIAS)
        text, params = compiler.as_sql()
        names = {(type(marker), marker): name for name, marker in markers.items()}
        slots = tuple(_Slot(name) if (name := _name_of(one, names)) else one for one in params)
        if missing := set(values) - {one.name for one in slots if isinstance(one, _Slot)}:
            raise ValueError(f"The query does not take {', '.join(sorted(missing))} as a parameter.")
        return _Sql(text, slots, compiler.get_converters([column for column, *_ in compiler.select]))


def _converted(row: tuple[Any, ...], converters: dict[int, Any]) -> tuple[Any, ...]:
    """The row as Django's own queries give it: JSON read, and so on."""
    values = list(row)
    for position, (steps, expression) in converters.items():
        for step in steps:
            values[position] = step(values[position], expression, connection)
    return tuple(values)


def _marker(value: _Value, number: int) -> _Value:
    """A value of the same type that nobody else uses: it shows where the real one goes."""
    if isinstance(value, datetime):
        return datetime(1, 1, number, tzinfo=UTC)
    return f"marker {-(2**62) - number}" if isinstance(value, str) else -(2**62) - number


def _name_of(param: Any, names: dict[tuple[type, Any], str]) -> str:
    return names.get((type(param), param), "") if isinstance(param, _Value) else ""
