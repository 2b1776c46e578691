"""What draining would do to each deployment of a node, as it stands now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from django.db.models import F, QuerySet
from django.utils import timezone

from ledger.core.errors import NotFound
from registry.hooks.usage import usages_of
from serving.core.containment import may_run_code
from serving.core.draining import Drainable, Fate, fate_of, serves_users
from serving.core.lifecycle import DeploymentState
from serving.models import Deployment, Node
from serving.queries.deployments import answering_servers, live_deployments
from serving.queries.fleet import SILENT_AFTER
from serving.queries.node_fit import nodes_for
from serving.queries.routes import all_routes

#: Of whom a use is not asked: routes and deployments are looked at here, and an alias needs no server.
_NOT_ASKED = frozenset({"serving", "aliases"})


@dataclass(frozen=True)
class DrainStep:
    """What draining does to one deployment; `target` is the node where another is placed, if one is."""

    deployment: Deployment
    fate: Fate
    says: str
    serves_users: bool
    target: Node | None = None


def deployments_on(node: Node) -> QuerySet[Deployment]:
    """Those of the node that are not gone, in the order in which they came."""
    return live_deployments().filter(node=node).order_by("pk")


def deployment_on(node: Node, pk: int) -> Deployment:
    """Raises NotFound."""
    found = deployments_on(node).filter(pk=pk).first()
    if found is None:
        raise NotFound("no_such_deployment", f"Nothing like deployment {pk} is on {node.name} now.", deployment=pk)
    return found


def drain_plan(deployments: Iterable[Deployment]) -> list[DrainStep]:
    """One step for each, in their order. They are of `live_deployments`."""
    mine = list(deployments)
    releases = {one.release_id for one in mine}
    uses = usages_of(releases, but=_NOT_ASKED) if releases else {}
    stable = set(all_routes().filter(stable__in=releases).values_list("stable_id", "environment_id"))
    twins = list(live_deployments().filter(release__in=releases, is_wanted=True))
    answering = set(answering_servers().filter(deployment__in=twins).values_list("deployment_id", flat=True))
    places = list(
        Node.objects.filter(cordoned_at=None, seen_at__gte=timezone.now() - SILENT_AFTER).order_by(F("seen_at").desc())
    )
    return [_step(one, uses.get(one.release_id, []), stable, twins, answering, places) for one in mine]


def _step(
    one: Deployment,
    uses: Iterable[str],
    stable: set[tuple[UUID, int]],
    twins: Iterable[Deployment],
    answering: set[int],
    places: Iterable[Node],
) -> DrainStep:
    others = [
        twin
        for twin in twins
        if (twin.release_id, twin.environment_id) == (one.release_id, one.environment_id)
        and twin.node_id != one.node_id
    ]
    ready = next((twin for twin in others if twin.pk in answering), None)
    moving = next((twin for twin in others if twin.state != DeploymentState.FAILED), None)
    is_stable = (one.release_id, one.environment_id) in stable
    target = None if others or not is_stable else _place_for(one, places)
    held = Drainable(
        name=f"{one.release.model.slug} {one.release.name} in {one.environment.slug}",
        is_wanted=one.is_wanted and one.state != DeploymentState.DRAINING,
        is_stable=is_stable,
        uses=tuple(uses),
        answers_on=ready.node_id if ready else "",
        goes_to=moving.node_id if moving else target.name if target else "",
        is_moving=moving is not None,
        why_nowhere="its other deployment failed; look at it first."
        if others
        else "no other node that is about and not cordoned runs it. Start one, or uncordon one.",
    )
    fate, says = fate_of(held)
    return DrainStep(one, fate, says, serves_users(held), target if fate is Fate.MOVES else None)


def _place_for(one: Deployment, places: Iterable[Node]) -> Node | None:
    """Another node that runs its runtime and, if it brings code, shuts that in."""
    found = nodes_for(one.release, [node for node in places if node.name != one.node_id])
    allowed = [node for node in found if not one.release.is_code_bearing or may_run_code(node.facts)]
    return allowed[0] if allowed else None
