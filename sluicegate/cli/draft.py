"""`sluicegate draft`: releases on their way in, and an end to those that nobody goes on with."""

from __future__ import annotations

import argparse
import re

from accounts.core.quantities import size_text
from sluicegate.cli import exits
from sluicegate.cli.errors import refuse
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verbs = commands.add_parser("draft", help="List and discard drafts of releases").add_subparsers(
        metavar="VERB", required=True
    )
    parser = verbs.add_parser("list", help="Drafts of your teams, and how much of each is there")
    parser.add_argument("--model", metavar="MODEL", help="of this model alone")
    parser.set_defaults(run=run_list)
    parser = verbs.add_parser("discard", help="Discard a draft, with what nothing else has of its bytes")
    parser.add_argument("draft", metavar="ID", help="as `draft list` prints it")
    parser.set_defaults(run=run_discard)


def run_list(arguments: argparse.Namespace, output: Output) -> int:
    asked = {"model": arguments.model} if arguments.model else {}
    with connect(arguments.server) as client:
        found = list(client.pages("/drafts", **asked))
    rows = (
        [
            one["id"],
            one["model"],
            one["author"],
            one["created_at"],
            f"{one['held_files']} of {one['announced_files'] or '?'}",
            f"{size_text(one['held_bytes'])} of {size_text(one['announced_bytes'])}",
        ]
        for one in found
    )
    output.table(found, ("draft", "model", "by", "begun", "files", "there"), rows, empty="There are no drafts.")
    return exits.OK


def run_discard(arguments: argparse.Namespace, output: Output) -> int:
    """At the version that is there now: a push that goes on with it meanwhile keeps it."""
    if not _ID.fullmatch(arguments.draft):
        raise refuse(f"{arguments.draft} is not the id of a draft.", "Copy it from `sluicegate draft list`.")
    with connect(arguments.server) as client:
        seen = client.get(f"/releases/{arguments.draft}")
        client.delete(f"/releases/{arguments.draft}", version=seen["version"])
    output.result({"discarded": arguments.draft}, [f"Draft {arguments.draft} is discarded."])
    return exits.OK
