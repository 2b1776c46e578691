"""Models and releases by what people type: a name, a part of one, a number, the beginning of a digest."""

from __future__ import annotations

import re
from typing import Final

from django.db.models import Q, QuerySet

from accounts.core.access import Actor
from registry.models import Release, ServedModel
from registry.queries.releases import LARGE, visible_models

#: `sentiment/r14`, `sentiment r14`, `sentiment r 14`.
_NAMED: Final = re.compile(r"([\w-]+)[/ ]+r ?(\d{1,9})\Z", re.I)
_NUMBER: Final = re.compile(r"r?(\d{1,9})\Z", re.I)
#: Shorter ones are the beginning of too many.
_DIGEST: Final = re.compile(r"(?:sha256:)?([0-9a-f]{4,64})\Z", re.I)


def find_models(actor: Actor, text: str, most: int) -> list[ServedModel]:
    """Those whose slug, title or team has the text; the slug that begins with it first."""
    found = visible_models(actor).filter(
        Q(slug__icontains=text) | Q(title__icontains=text) | Q(team__slug__icontains=text)
    )
    rows = found.only("slug", "title", "team__slug")[: most * 4]
    return sorted(rows, key=lambda one: (not one.slug.startswith(text.lower()), one.slug))[:most]


def find_releases(actor: Actor, text: str, most: int) -> list[Release]:
    """Those that the text names or whose digest it begins; the newest first. At most two queries, each by an index."""
    sealed = Release.objects.filter(model__in=visible_models(actor).values("pk"), number__isnull=False)
    sealed = sealed.select_related("model").defer(*LARGE)
    found: list[Release] = []
    if named := _NAMED.match(text):
        found += sealed.filter(model__slug=named[1].lower(), number=int(named[2]))
    elif number := _NUMBER.match(text):
        found += sealed.filter(number=int(number[1])).order_by("-sealed_at")[:most]
    if digest := _DIGEST.match(text):
        known = {one.pk for one in found}
        found += [one for one in by_digest(sealed, digest[1])[:most] if one.pk not in known]
    return found[:most]


def by_digest(releases: QuerySet[Release], hexes: str) -> QuerySet[Release]:
    """Those whose digest begins with these digits (index `release_by_digest`)."""
    return releases.filter(digest__startswith=f"sha256:{hexes.lower()}").order_by("digest", "pk")
