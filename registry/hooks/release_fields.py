"""Fields of a release that rooms above this one know, such as what its gates measured: each says how it is compared.

They call `register_release_fields` when Django is ready.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from django.db.models import Q

from registry.core.release_filter import Condition, FieldKind

#: The releases for which a condition on one of the fields holds.
Meaning = Callable[[Condition], Q]
_registered: dict[str, tuple[FieldKind, Meaning]] = {}


def register_release_fields(fields: Mapping[str, FieldKind], meaning: Meaning) -> None:
    """From now on these fields can be named in conditions."""
    _registered.update({name: (kind, meaning) for name, kind in fields.items()})


def registered_fields() -> dict[str, FieldKind]:
    return {name: kind for name, (kind, _) in _registered.items()}


def meaning_of(field: str) -> Meaning | None:
    """How a condition on the field is asked of the database; None for a field of the release itself."""
    found = _registered.get(field)
    return found[1] if found else None
