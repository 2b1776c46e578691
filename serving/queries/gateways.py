"""How far each gateway is with the routes of its environment."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from django.db.models import Count, F, Q

from ledger.core.errors import NotFound
from ledger.queries import clock
from serving.core.gateway_standing import Standing, standing_of
from serving.models import Gateway, Route, RouteAck


@dataclass(frozen=True)
class GatewayState:
    """`acknowledged`: of its environment's `routes`, those taken at their present generation; `errors`: those it refused."""

    gateway: Gateway
    standing: Standing
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
    found, now = [], clock.now()
    for row in Gateway.objects.select_related("environment").order_by("environment__slug", "name"):
        good, bad = acks.get(row.pk, (0, 0))
        found.append(
            GatewayState(row, standing_of(row.seen_at, row.drained_at, now), routes[row.environment_id], good, bad)
        )
    return found


def get_gateway(name: str) -> Gateway:
    """Raises NotFound."""
    found = Gateway.objects.select_related("environment").filter(name=name).first()
    if found is None:
        raise NotFound("no_such_gateway", f"No gateway {name[:80]} is registered.")
    return found
