"""`sluicegate release fit`: on which nodes a release fits, or whether it fits one that labels describe."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from sluicegate.cli import exits
from sluicegate.cli.errors import refuse
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect
from sluicegate.client.names import release_path


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "fit",
        help="Which nodes the release's envelope fits (exit 1 where it is sure of none)",
        description="Ends with 0 when it fits a node, and with 1 when every answer is no or unknown.",
    )
    parser.add_argument("release", metavar="RELEASE")
    parser.add_argument(
        "--labels", type=Path, metavar="JSON", help="ask about one node by its labels: kubectl get node NAME -o json"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    labels = None if arguments.labels is None else read_labels(arguments.labels)
    with connect(arguments.server) as client:
        path = f"{release_path(arguments.release)}/fit"
        if labels is None:
            found = list(client.pages(path))
        else:
            found = [{"node": str(arguments.labels), "has_runtime": None, **client.post(path, {"labels": labels})}]
    lines = [line for one in found for line in _lines(one)]
    lines += memory_lines(found[0]["gpu_memory_estimate"]) if found else []
    output.result({"release": arguments.release, "nodes": found}, lines or ["No node has been heard of."])
    return exits.OK if any(one["verdict"] == "yes" for one in found) else exits.FAILED


def read_labels(path: Path) -> dict[str, Any]:
    """The labels in a file: of a node as kubectl prints it, or bare. Raises CommandError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise refuse(f"{path} cannot be read: {error}.", "Write it with kubectl get node NAME -o json.") from error
    metadata = document.get("metadata") if isinstance(document, dict) else None
    labels = metadata.get("labels") if isinstance(metadata, dict) else document
    if not isinstance(labels, dict):
        raise refuse(f"{path} holds no labels.", "Write it with kubectl get node NAME -o json.")
    return labels


def memory_lines(estimate: dict[str, Any] | None) -> list[str]:
    """The estimate of a release's GPU memory, a line for each part."""
    if estimate is None:
        return []
    without = ", without its unknown parts" if estimate["is_partial"] else ""
    parts = [f"  {one['name']} {_amount(one)}: {one['source']}" for one in estimate["parts"]]
    return [
        f"GPU memory, an estimate before the run: about {estimate['total_mib']} MiB on each device{without}",
        *parts,
    ]


def _amount(part: dict[str, Any]) -> str:
    return "unknown" if part["mib"] is None else f"{part['mib']} MiB{' and more' * part['is_partial']}"


def _lines(one: dict[str, Any]) -> list[str]:
    lacks = "; labels do not state which runtime images it offers" if one["has_runtime"] is None else ""
    told = [f"  {reason['verdict']} {reason['field']}: {reason['message']}" for reason in one["reasons"]]
    contained = [f"  containment {one['containment']}: {one['contained']}"] if "containment" in one else []
    return [f"{one['node']}: {one['verdict']}{lacks}", *told, *contained]
