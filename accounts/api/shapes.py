"""Shapes of the API's JSON, declared by annotations: `name: str`, `ended_at: datetime | None = described("null while it runs")`."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints
from uuid import UUID

from rest_framework import serializers

_FIELDS: dict[Any, Any] = {
    Any: serializers.JSONField,
    UUID: serializers.UUIDField,
    bool: serializers.BooleanField,
    datetime: serializers.DateTimeField,
    float: serializers.FloatField,
    int: serializers.IntegerField,
    str: serializers.CharField,
}


class _Described(dict[str, Any]):
    """Options of a field whose annotation holds its type."""


def described(help_text: str | None = None, **options: Any) -> Any:
    return _Described(options, help_text=help_text)


def _field(kind: Any, **options: Any) -> Any:
    inner = get_args(kind)
    if NoneType in inner:
        return _field(inner[0], allow_null=True, **options)
    if get_origin(kind) is dict:
        return serializers.DictField(child=_field(inner[1]), **options)
    if inner and issubclass(inner[0], serializers.BaseSerializer):
        return inner[0](many=True, **options)
    if inner:
        return serializers.ListField(child=_field(inner[0]), **options)
    if kind not in _FIELDS and issubclass(kind, Enum):
        return serializers.ChoiceField(choices=[one.value for one in kind], **options)
    return _FIELDS.get(kind, kind)(**options)


class _ShapeMeta(serializers.SerializerMetaclass):
    def __new__(mcs, name: str, bases: tuple[type, ...], attrs: dict[str, Any]) -> Any:
        own = {"__annotations__": attrs.get("__annotations__", {}), "__module__": attrs["__module__"]}
        for field, kind in get_type_hints(type(name, (), own)).items():
            options = attrs.get(field, {})
            if isinstance(options, _Described) or field not in attrs:
                attrs[field] = _field(kind, **options)
        return super().__new__(mcs, name, bases, attrs)


# A comment and no docstring: the schema would show it as that of every shape.
class Shape(serializers.Serializer[Any], metaclass=_ShapeMeta):
    pass
