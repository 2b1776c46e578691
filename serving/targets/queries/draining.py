"""Which of the replicas whose ordinals were given away may stop now."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from registry.hooks.usage import usages_of
from serving.environments.queries.inventory import live_replicas
from serving.models import Replica
from serving.targets.queries.replicas import NOT_ASKED, desired_by_place, observed
from serving.traffic.queries.routes import all_routes


def may_stop(asked: Iterable[Replica]) -> list[Replica]:
    """Those of these drained replicas that nothing needs any more, in their order.

    A replica of a stable release stays until the wanted number of other replicas answers. A replica that a rollout
    or an undo window needs stays until then too, and until another replica has its ordinal.
    """
    drained = list(asked)
    releases = {one.release_id for one in drained}
    uses = usages_of(releases, but=NOT_ASKED) if releases else {}
    stable = set(all_routes().filter(stable__in=releases).values_list("stable_id", "environment_id"))
    staying: list[Any] = list(
        observed(live_replicas()).filter(release__in=releases, is_wanted=True, drain_asked_at__isnull=True)
    )
    wanted = desired_by_place(staying)

    def is_free(one: Replica) -> bool:
        place = (one.release_id, one.environment_id)
        others = [other for other in staying if (other.release_id, other.environment_id) == place]
        is_spare = sum(other.answers for other in others) >= wanted.get(place, 1)
        if uses.get(one.release_id) and not (is_spare and any(other.ordinal == one.ordinal for other in others)):
            return False
        return is_spare or place not in stable

    return [one for one in drained if is_free(one)]
