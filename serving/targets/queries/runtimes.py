"""The runtime images that a release may name, by who offers them."""

from __future__ import annotations

from typing import Any

from registry.adapters.capability_evidence import capabilities
from registry.core.capabilities import states_of
from registry.core.kinds import DEFAULT
from serving.environments.queries.inventory import nodes
from serving.models import Node


def runtimes_with_states(node: Node) -> list[dict[str, Any]]:
    """The node's runtime images, each with `states`: whether its server and backends were run (`registry.core.capabilities`)."""
    rows = capabilities()
    return [{**own, "states": states_of(rows, own.get("server", ""), own.get("backends", []))} for own in node.runtimes]


def offered_runtimes() -> list[dict[str, Any]]:
    """[{image, server, backends, nodes}], each image once, by its name."""
    found: dict[str, dict[str, Any]] = {}
    for node in nodes():
        for own in node.runtimes:
            one = found.setdefault(
                str(own.get("image", "")),
                {
                    "image": str(own.get("image", "")),
                    "server": str(own.get("server", DEFAULT)),
                    "backends": [],
                    "nodes": [],
                },
            )
            one["backends"] = sorted({*one["backends"], *own.get("backends", [])})
            one["nodes"].append(node.name)
    return [found[image] for image in sorted(found) if image]
