"""What nodes are to keep ready beside what their servers use, and on which of them a release's files are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from registry.models import Release
from serving.core.prefetch import PATIENCE, UNDER_WAY, FilesStanding, Reason
from serving.models import Route
from serving.queries.deployments import live_deployments, nodes
from serving.queries.kept import with_files
from serving.queries.placement import is_silent, may_serve

#: The fact by which an agent tells that it fetches ahead; of others nobody waits for it.
FETCHES_AHEAD = "fetches_ahead"


def releases_to_keep() -> dict[UUID, Reason]:
    """What any node that may serve it keeps ready, in the order in which it is fetched. Two queries.

    Environments without a gateway have no part in it: what gates measure moves to no other node by itself.
    """
    found: dict[UUID, Reason] = {}
    routes = Route.objects.filter(environment__is_routed=True, environment__retired_at=None).order_by(
        "-changed_at", "pk"
    )
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


@dataclass(frozen=True)
class FilesOn:
    """A release's files on a node that may serve it. `standing` None: its agent does not tell, and is not waited for.

    `changed_at`: its last progress; None where it told nothing yet.
    """

    node: str
    standing: FilesStanding | None
    size_bytes: int | None = None
    here_bytes: int | None = None
    trouble: str = ""
    changed_at: datetime | None = None

    @property
    def is_under_way(self) -> bool:
        return self.standing in UNDER_WAY

    def is_waited_for(self, now: float, since: float) -> bool:
        """Whether it goes on. `since`: from when on it could, where it told nothing after that."""
        told = self.changed_at.timestamp() if self.changed_at is not None else since
        return self.is_under_way and now - max(told, since) < PATIENCE.total_seconds()


def files_on_nodes(release: Release, among: Iterable[Any] | None = None) -> list[FilesOn]:
    """For every node that may serve the release; `among`: nodes `with_files`, where they are there already. One query."""
    return [_files_on(node) for node in may_serve(release, with_files(nodes(), release.pk) if among is None else among)]


def _files_on(node: Any) -> FilesOn:
    told = node.told or {}
    size, there = told.get("size_bytes"), told.get("here_bytes")
    if node.serves:
        return FilesOn(node.name, FilesStanding.READY, size, size)
    if is_silent(node):
        return FilesOn(node.name, None, size, there, "Its agent has not been heard of lately.")
    if told:
        changed_at = datetime.fromisoformat(told["changed_at"])
        return FilesOn(node.name, FilesStanding(told["standing"]), size, there, told["trouble"], changed_at)
    if not node.facts.get(FETCHES_AHEAD):
        return FilesOn(node.name, None, trouble="Its agent fetches nothing ahead.")
    return FilesOn(node.name, FilesStanding.WAITING)
