"""REST view of where two releases answer a golden set differently."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import actor_of
from accounts.api.shapes import Shape, described
from registry.core.schema import Problem
from registry.core.spec import refuse
from registry.queries import visible_release
from validators.core.disagreements import How
from validators.queries.disagreements import disagreements_of

MOST_ROWS = 1000


class DisagreementOut(Shape):
    position: int = described("of the item in the golden set, from 0")
    id: str
    slice: str
    text: str = described("its inputs; the beginning of what is long")
    right: Any = described("a class's index or name", source="label")
    old: Any = described("what the older release answered")
    new: Any = described("what the newer release answered")
    how: How


class DisagreementsOut(Shape):
    """Items that two releases answer differently, by their newest reports."""

    why_not: str = described("why nothing can be told; empty where something is")
    items: int = described("that both were asked")
    total: int = described("on which they differ")
    read: int = described("of these, those that the counts below are of")
    by_how: dict[str, int]
    by_slice: dict[str, int]
    matching: int = described("those that `how` and `slice` name")
    rows: list[DisagreementOut] = described("the first of them")


class DisagreementsView(APIView):
    @extend_schema(
        operation_id="releases_disagreements",
        responses=DisagreementsOut,
        parameters=[
            OpenApiParameter("against", str, required=True, description="the older release: r1"),
            OpenApiParameter("how", str, enum=[how.value for how in How]),
            OpenApiParameter("slice", str),
            OpenApiParameter("limit", int, description=f"rows, at most {MOST_ROWS}; 50 by default"),
        ],
    )
    def get(self, request: Request, slug: str, name: str) -> Response:
        """Which items the release answers otherwise than another did: lost, won, or neither right."""
        actor, asked = actor_of(request), request.query_params
        problems = []
        if not asked.get("against"):
            problems.append(Problem("against", "it is missing.", "Name the older release: ?against=r1."))
        if asked.get("how", "") not in ("", *(how.value for how in How)):
            problems.append(Problem("how", "there is no such kind.", f"One of {', '.join(how.value for how in How)}."))
        limit = asked.get("limit", "50")
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= MOST_ROWS):
            problems.append(Problem("limit", "it is no such number.", f"From 1 to {MOST_ROWS}."))
        refuse("invalid", "The query", problems)
        release = visible_release(actor, slug, name)
        old = visible_release(actor, slug, asked["against"])
        found = disagreements_of(
            old, release, how=asked.get("how", ""), part=asked.get("slice", ""), most=int(limit[:9])
        )
        told = {**found.__dict__, "by_how": dict(found.by_how), "by_slice": dict(found.by_slice)}
        return Response(DisagreementsOut(told).data)
