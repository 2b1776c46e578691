"""Node fit: which nodes a release fits, by its envelope and what their agents report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db.models import BooleanField, ExpressionWrapper, F, Q, QuerySet, Subquery

from registry.core.file_lint import plan_facts
from registry.core.fit import SEVERITY, Fit, Reason, Verdict, fit
from registry.core.gpu_memory import MemoryEstimate, asks_for_gpu
from registry.core.kinds import backend_of, runtime_of
from registry.core.node_facts import NodeFacts, from_agent, from_labels
from registry.core.spec import Spec
from registry.models import Release
from registry.queries import manifest_of
from registry.queries.file_headers import headers_of_files
from registry.queries.gpu_memory import estimate_in
from serving.environments.queries.inventory import nodes, open_to, replicas_in, with_listing
from serving.models import Environment, Node
from serving.targets.core.containment import may_run_code, of_facts

LAST_HEARD_OF = F("seen_at").desc(nulls_last=True)


@dataclass(frozen=True)
class _Headers:
    """Facts for a fit from the headers of the release's files: those of the engine plan, and the GPU memory."""

    plan: Mapping[str, Any] = field(default_factory=dict)
    estimate: MemoryEstimate | None = None


def _fit_of(manifest: Mapping[str, Any], node: Node, headers: _Headers) -> Fit:
    runtime = runtime_of(manifest)
    versions = next((own.get("versions") for own in node.runtimes if own.get("image") == runtime["image"]), None)
    facts = from_agent(node.facts, versions)
    return _fit(manifest, facts, headers)


def _fit(manifest: Mapping[str, Any], facts: NodeFacts, headers: _Headers) -> Fit:
    backend = backend_of(manifest)
    return fit(manifest["envelope"], facts, backend=backend, plan=headers.plan, estimate=headers.estimate)


def _headers_in(manifest: Mapping[str, Any]) -> _Headers:
    """Of a sealed release, by the headers that were read at the seal. One query, if the release asks for a GPU."""
    if not asks_for_gpu(backend_of(manifest), manifest["serving"], manifest["envelope"]):
        return _Headers()
    headers = headers_of_files(manifest["files"])
    return _Headers(plan_facts(headers), estimate_in(manifest, headers))


def fits_of(release: Release, among: Iterable[Node] | None = None) -> list[dict[str, Any]]:
    """Every node by name, or each `among` these: [{"node", "has_runtime", "seen_at", "containment", "contained", "verdict", "reasons",
    "gpu_memory_estimate"}]."""
    manifest = manifest_of(release)
    headers = _headers_in(manifest)
    return [
        {
            "node": node.name,
            "has_runtime": _offers(node, runtime_of(manifest)),
            "seen_at": node.seen_at,
            "containment": (contained := of_facts(node.facts)).value,
            "contained": contained.sentence,
            **_with_runtime(manifest, node, headers).as_json(),
        }
        for node in (nodes() if among is None else among)
    ]


def _with_runtime(manifest: Mapping[str, Any], node: Node, headers: _Headers) -> Fit:
    """The fit, which is no if the node does not offer the runtime image with the backend."""
    found = _fit_of(manifest, node, headers)
    if _offers(node, runtime_of(manifest)):
        return found
    why = f"The node does not offer {_runtime_text(runtime_of(manifest))}; it offers {offers_of([node])}."
    return Fit(Verdict.NO, (Reason("runtime", Verdict.NO, why), *found.reasons), found.estimate)


def _offers(node: Node, runtime: Mapping[str, Any]) -> bool:
    return any(own["image"] == runtime["image"] and runtime["backend"] in own["backends"] for own in node.runtimes)


def _runtime_text(runtime: Mapping[str, Any]) -> str:
    return f"the image {runtime['image']} with the backend {runtime['backend']}"


def offers_of(among: Iterable[Node]) -> str:
    """`triton-local@sha256:… (sluicegate-onnx, python)` for each image that a node offers; `nothing` without any."""
    found = dict[str, set[str]]()
    for own in (own for node in among for own in node.runtimes):
        found.setdefault(str(own["image"]), set()).update(own["backends"])
    return ", ".join(f"{image} ({', '.join(sorted(found[image]))})" for image in sorted(found)) or "nothing"


def no_runtime(runtime: Mapping[str, Any], among: Iterable[Node]) -> str:
    """The sentence for a runtime that none of these nodes offers."""
    return f"No node offers {_runtime_text(runtime)}; the nodes offer {offers_of(among)}."


def offering(release: Release, among: Iterable[Node]) -> list[tuple[Node, Fit]]:
    """Those of the nodes that offer the release's image and backend, each with its fit."""
    manifest = manifest_of(release)
    free = [node for node in among if _offers(node, runtime_of(manifest))]
    headers = _headers_in(manifest) if free else _Headers()
    return [(node, _fit_of(manifest, node, headers)) for node in free]


def nodes_for(release: Release, among: Iterable[Node]) -> list[Node]:
    """Those of the nodes that may be given the release: the ones that may run its code and that it fits first.

    One that contradicts the envelope is left out: see `why_refused`. One that does not run code that it cannot shut in comes last.
    """

    def rank(found: tuple[Node, Fit]) -> tuple[bool, int]:
        node, its = found
        return release.is_code_bearing and not may_run_code(node.facts), SEVERITY.index(its.verdict)

    fitting = [one for one in offering(release, among) if one[1].verdict is not Verdict.NO]
    return [node for node, _ in sorted(fitting, key=rank)]


def why_refused(release: Release, among: Iterable[Node]) -> list[str]:
    """A sentence for each of the nodes that offer the release's runtime and contradict its envelope or its engine plan."""
    return [
        f"{node.name}: {its.reasons[0].message}" for node, its in offering(release, among) if its.verdict is Verdict.NO
    ]


@dataclass(frozen=True)
class DraftFits:
    """Nodes for a release that is not sealed yet. `runs_nowhere`: why on no node; empty if a node may take it.

    `warnings`: a sentence for each node that offers its runtime and cannot load its engine plan.
    """

    runs_nowhere: str = ""
    warnings: tuple[str, ...] = ()


def draft_fits(spec: Spec, plan: Mapping[str, Any]) -> DraftFits:
    """By the rules of `fits_of`, on every known node. `plan`: the facts in the header of the engine plan."""
    draft = {"runtime": spec.runtime, "envelope": spec.envelope}
    every = list(nodes().order_by("name"))
    found = [(node, _fit_of(draft, node, _Headers(plan))) for node in every if _offers(node, draft["runtime"])]
    warnings = tuple(f"{node.name}: {why.message}" for node, its in found if (why := its.cannot_load))
    if not found:
        return DraftFits(no_runtime(draft["runtime"], every))
    refused = [f"{node.name}: {its.reasons[0].message}" for node, its in found if its.verdict is Verdict.NO]
    nowhere = f"It fits no node with its runtime: {' '.join(refused)}" if len(refused) == len(found) else ""
    return DraftFits(nowhere, warnings)


def next_node(release: Release) -> Node | None:
    """The node that a new replica is given: one that its envelope fits before others, then machines before listed servers, and
    the last heard of first."""
    is_machine = ExpressionWrapper(Q(listing=None), BooleanField())
    free = nodes().order_by(is_machine.desc(), LAST_HEARD_OF)
    return next(iter(nodes_for(release, free)), None)


@dataclass(frozen=True)
class Places:
    """Where a release may serve: the node that serves it `here`, None where none does, and those that take replicas, the last
    heard of first."""

    here: Node | None
    free: tuple[Node, ...]

    def of(self, release: Release) -> Node | None:
        """The node that serves it, else the `next_node`."""
        return self.here or next(iter(nodes_for(release, self.free)), None)


def places_for(release: Release, environment: Environment) -> Places:
    """Where the release may serve in the environment. One query."""
    rows = list(_places(release=release.pk, environment=environment.pk))
    here = next((node for node in rows if node.is_here), None)
    return Places(here, tuple(node for node in open_to(environment, rows) if node.removed_at is None))


def _places(release: UUID, environment: int) -> QuerySet[Any, Any]:
    serving = replicas_in(release, environment).values("node")[:1]
    is_here = ExpressionWrapper(Q(pk=Subquery(serving)), BooleanField())
    rows = with_listing(Node.objects.all()).annotate(is_here=is_here).filter(Q(removed_at=None) | Q(is_here=True))
    return rows.order_by(LAST_HEARD_OF)


def fit_labels(release: Release, labels: Mapping[str, Any]) -> Fit:
    """The verdict on a node that only its labels are known of."""
    manifest = manifest_of(release)
    return _fit(manifest, from_labels(labels), _headers_in(manifest))
