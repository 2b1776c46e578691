"""Named reads of aliases."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from uuid import UUID

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import OuterRef, QuerySet

from ledger.core.errors import NotFound
from registry.models import Alias, AliasEvent, Release, ServedModel


def aliases_of(model: ServedModel) -> QuerySet[Alias]:
    """Every alias of the model, those that point nowhere too, by name."""
    return Alias.objects.filter(model=model).select_related("model", "release").order_by("name")


def get_alias(model: ServedModel, name: str) -> Alias:
    """Raises NotFound."""
    found = aliases_of(model).filter(name=name).first() if name.isprintable() else None
    if found is None:
        raise NotFound(
            "no_such_alias",
            f"{model.slug} has no alias {name}. "
            f"Set it: sluicegate api PUT /models/{model.slug}/aliases/{name} release=rN",
            alias=name,
        )
    return found


def history_of(alias: Alias) -> QuerySet[AliasEvent]:
    """Every move, the newest first."""
    return alias.events.select_related("from_release", "to_release").order_by("-version")


def with_alias_names(releases: QuerySet[Release]) -> QuerySet[Release]:
    """Each with `alias_names`: the aliases that point to it, by name. No further query."""
    names = Alias.objects.filter(release=OuterRef("pk")).order_by("name").values("name")
    return releases.annotate(alias_names=ArraySubquery(names))


def moves_of_aliases(model: ServedModel) -> QuerySet[AliasEvent]:
    """Every move of every alias of the model, the newest first."""
    moves = AliasEvent.objects.filter(alias__model=model).select_related("alias", "from_release", "to_release")
    return moves.order_by("-at", "-pk")


def release_usages(releases: Collection[UUID] | None) -> Iterator[tuple[UUID, str]]:
    """As `registry.hooks.usage.Source`."""
    pointing = (
        Alias.objects.filter(release__isnull=False) if releases is None else Alias.objects.filter(release__in=releases)
    )
    for release, model, name in pointing.order_by("pk").values_list("release_id", "model__slug", "name"):
        assert release is not None
        yield release, f"alias {model}/{name}"
