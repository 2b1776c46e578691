"""How far each gateway is with the routes of its environment."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Exists, F, OuterRef, Q
from django.db.models.functions import Now

from ledger.core.errors import NotFound
from ledger.queries import clock
from serving.models import Gateway, Route, RouteAck
from serving.traffic.core.gateway_standing import GONE_AFTER_S, Standing, standing_of


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


def not_following(environment: int, model: int, since: datetime) -> list[str]:
    """The names of the environment's gateways that may route the model, by keys, by what was so before this instant of the database's
    clock.

    One that is silent may serve users by the last that it heard; one that was so for `GONE_AFTER_S` is taken for gone. Of a model whose
    route it says an error of, or that is withheld from it, nothing is known. Nor where the database's clock was set back. One query.
    """
    about = Q(seen_at__gte=Now() - timedelta(seconds=GONE_AFTER_S))
    behind = Q(follows_at=None) | Q(follows_at__lt=since) | Q(follows_at__gt=Now())
    said = RouteAck.objects.filter(gateway=OuterRef("pk"), route__model=model, route__environment=environment)
    rows = Gateway.objects.filter(about, behind | Exists(said.exclude(error="")), environment=environment)
    return list(rows.order_by("name").values_list("name", flat=True))


def get_gateway(name: str) -> Gateway:
    """Raises NotFound."""
    found = Gateway.objects.select_related("environment").filter(name=name).first()
    if found is None:
        raise NotFound("no_such_gateway", f"No gateway {name[:80]} is registered.")
    return found
