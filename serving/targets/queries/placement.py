"""Nodes as placement looks at them, and the node that one more replica of a release would be given."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.utils import timezone

from registry.core.fit import SEVERITY, Fit, Verdict
from registry.core.node_facts import from_agent
from registry.models import Release
from registry.queries import manifest_of
from serving.environments.queries.inventory import live_replicas, nodes, open_to, with_listing
from serving.models import Environment, Node
from serving.targets.core.containment import may_run_code, not_contained
from serving.targets.core.gpu import reading_of
from serving.targets.core.placement import Choice, Claim, Device, Spot, choose, claim_of, demand_of
from serving.targets.queries.fleet import SILENT_AFTER
from serving.targets.queries.node_fit import LAST_HEARD_OF, offering


@dataclass(frozen=True)
class _Occupant:
    """What a live replica holds of its node. `is_staying`: it is wanted, and nothing takes its place. `is_going`: it is wanted no
    more, and its room is free soon."""

    claim: Claim
    release: UUID
    environment: int
    is_staying: bool
    model: int
    is_going: bool = False


@dataclass(frozen=True)
class Fleet:
    """The nodes that take replicas, the last heard of first, and what is held of each."""

    nodes: tuple[Node, ...]
    held: Mapping[str, Sequence[_Occupant]]

    @property
    def about(self) -> Fleet:
        """Without those that have been silent."""
        return Fleet(tuple(node for node in self.nodes if not is_silent(node)), self.held)

    def soon(self, unloading: Collection[tuple[UUID, int]]) -> Fleet:
        """Once what is going has gone, and these releases in these environments have."""
        left = {
            node: [one for one in every if not one.is_going and (one.release, one.environment) not in unloading]
            for node, every in self.held.items()
        }
        return Fleet(self.nodes, left)

    def claims_of(self, release: UUID, environment: int) -> dict[str, tuple[Claim, ...]]:
        """What the release's replicas there hold, by node."""
        found = {
            node: tuple(one.claim for one in every if (one.release, one.environment) == (release, environment))
            for node, every in self.held.items()
        }
        return {node: claims for node, claims in found.items() if claims}


def is_silent(node: Node) -> bool:
    return node.seen_at is None or timezone.now() - node.seen_at > SILENT_AFTER


def fleet_now() -> Fleet:
    """Two queries."""
    known = tuple(with_listing(nodes()).order_by(LAST_HEARD_OF))
    held: dict[str, list[_Occupant]] = {}
    columns = ("node_id", "claim", "release_id", "environment_id", "is_wanted", "drain_asked_at", "release__model_id")
    for node, claim, release, environment, is_wanted, asked, model in live_replicas().values_list(*columns):
        is_staying = is_wanted and asked is None
        one = _Occupant(claim_of(claim), release, environment, is_staying, model, is_going=not is_wanted)
        held.setdefault(node, []).append(one)
    return Fleet(known, held)


def place_for(release: Release, environment: Environment, fleet: Fleet, *, but: Iterable[str] = ()) -> Choice:
    """Where one more replica would go; nowhere `but` names."""
    return choose(demand_of(manifest_of(release)["envelope"]), spots_for(release, environment, fleet, but=but))


def spots_for(release: Release, environment: Environment, fleet: Fleet, *, but: Iterable[str] = ()) -> list[Spot]:
    """The nodes with the release's runtime as placement of it looks at them."""
    there = open_to(environment, fleet.nodes)
    spots, some_report = [], not all(is_silent(node) for node in there)
    for node, its in offering(release, [node for node in there if node.name not in set(but)]):
        held = fleet.held.get(node.name, ())
        key = (release.pk, environment.pk)
        spots.append(
            Spot(
                node.name,
                _refusal(release, node, its)
                or _taken(release, node, held)
                or (_SILENT if some_report and is_silent(node) else ""),
                SEVERITY.index(its.verdict),
                from_agent(node.facts).memory_mib,
                devices_of(node),
                tuple(one.claim for one in held),
                sum(one.is_staying and (one.release, one.environment) == key for one in held),
            )
        )
    return spots


def most_that_fit(release: Release, environment: Environment, most: int) -> int:
    """How many replicas of the release, up to `most`, the environment would have if they were placed one by one on the nodes that
    are heard of. Two queries."""
    fleet = fleet_now().about
    held = {node: list(every) for node, every in fleet.held.items()}
    count = sum(
        one.is_staying and (one.release, one.environment) == (release.pk, environment.pk)
        for every in held.values()
        for one in every
    )
    while count < most and (choice := place_for(release, environment, Fleet(fleet.nodes, held))).node:
        one = _Occupant(choice.claim, release.pk, environment.pk, True, release.model_id)
        held.setdefault(choice.node, []).append(one)
        count += 1
    return count


_SILENT = "its agent has been silent for 30 s."


def _refusal(release: Release, node: Node, its: Fit) -> str:
    if its.verdict is Verdict.NO:
        return its.reasons[0].message
    if release.is_code_bearing and not may_run_code(node.facts):
        return not_contained(release.model.slug, release.name)
    return ""


def _taken(release: Release, node: Node, held: Iterable[_Occupant]) -> str:
    """Why one server at an address, which somebody else runs, has no place for a release of this model; empty where it has."""
    if not node.facts.get("static") or all(one.model != release.model_id for one in held):
        return ""
    return f"it is one server, which serves one release of {release.model.slug} at a time, and has one."


def devices_of(node: Node) -> dict[str, Device] | None:
    """Its GPUs and MIG slices by their UUIDs, where they were read; else as many as it tells of, by number; None: it does not tell."""
    reading = reading_of(node.gpus)
    if reading is not None and reading.gpus:
        sliced = {gpu.parent_uuid for gpu in reading.gpus if gpu.parent_uuid}
        return {
            gpu.uuid: Device(
                None if gpu.memory_total_bytes is None else gpu.memory_total_bytes >> 20,
                _profile(gpu.name, gpu.parent_uuid),
            )
            for gpu in reading.gpus
            if gpu.uuid not in sliced and not gpu.lost
        }
    known = from_agent(node.facts)
    if known.gpus is None:
        return None
    return {str(at): Device(known.gpu_memory_mib) for at in range(len(known.gpus))}


def _profile(name: str | None, parent: str | None) -> str:
    """`1g.10gb` of `NVIDIA H100 80GB HBM3 MIG 1g.10gb`; `?` of a slice that does not tell, so that it is taken for no whole GPU."""
    return "" if parent is None else (name or "").rpartition("MIG ")[2] or "?"
