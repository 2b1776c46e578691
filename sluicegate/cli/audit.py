"""`sluicegate audit verify`: checks whether the log of events is whole."""

from __future__ import annotations

import argparse

from sluicegate.cli import exits
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verbs = commands.add_parser("audit", help="Check the log of events").add_subparsers(metavar="VERB", required=True)
    parser = verbs.add_parser("verify", help="Recompute the hash chain of all events (exit 1 if it is broken)")
    parser.add_argument("--head", metavar="SEQ:HASH", help="as noted elsewhere: the log must still have this event")
    parser.set_defaults(run=run_verify)


def run_verify(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        chain = client.get("/audit", **({"head": arguments.head} if arguments.head else {}))
    whole = [f"{chain['events']} events, the chain is whole. Head: {chain['head_seq']}:{chain['head']}"]
    broken = [f"The chain is broken at event {chain['broken_at']}: {chain['problem']}"]
    output.result(chain, whole if chain["is_whole"] else broken)
    return exits.OK if chain["is_whole"] else exits.FAILED
