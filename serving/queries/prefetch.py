"""What nodes are to keep ready beside what their servers use, and on which of them a release's files are."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from registry.models import Release
from serving.core.lifecycle import DeploymentState
from serving.core.prefetch import UNDER_WAY, FilesStanding, Reason
from serving.models import Node, Prefetch, Route
from serving.queries.deployments import live_deployments, nodes
from serving.queries.placement import is_silent, may_serve

#: The fact by which an agent tells that it fetches ahead; of others nobody waits for it.
FETCHES_AHEAD = "fetches_ahead"
#: In these a deployment's files are on its node, each verified as it was written.
_HAS_FILES = (DeploymentState.LOADING, DeploymentState.WARMING, DeploymentState.READY)


def releases_to_keep() -> dict[UUID, Reason]:
    """What any node that may serve it keeps ready, in the order in which it is fetched. Two queries.

    Environments without a gateway have no part in it: what gates measure moves to no other node by itself.
    """
    found: dict[UUID, Reason] = {}
    routes = Route.objects.filter(environment__is_routed=True).order_by("-changed_at", "pk")
    stable: dict[UUID, Reason] = {}
    for arm, candidate in routes.values_list("stable_id", "candidate_id"):
        stable[arm] = Reason.STABLE
        if candidate is not None:
            found[candidate] = Reason.CANDIDATE
    served = live_deployments().filter(is_wanted=True, environment__is_routed=True).order_by("-pk")
    for release in served.values_list("release_id", flat=True):
        if release not in stable:
            found.setdefault(release, Reason.SERVED)
    return dict(sorted((stable | found).items(), key=lambda one: one[1]))


def is_fetching(node: str) -> bool:
    """Whether a deployment of the node is still being fetched."""
    return live_deployments().filter(node=node, is_wanted=True, state=DeploymentState.FETCHING).exists()


@dataclass(frozen=True)
class FilesOn:
    """A release's files on a node that may serve it. `standing` None: its agent does not tell, and is not waited for."""

    node: str
    standing: FilesStanding | None
    size_bytes: int | None = None
    here_bytes: int | None = None
    trouble: str = ""

    @property
    def is_under_way(self) -> bool:
        return self.standing in UNDER_WAY


def files_on_nodes(release: Release) -> list[FilesOn]:
    """By name, for every node that may serve the release. Three queries."""
    rows = {one.node_id: one for one in Prefetch.objects.filter(release=release)}
    served = live_deployments().filter(release=release, state__in=_HAS_FILES)
    here = set(served.values_list("node_id", flat=True))
    return [_files_on(node, rows.get(node.name), node.name in here) for node in may_serve(release, nodes())]


def _files_on(node: Node, row: Prefetch | None, is_served: bool) -> FilesOn:
    size, there = (row.size_bytes, row.here_bytes) if row is not None else (None, None)
    if is_served:
        return FilesOn(node.name, FilesStanding.READY, size, size)
    if is_silent(node):
        return FilesOn(node.name, None, size, there, "Its agent has not been heard of lately.")
    if row is not None:
        return FilesOn(node.name, FilesStanding(row.standing), size, there, row.trouble)
    if not node.facts.get(FETCHES_AHEAD):
        return FilesOn(node.name, None, trouble="Its agent fetches nothing ahead.")
    return FilesOn(node.name, FilesStanding.WAITING)
