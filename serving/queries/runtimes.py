"""The runtime images that a release may name, by who offers them."""

from __future__ import annotations

from typing import Any

from serving.queries.deployments import nodes


def offered_runtimes() -> list[dict[str, Any]]:
    """[{image, server, backends, nodes}], each image once, by its name."""
    found: dict[str, dict[str, Any]] = {}
    for node in nodes():
        for own in node.runtimes:
            one = found.setdefault(
                str(own.get("image", "")),
                {
                    "image": str(own.get("image", "")),
                    "server": str(own.get("server", "triton")),
                    "backends": [],
                    "nodes": [],
                },
            )
            one["backends"] = sorted({*one["backends"], *own.get("backends", [])})
            one["nodes"].append(node.name)
    return [found[image] for image in sorted(found) if image]
