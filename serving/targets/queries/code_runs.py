"""What a release's own code may do on each node that it could run on."""

from __future__ import annotations

from collections.abc import Iterator

from registry.hooks.code_runs import CodeRun
from registry.models import Release
from serving.environments.queries.inventory import nodes
from serving.targets.core import containment
from serving.targets.queries.node_fit import nodes_for


def code_runs(release: Release) -> Iterator[CodeRun]:
    for node in nodes_for(release, nodes()):
        tier = containment.of_facts(node.facts)
        yield CodeRun(
            node=node.name,
            containment=tier.value,
            says=tier.sentence,
            may_run=containment.may_run_code(node.facts),
        )
