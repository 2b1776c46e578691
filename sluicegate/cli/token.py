"""`sluicegate token create|list|revoke`: what lets programs in, with no more than they need."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from sluicegate.cli import exits
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect
from sluicegate.client import Client

COLUMNS = ("token", "name", "begins with", "may", "models", "last used", "ends", "state")


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verbs = commands.add_parser("token", help="Tokens for programs, with as little scope as they need").add_subparsers(
        metavar="VERB", required=True
    )
    parser = verbs.add_parser("create", help="Issue a token; its secret is shown once")
    parser.add_argument("--name", default="robot", help="name of the token")
    parser.add_argument(
        "--scope",
        action="append",
        metavar="VERB",
        help="permissions: a verb such as release.push, or a role such as ci or viewer for all of its verbs; may be "
        "given several times; left out: all that the user may",
    )
    parser.add_argument(
        "--model",
        action="append",
        metavar="MODEL",
        help="a model, or a pattern such as search-*; may be given several times; left out: every model",
    )
    parser.add_argument("--days", type=float, help="how long it lives; else as the installation has it")
    _add_user(parser)
    parser.set_defaults(run=run_create)
    parser = verbs.add_parser("list", help="List tokens, and when each was last used")
    _add_user(parser)
    parser.set_defaults(run=run_list)
    parser = verbs.add_parser("revoke", help="End a token at once")
    parser.add_argument("token", type=int, metavar="TOKEN", help="its number in the list")
    _add_user(parser)
    parser.set_defaults(run=run_revoke)


def _add_user(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--user", metavar="USERNAME", help="another person's (administrators); default: your own")


def _tokens_of(client: Client, arguments: argparse.Namespace) -> str:
    username = arguments.user or str(client.get("/me")["username"])
    return f"/users/{quote(username, safe='')}/tokens"


def run_create(arguments: argparse.Namespace, output: Output) -> int:
    body = {"name": arguments.name, "verbs": arguments.scope, "models": arguments.model}
    if arguments.days is not None:  # else the installation decides
        body["expires_at"] = (datetime.now(UTC) + timedelta(days=arguments.days)).isoformat()
    with connect(arguments.server) as client:
        made = client.post(_tokens_of(client, arguments), body)
    output.result(made, [str(made["token"])])
    return exits.OK


def run_list(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        rows = client.get(_tokens_of(client, arguments))["results"]
    output.table(rows, COLUMNS, [_cells(row) for row in rows], empty="There are no tokens.")
    return exits.OK


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    verbs, models = row["verbs"], row["models"]
    return (
        str(row["id"]),
        row["name"],
        row["prefix"],
        "everything" if verbs is None else ", ".join(verbs),
        "all" if models is None else ", ".join(models),
        row["last_used_at"] or "never",
        row["expires_at"] or "never",
        "revoked" if row["revoked_at"] else "rotated" if row["rotated_at"] else "",
    )


def run_revoke(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        client.delete(f"{_tokens_of(client, arguments)}/{arguments.token}")
    output.result({"token": arguments.token}, [f"Token {arguments.token} has ended."])
    return exits.OK
