"""Queries that every request asks, written as SQL once: of a query with many parts Django's writing takes longer than the answer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.core.exceptions import EmptyResultSet
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models import QuerySet

#: Texts of one statement that a process remembers.
MOST_SHAPES = 256
_Value = int | datetime | UUID | str


@dataclass(frozen=True)
class _Slot:
    """Where a value goes, as the type that the column's parameters have: that of a 32-bit column is a kind of int."""

    name: str
    kind: Callable[[Any], Any] | None = None  # None: as it is given

    def of(self, values: dict[str, _Value]) -> Any:
        value = values[self.name]
        return value if self.kind is None else self.kind(value)


@dataclass(frozen=True)
class _Written:
    """A query with its text, and with its compiler, which knows how the columns of a row become what the query gives."""

    query: QuerySet[Any, Any]
    compiler: Any
    text: str  # empty where no row can ever fit
    params: tuple[Any, ...]  # `_Slot` where a value goes

    def rows(self, values: dict[str, _Value]) -> list[Any]:
        """Django's own way from the columns to rows or instances, by the text that it wrote before."""
        if not self.text:
            return []
        params = tuple(one.of(values) if isinstance(one, _Slot) else one for one in self.params)
        compiler = copy.copy(self.compiler)
        compiler.connection = connections[DEFAULT_DB_ALIAS]  # this thread's
        compiler.as_sql = lambda *_, **__: (self.text, params)
        asked = self.query.all()
        asked.query.get_compiler = lambda *_, **__: compiler  # type: ignore[method-assign]
        return list(asked)


class Statement:
    """The rows of a queryset, instances or tuples. `build(*shape, **values)` makes it: `values` are numbers, instants, UUIDs and
    texts that go into it as parameters and nowhere else; `shape` is all that changes its text, such as how it narrows what may be seen.

    It is built once for each shape; of more than MOST_SHAPES all are built anew. Raises ValueError where a value is not among the
    query's parameters.
    """

    def __init__(self, build: Callable[..., QuerySet[Any, Any]]) -> None:
        self._build = build
        self._known: dict[tuple[Hashable, ...], _Written] = {}

    def rows(self, *shape: Hashable, **values: _Value) -> list[Any]:
        found = self._known.get(shape)
        if found is None:
            if len(self._known) >= MOST_SHAPES:
                self._known.clear()
            found = self._known[shape] = self._written(shape, values)
        return found.rows(values)

    def _written(self, shape: tuple[Hashable, ...], values: dict[str, _Value]) -> _Written:
        markers = {name: _marker(value, number) for number, (name, value) in enumerate(values.items(), start=1)}
        query = self._build(*shape, **markers)
        compiler = query.query.get_compiler(DEFAULT_DB_ALIAS)
        try:
            text, params = compiler.as_sql()
        except EmptyResultSet:
            return _Written(query, compiler, "", ())
        names = {(type(marker), marker): name for name, marker in markers.items()}
        slots = tuple(_slot(one, names) for one in params)
        if missing := set(values) - {one.name for one in slots if isinstance(one, _Slot)}:
            raise ValueError(f"The query does not take {', '.join(sorted(missing))} as a parameter.")
        return _Written(query, compiler, text, slots)


def _marker(value: _Value, number: int) -> _Value:
    """A value of the same type that nobody else uses: it shows where the real one goes. A number must fit every column."""
    if isinstance(value, datetime):
        return datetime(1, 1, number, tzinfo=UTC)
    if isinstance(value, UUID):
        return UUID(int=2**128 - number)
    return f"marker {number} of a statement" if isinstance(value, str) else 2**31 - 1 - number


def _slot(param: Any, names: dict[tuple[type, Any], str]) -> Any:
    """A slot where the parameter is a marker, else the parameter."""
    if not isinstance(param, _Value) or isinstance(param, bool):
        return param
    if isinstance(param, int) and type(param) is not int:
        name = names.get((int, int(param)))
        return param if name is None else _Slot(name, type(param))
    name = names.get((type(param), param))
    return param if name is None else _Slot(name)
