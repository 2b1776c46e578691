"""What becomes of each deployment that is being drained, as it stands now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from registry.hooks.usage import usages_of
from serving.core.draining import Drainable, Fate, fate_of, serves_users
from serving.core.lifecycle import DeploymentState
from serving.models import Deployment
from serving.queries.deployments import live_deployments
from serving.queries.placement import Fleet, fleet_now, place_for
from serving.queries.replicas import NOT_ASKED, Key, desired_by_place, observed
from serving.queries.routes import all_routes


@dataclass(frozen=True)
class DrainStep:
    """What draining does to one deployment; `target` names the node where another is placed, if one is."""

    deployment: Deployment
    fate: Fate
    says: str
    serves_users: bool
    target: str = ""


def drain_plan(deployments: Iterable[Deployment]) -> list[DrainStep]:
    """One step for each, in their order. They are of `live_deployments`."""
    mine = list(deployments)
    releases = {one.release_id for one in mine}
    uses = usages_of(releases, but=NOT_ASKED) if releases else {}
    stable = set(all_routes().filter(stable__in=releases).values_list("stable_id", "environment_id"))
    twins = list(observed(live_deployments()).filter(release__in=releases, is_wanted=True))
    wanted, fleet = desired_by_place(twins), fleet_now().about
    return [_step(one, uses.get(one.release_id, []), stable, twins, wanted, fleet) for one in mine]


def _step(
    one: Deployment,
    uses: Iterable[str],
    stable: set[tuple[UUID, int]],
    twins: Iterable[Any],
    wanted: Mapping[Key, int],
    fleet: Fleet,
) -> DrainStep:
    key = (one.release_id, one.environment_id)
    others = [
        twin
        for twin in twins
        if (twin.release_id, twin.environment_id) == key and twin.pk != one.pk and twin.drain_asked_at is None
    ]
    ready = sorted({twin.node_id for twin in others if twin.answers})
    is_spare = sum(twin.answers for twin in others) >= wanted.get(key, 1)
    # The one in its slot has taken its place; else, where enough stay, the newest of them has.
    in_its_slot = [twin for twin in others if twin.slot == one.slot]
    stay = in_its_slot or (others if len(others) >= wanted.get(key, 1) else [])
    replacement = max(stay, key=lambda twin: twin.pk, default=None)
    # What a rollout or an undo window needs is as many replicas as are wanted, not this one.
    needs = () if one.environment.is_routed and in_its_slot and is_spare else tuple(uses)
    is_stable = key in stable
    has_failed = replacement is not None and replacement.state == DeploymentState.FAILED
    target = (
        "" if replacement or not is_stable else place_for(one.release, one.environment, fleet, but=[one.node_id]).node
    )
    held = Drainable(
        name=f"{one.release.model.slug} {one.release.name} in {one.environment.slug}",
        is_wanted=one.is_wanted and one.state != DeploymentState.DRAINING,
        is_stable=is_stable,
        uses=needs,
        answers_on=", ".join(ready) if is_spare else "",
        goes_to="" if has_failed else replacement.node_id if replacement else target,
        is_moving=replacement is not None and not has_failed,
        why_nowhere="its other deployment failed; look at it first." if has_failed else "no other server runs it.",
    )
    fate, says = fate_of(held)
    return DrainStep(one, fate, says, serves_users(held), target if fate is Fate.MOVES else "")
