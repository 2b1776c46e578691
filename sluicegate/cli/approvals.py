"""`sluicegate approvals`: what waits for a yes, over all rollouts and releases."""

from __future__ import annotations

import argparse

from sluicegate.cli import exits
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect

ABOUT = """Stages of rollouts that wait for an approval, and releases with code that wait for a waiver. Decide with
`sluicegate rollout approve ROLLOUT` or `sluicegate waive RELEASE`."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("approvals", help="List what waits for an approval", description=ABOUT)
    parser.add_argument("--mine", action="store_true", help="only what you may decide")
    parser.set_defaults(run=run_list)


def run_list(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        found = list(client.pages("/approvals", mine=arguments.mine))
    rows = (
        [
            one["rollout"] or "-",
            f"{one['model']}/{one['release']}",
            one["environment"] or "-",
            one["stage"] or f"waiver: {', '.join(one['kinds'])}",
            f"{len(one['by'])} of {one['needed']}" if one["needed"] else "-",
            one["since"],
            "you" if one["may_decide"] else one["why_not"],
        ]
        for one in found
    )
    columns = ("rollout", "release", "environment", "stage", "given", "since", "waits for")
    output.table(found, columns, rows, empty="Nothing waits for an approval.")
    return exits.OK
