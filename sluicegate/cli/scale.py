"""`sluicegate release replicas`, `scale` and `replace`: how many servers a release has, is to have, another in the place of one."""

from __future__ import annotations

import argparse
from typing import Any

from sluicegate.cli import exits
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect
from sluicegate.client.names import release_path


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    told = verbs.add_parser("replicas", help="Show a release's replicas in each environment")
    told.add_argument("release", metavar="RELEASE")
    told.set_defaults(run=run_replicas)
    scale = verbs.add_parser("scale", help="Say how many replicas of a release an environment is to have")
    scale.add_argument("release", metavar="RELEASE")
    scale.add_argument("replicas", type=int, metavar="N")
    scale.add_argument("--environment", default="production", metavar="ENVIRONMENT", help="(production)")
    scale.add_argument("--reason", default="", help="told in the log")
    scale.set_defaults(run=run_scale)
    replace = verbs.add_parser("replace", help="Bring up another replica in the place of one, which then goes")
    replace.add_argument("release", metavar="RELEASE")
    replace.add_argument("deployment", type=int, metavar="DEPLOYMENT", help="its number in `release replicas`")
    replace.add_argument("--set-aside", action="store_true", help="it is unwell: gateways send it nothing from now on")
    replace.add_argument("--reason", default="", help="told in the log")
    replace.set_defaults(run=run_replace)


def run_replicas(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        found = client.get(f"{release_path(arguments.release)}/replicas")["results"]
    rows = (
        [
            *(one["environment"], one["wanted"], one["answering"], _admission(one["admission"])),
            *(replica["node"], replica["slot"], replica["deployment"], _state(replica)),
        ]
        for one in found
        for replica in one["replicas"]
    )
    columns = ("environment", "wanted", "answer", "in flight on each", "node", "slot", "deployment", "state")
    output.table(found, columns, rows, empty=f"{arguments.release} has no server anywhere. A rollout brings it there.")
    return exits.OK


def run_scale(arguments: argparse.Namespace, output: Output) -> int:
    body = {"environment": arguments.environment, "replicas": arguments.replicas, "reason": arguments.reason}
    with connect(arguments.server) as client:
        found = client.post(f"{release_path(arguments.release)}/replicas", body, is_any_version=True)
    said = f"{arguments.release} is to have {_counted(found['wanted'])} in {found['environment']}; {found['answering']} answer now."
    output.result(found, [said, f"See them come: sluicegate release replicas {arguments.release}"])
    return exits.OK


def run_replace(arguments: argparse.Namespace, output: Output) -> int:
    body = {name: getattr(arguments, name) for name in ("deployment", "set_aside", "reason")}
    with connect(arguments.server) as client:
        found = client.post(f"{release_path(arguments.release)}/replicas/replace", body)
    every = {one["deployment"]: one for one in found["replicas"]}
    old = every[arguments.deployment]
    new = next(one for one in found["replicas"] if one["slot"] == old["slot"] and not one["is_leaving"])
    keeps = "gets no more traffic" if old["is_set_aside"] else "answers until as many others do as are wanted"
    said = f"Replica {new['deployment']} on {new['node']} takes the place of {old['deployment']} on {old['node']}, which {keeps}."
    output.result(found, [said, f"See it come: sluicegate release replicas {arguments.release}"])
    return exits.OK


def _counted(replicas: int) -> str:
    return f"{replicas} replica{'s' * (replicas != 1)}"


def _admission(admission: dict[str, Any]) -> str:
    return f"{admission['in_flight']} ({admission['basis']})"


def _state(replica: dict[str, Any]) -> str:
    if replica["is_silent"]:
        return "its node's agent does not report"
    if replica["is_set_aside"]:
        return "set aside"
    if replica["is_leaving"]:
        return "leaving"
    return "failed" if replica["has_failed"] else "answers" if replica["answers"] else "comes up"
