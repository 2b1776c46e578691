"""`sluicegate audit`: search the log of events, and check whether it is whole."""

from __future__ import annotations

import argparse

from sluicegate.cli import exits
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect

_FILTERS = {
    "actor": "by whom, exactly",
    "verb": "rollout.paused, or 'rollout.*'",
    "subject_type": "such as rollout",
    "subject_id": "its number or name",
    "model": "about which model",
    "environment": "where",
    "since": "2026-03-01T12:00:00Z, or 2h for two hours ago",
    "until": "the same",
}


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verbs = commands.add_parser("audit", help="Search and check the log of events").add_subparsers(
        metavar="VERB", required=True
    )
    parser = verbs.add_parser("verify", help="Recompute the hash chain of all events (exit 1 if it is broken)")
    parser.add_argument("--head", metavar="SEQ:HASH", help="as noted elsewhere: the log must still have this event")
    parser.set_defaults(run=run_verify)
    parser = verbs.add_parser("list", help="List events, the newest first")
    parser.add_argument(
        "words",
        nargs="*",
        metavar="WORD",
        help="words or their beginnings; also rollout 3, sentiment/r4, r4, or a name",
    )
    for name, said in _FILTERS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", metavar=name.upper(), default="", help=said)
    parser.add_argument("--limit", type=int, default=50, metavar="N")
    parser.set_defaults(run=run_list)


def run_list(arguments: argparse.Namespace, output: Output) -> int:
    wanted = {name: getattr(arguments, name) for name in _FILTERS} | {"q": " ".join(arguments.words)}
    with connect(arguments.server) as client:
        asked = {name: value for name, value in wanted.items() if value}
        found = list(client.pages("/events", limit=arguments.limit, **asked))
    rows = (
        [one["seq"], one["at"], one["verb"], f"{one['subject_type']} {one['subject_id']}", one["actor"], one["reason"]]
        for one in found
    )
    columns = ("event", "at", "what", "subject", "who", "why")
    output.table(found, columns, rows, empty="Nothing is recorded of that.")
    return exits.OK


def run_verify(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        chain = client.get("/audit", **({"head": arguments.head} if arguments.head else {}))
    whole = [f"{chain['events']} events, the chain is whole. Head: {chain['head_seq']}:{chain['head']}"]
    broken = [f"The chain is broken at event {chain['broken_at']}: {chain['problem']}"]
    output.result(chain, whole if chain["is_whole"] else broken)
    return exits.OK if chain["is_whole"] else exits.FAILED
