"""`sluicegate node`: the nodes, and the memory that models hold there."""

from __future__ import annotations

import argparse
from typing import Any

from sluicegate.cli import exits
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verbs = commands.add_parser("node", help="List nodes, and the memory that models hold there").add_subparsers(
        metavar="VERB", required=True
    )
    verbs.add_parser("list", help="List nodes with what runs on them").set_defaults(run=run_list)
    verbs.add_parser("memory", help="List what each model holds on the nodes").set_defaults(run=run_memory)


def run_list(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        found = list(client.pages("/nodes"))
    rows = (
        [
            one["name"],
            one["state"],
            one["seen_at"] or "-",
            one["static_server"] or "-",
            "unknown" if one["gpus"] is None else ", ".join(one["gpus"]) or "none",
            _gpu_faults(one["gpus_read"]),
            f"{one['declared_memory_mib']} of {one['memory_mib'] or 'unknown'}",
            _or_unknown(one["measured_memory_mib"]),
            one["deployment_count"],
        ]
        for one in found
    )
    columns = (
        "node",
        "state",
        "heard",
        "static server",
        "gpus",
        "gpu faults",
        "MiB declared",
        "MiB held",
        "deployments",
    )
    output.table(found, columns, rows, empty="No node has been heard of: start an agent.")
    return exits.OK


def _gpu_faults(read: dict[str, Any]) -> str:
    """Also where the rest is unknown: a fault that was seen does not go away unseen."""
    found = [f"{gpu['uuid']}: {fault}" for gpu in read["gpus"] for fault in gpu["faults"]]
    unknown = [
        read["why_unknown"],
        *(f"{gpu['uuid']}: {', '.join(gpu['untold'])}" for gpu in read["gpus"] if gpu["untold"]),
    ]
    return "; ".join([*found, *(f"unknown: {one}" for one in unknown if one)]) or "none seen"


def run_memory(arguments: argparse.Namespace, output: Output) -> int:
    """Of models that sleep nothing is listed: they hold nothing."""
    with connect(arguments.server) as client:
        rows = list(client.pages("/nodes/memory"))
    columns = ("model", "environment", "servers", "MiB held", "MiB declared")
    shown = (
        [
            row["model"] or "another team's",
            row["environment"],
            row["servers"],
            _or_unknown(row["measured_mib"]),
            row["declared_mib"],
        ]
        for row in rows
    )
    output.table(rows, columns, shown, empty="No model holds anything: nothing runs on any node.")
    return exits.OK


def _or_unknown(size: int | None) -> str:
    return "unknown" if size is None else str(size)
