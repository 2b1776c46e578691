"""`sluicegate session list|revoke`: where somebody is signed in by a browser, and an end to it."""

from __future__ import annotations

import argparse

from sluicegate.cli import exits
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect
from sluicegate.cli.settings_values import add_yes, require_yes
from sluicegate.cli.users import address_of
from sluicegate.client import Client

HELP = "Where you are signed in by a browser, and an end to it"
COLUMNS = ("session", "browser", "address", "by", "begun", "last used")
EXAMPLES = """examples:
  sluicegate session list
  sluicegate session revoke 17
  sluicegate session revoke 17 --user ann --yes      # administrators
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "session", help=HELP, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    parser = verbs.add_parser("list", help="List living sessions, the latest used first")
    _add_user(parser)
    parser.set_defaults(run=run_list)
    parser = verbs.add_parser("revoke", help="Sign out there, at once")
    parser.add_argument("session", type=int, metavar="SESSION", help="its number in the list")
    _add_user(parser)
    add_yes(parser)
    parser.set_defaults(run=run_revoke)


def _add_user(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--user", metavar="USERNAME", help="somebody else's (administrators); left out: your own")


def _sessions_of(client: Client, arguments: argparse.Namespace) -> str:
    return address_of(arguments.user or str(client.get("/me")["username"]), "/sessions")


def run_list(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        rows = client.get(_sessions_of(client, arguments))["results"]
    cells = [
        (row["id"], row["browser"], row["address"], row["issuer"] or "password", row["begun_at"], row["seen_at"])
        for row in rows
    ]
    output.table(rows, COLUMNS, cells, empty="Signed in nowhere.")
    return exits.OK


def run_revoke(arguments: argparse.Namespace, output: Output) -> int:
    require_yes(arguments, f"Session {arguments.session} ends, and what is typed there is lost.")
    with connect(arguments.server) as client:
        client.delete(f"{_sessions_of(client, arguments)}/{arguments.session}")
    output.result({"session": arguments.session}, [f"Session {arguments.session} has ended."])
    return exits.OK
