"""`sluicegate node`: the nodes, keeping new deployments off one, and emptying it."""

from __future__ import annotations

import argparse
from typing import Any

from sluicegate.cli import exits
from sluicegate.cli.errors import refuse
from sluicegate.cli.output import Output
from sluicegate.cli.plans import consent, is_agreed
from sluicegate.cli.session import connect
from sluicegate.cli.settings_values import add_yes
from sluicegate.client.names import node_path


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verbs = commands.add_parser("node", help="List nodes, and keep new deployments off one").add_subparsers(
        metavar="VERB", required=True
    )
    verbs.add_parser("list", help="List nodes with what runs on them").set_defaults(run=run_list)
    verbs.add_parser("memory", help="List what each model holds on the nodes").set_defaults(run=run_memory)
    for verb, said in (
        ("cordon", "Place no new deployment on a node; those that it has stay (administrators)"),
        ("uncordon", "Let a node be given deployments again (administrators)"),
    ):
        parser = verbs.add_parser(verb, help=said)
        parser.add_argument("node", metavar="NODE")
        parser.add_argument("--reason", default="", help="told in the log")
        parser.set_defaults(run=run_verb, verb=verb)
    remove = verbs.add_parser("remove", help="Take a node off the list that is empty, or lost (administrators)")
    remove.add_argument("node", metavar="NODE")
    remove.add_argument("--reason", default="", help="told in the log")
    remove.set_defaults(run=run_remove)
    drain = verbs.add_parser("drain", help="Cordon a node and empty it: what serves users is started elsewhere first")
    drain.add_argument("node", metavar="NODE")
    drain.add_argument("--reason", default="", help="told in the log")
    drain.add_argument("--deployment", type=int, help="this deployment alone; the node takes new ones as before")
    add_yes(drain)
    drain.set_defaults(run=run_drain)


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
            one["cordon_reason"],
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
        "why cordoned",
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


def run_verb(arguments: argparse.Namespace, output: Output) -> int:
    body, address = {"reason": arguments.reason}, f"{node_path(arguments.node)}/{arguments.verb}"
    with connect(arguments.server) as client:
        if arguments.verb == "cordon":
            node = client.post(address, body, is_any_version=True)
        else:
            known = {one["name"]: one["version"] for one in client.pages("/nodes")}
            if arguments.node not in known:
                raise refuse(f"No node {arguments.node} has been heard of.", "List them: sluicegate node list.")
            node = client.post(address, body, version=known[arguments.node])
    said = "is given no new deployment" if node["state"] == "cordoned" else "may be given deployments again"
    output.result(node, [f"{node['name']} {said}."])
    return exits.OK


def run_remove(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        address = f"{node_path(arguments.node)}/remove"
        found = client.post(address, {"reason": arguments.reason}, is_any_version=True)
    said = f"{arguments.node} is on no list any more. An agent of that name brings it back, cordoned."
    output.result(found, [said])
    return exits.OK


def run_drain(arguments: argparse.Namespace, output: Output) -> int:
    """Tells what would become of each deployment, and does that after a yes, and nothing else; with `--yes` what is due by then."""
    address = f"{node_path(arguments.node)}/drain"
    of_one = {"deployment": arguments.deployment} if arguments.deployment is not None else {}
    with connect(arguments.server) as client:
        plan = client.get(address, **of_one)
        what = (
            f"Deployment {arguments.deployment} is drained." if of_one else f"{arguments.node} is cordoned and emptied."
        )
        if not is_agreed(arguments, output, plan, _steps_of(plan), what):
            return exits.OK
        body = {"reason": arguments.reason, **consent(arguments, plan), **of_one}
        found = client.post(address, body, is_any_version=True)
    output.result({**found, "is_done": True}, [f"{what} As it stands:", *_steps_of(found)])
    return exits.OK


def _steps_of(plan: dict[str, Any]) -> list[str]:
    return [f"{one['fate']}: {one['says']}" for one in plan["steps"]] or [f"Nothing runs on {plan['node']}."]
