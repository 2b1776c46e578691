"""What an environment has in this room, asked before it is taken out of use."""

from __future__ import annotations

from datetime import timedelta

from django.db.models import Count, ForeignObjectRel, QuerySet

from ledger.queries import clock
from serving.environments.queries.inventory import live_replicas
from serving.models import Environment, Gateway, ListedServer
from serving.traffic.core.gateway_standing import SEEN_WITHIN_S

#: Where gates run unless somebody names another environment.
GATES_RUN_IN = "staging"


def has_history(environment: Environment) -> bool:
    """Whether anything but a gateway or a listed server names it: what was deployed, rolled out, measured or asked for there."""
    fields = Environment._meta.get_fields(include_hidden=True)  # those without a name of their own among them
    kept = (Gateway, ListedServer)
    relations = (one for one in fields if isinstance(one, ForeignObjectRel) and one.related_model not in kept)
    return any(one.related_model._default_manager.filter(**{one.field.name: environment}).exists() for one in relations)


def gateways_that_speak(environment: Environment) -> list[str]:
    """The names of its gateways that a control plane heard of lately."""
    since = clock.now() - timedelta(seconds=SEEN_WITHIN_S)
    return list(gateways_of(environment).filter(seen_at__gte=since).values_list("name", flat=True))


def what_goes(environment: Environment, *, is_deleted: bool) -> list[str]:
    """Returns sentences: which servers of each release and which silent gateways go with it, and what becomes of listed servers."""
    rows = (
        live_replicas()
        .filter(environment=environment, is_wanted=True)
        .values("release__model__slug", "release__number")
    )
    counted = rows.annotate(count=Count("pk")).order_by("release__model__slug", "release__number")
    servers = [
        f"{one['count']} server{'' if one['count'] == 1 else 's'} of {one['release__model__slug']} r{one['release__number']} "
        f"{'is' if one['count'] == 1 else 'are'} drained and ended."
        for one in counted
    ]
    names = gateways_of(environment).values_list("name", flat=True)
    listed = environment.listed_servers.order_by("pk").values_list("pk", flat=True)
    return [
        *servers,
        *(f"Gateway {name}, which is silent, is taken off the list." for name in names),
        *(_fate(environment, name, is_deleted) for name in listed),
    ]


def _fate(environment: Environment, name: str, is_deleted: bool) -> str:
    if is_deleted:
        return f"Server {name} is taken off the list."
    remove = f"sluicegate api POST /environments/{environment.slug}/servers/{name}/remove"
    return f"Server {name} stays listed, for a return of {environment.slug}. Remove it with: {remove}"


def gateways_of(environment: Environment) -> QuerySet[Gateway]:
    return Gateway.objects.filter(environment=environment).order_by("name")


def environments_resting_on(environment: Environment) -> list[str]:
    """The environments that let in only what gates measured, where this one is where gates run."""
    others = Environment.objects.filter(retired_at=None).exclude(pk=environment.pk)
    if environment.is_routed:
        return []
    if environment.slug != GATES_RUN_IN and others.filter(is_routed=False).exists():
        return []
    asking = others.filter(is_routed=True, needs_passed_report=True)
    return list(asking.order_by("slug").values_list("slug", flat=True))
