"""Queries that every request asks, written as SQL once: of a query with many parts Django's writing takes longer than the answer."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, connection
from django.db.models import Model, QuerySet
from django.db.models.query import RelatedPopulator, get_related_populators
from django.db.models.sql.compiler import SQLCompiler

#: Texts of one statement that a process remembers.
MOST_SHAPES = 256


#: What goes into a statement as a parameter.
Value = int | datetime | UUID


@dataclass(frozen=True)
class _Layout:
    """Where an instance, those that are joined to it, and what it is annotated with lie in a row."""

    model: type[Model]
    names: list[str]
    columns: slice
    joined: list[RelatedPopulator]
    annotated: dict[str, int]

    def instance(self, row: tuple[Any, ...]) -> Any:
        found = self.model.from_db(DEFAULT_DB_ALIAS, self.names, row[self.columns])
        for one in self.joined:
            one.populate(row, found)
        for name, position in self.annotated.items():
            setattr(found, name, row[position])
        return found


@dataclass(frozen=True)
class _Sql:
    text: str
    params: tuple[Any, ...]  # `_Slot` where a value goes
    converters: dict[int, Any]
    layout: _Layout | None  # of instances; None of a `values_list`


@dataclass(frozen=True)
class _Slot:
    name: str


class Statement:
    """The rows of a query. `build(*shape, **values)` makes it: `values` are numbers, instants and UUIDs that go into it as
    parameters and nowhere else; `shape` is all that changes its text, such as how it narrows what may be seen.

    It is built once for each shape; of more than MOST_SHAPES all are built anew. Raises ValueError where a value is not among the
    query's parameters.
    """

    def __init__(self, build: Callable[..., QuerySet[Any, Any]]) -> None:
        self._build = build
        self._known: dict[tuple[Hashable, ...], _Sql] = {}

    def rows(self, *shape: Hashable, **values: Value) -> list[tuple[Any, ...]]:
        """The tuples of a `values_list`."""
        return self._asked(shape, values)[1]

    def objects(self, *shape: Hashable, **values: Value) -> list[Any]:
        """The instances of a query of instances, with what it selects beside them; nothing is prefetched."""
        layout, rows = self._asked(shape, values)
        if layout is None:
            raise ValueError("The query has no instances, it has values.")
        return [layout.instance(row) for row in rows]

    def _asked(
        self, shape: tuple[Hashable, ...], values: dict[str, Value]
    ) -> tuple[_Layout | None, list[tuple[Any, ...]]]:
        found = self._known.get(shape)
        if found is None:
            if len(self._known) >= MOST_SHAPES:
                self._known.clear()
            found = self._known[shape] = self._written(shape, values)
        params = [values[one.name] if isinstance(one, _Slot) else one for one in found.params]
        with connection.cursor() as cursor:
            cursor.execute(found.text, params)
            rows = cursor.fetchall()
        return found.layout, [_converted(row, found.converters) for row in rows]

    def _written(self, shape: tuple[Hashable, ...], values: dict[str, Value]) -> _Sql:
        markers = {name: _marker(value, number) for number, (name, value) in enumerate(values.items(), start=1)}
        query = self._build(*shape, **markers)
        compiler = query.query.get_compiler(DEFAULT_DB_ALIAS)
        text, params = compiler.as_sql()
        names = {(type(marker), marker): name for name, marker in markers.items()}
        slots = tuple(_Slot(name) if (name := _name_of(one, names)) else one for one in params)
        if missing := set(values) - {one.name for one in slots if isinstance(one, _Slot)}:
            raise ValueError(f"The query does not take {', '.join(sorted(missing))} as a parameter.")
        converters = compiler.get_converters([column for column, *_ in compiler.select])
        return _Sql(text, slots, converters, _layout(compiler) if query._fields is None else None)  # type: ignore[attr-defined]


def _layout(compiler: SQLCompiler) -> _Layout:
    """As Django's own queries make instances. Source: django.db.models.query.ModelIterable."""
    info = compiler.klass_info
    columns = slice(info["select_fields"][0], info["select_fields"][-1] + 1)
    return _Layout(
        info["model"],
        [column.target.attname for column, *_ in compiler.select[columns]],
        columns,
        get_related_populators(info, compiler.select, DEFAULT_DB_ALIAS),  # type: ignore[call-arg]  # of a later Django
        compiler.annotation_col_map or {},
    )


def _converted(row: tuple[Any, ...], converters: dict[int, Any]) -> tuple[Any, ...]:
    """The row as Django's own queries give it: JSON read, and so on."""
    values = list(row)
    for position, (steps, expression) in converters.items():
        for step in steps:
            values[position] = step(values[position], expression, connection)
    return tuple(values)


def _marker(value: Value, number: int) -> Value:
    """A value of the same type that nobody else uses: it shows where the real one goes."""
    if isinstance(value, datetime):
        return datetime(1, 1, number, tzinfo=UTC)
    return UUID(int=2**128 - number) if isinstance(value, UUID) else -(2**62) - number


def _name_of(param: Any, names: dict[tuple[type, Any], str]) -> str:
    return names.get((type(param), param), "") if isinstance(param, int | datetime | UUID) else ""
