"""How far each gateway is with the routes of its environment."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, F, Q

from serving.models import Gateway, Route, RouteAck


@dataclass(frozen=True)
class GatewayState:
    """`acknowledged`: of its environment's `routes`, those taken at their present generation; `errors`: those it refused."""

    name: str
    environment: str
    http_url: str
    seen_at: datetime | None
    routes: int
    acknowledged: int
    errors: int


def gateway_states() -> list[GatewayState]:
    """Every gateway, by environment and name. Three queries."""
    routes: Counter[int] = Counter()
    for environment, count in (
        Route.objects.values_list("environment_id").annotate(count=Count("pk")).order_by("environment_id")
    ):
        routes[environment] = count
    taken = Q(taken__gte=F("route__generation"))
    acks = {
        gateway: (good, bad)
        for gateway, good, bad in RouteAck.objects.values_list("gateway_id")
        .annotate(good=Count("pk", filter=taken), bad=Count("pk", filter=~Q(error="")))
        .order_by("gateway_id")
    }
    found = []
    for row in Gateway.objects.select_related("environment").order_by("environment__slug", "name"):
        good, bad = acks.get(row.pk, (0, 0))
        found.append(
            GatewayState(
                row.name, row.environment.slug, row.http_url, row.seen_at, routes[row.environment_id], good, bad
            )
        )
    return found
