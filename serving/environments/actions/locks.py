"""What whoever changes an environment's routes or replicas does first, and last: the lock of its row, and the call to its readers."""

from __future__ import annotations

from django.db import connection

from ledger.core.errors import NotFound, StateChanged
from registry.models import Release
from serving.environments.core.lifecycle import LIVE
from serving.models import Environment, Replica

#: PostgreSQL's channel, on which the control plane and the engine listen.
CHANGE_CHANNEL = "sluicegate_routes"


def lock_routes(environment: Environment, *drained: Release | None) -> Environment:
    """The environment's row, locked until the transaction ends: its routes, and what they rest on, change one by one.

    With the live replicas of `drained`: who appends an event before it drains them must hold them first, as the node's
    agent does (lock order: CONTRIBUTING.md). Raises NotFound: it was deleted.
    """
    found = Environment.objects.select_for_update(no_key=True).filter(pk=environment.pk).first()
    if found is None:
        raise NotFound(
            "no_such_environment", f"{environment.slug} was deleted meanwhile.", environment=environment.slug
        )
    live = Replica.objects.filter(
        environment=environment, release__in=[one for one in drained if one], state__in=sorted(LIVE)
    )
    if drained:
        list(live.order_by("pk").select_for_update(no_key=True).values_list("pk"))
    return found


def lock_open(environment: Environment) -> Environment:
    """`lock_routes`, for what a retired environment is not to be given. Raises as `refuse_retired`, NotFound."""
    return refuse_retired(lock_routes(environment))


def refuse_retired(environment: Environment) -> Environment:
    """The same environment. Raises StateChanged("environment_retired") where it is retired."""
    if environment.retired_at is None:
        return environment
    raise StateChanged(
        "environment_retired",
        f"{environment.slug} was retired by {environment.retired_by} on {environment.retired_at:%Y-%m-%d}: nothing runs there. "
        "Choose another environment, or have an administrator bring it back: "
        f"sluicegate api POST /environments/{environment.slug}/restore --if-match '*'",
        environment=environment.slug,
    )


def notify_routes() -> None:
    """Wakes the control plane and the engine: PostgreSQL delivers this when, and only if, the transaction commits."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, '')", [CHANGE_CHANNEL])
