"""`sluicegate environment list|show`: where releases run, and the rules for entering."""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import quote

from sluicegate.cli import exits
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect

HELP = "List and show environments: what serves there, and the rules for entering"
COLUMNS = ("environment", "title", "gateways", "models served", "asks for")


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verbs = commands.add_parser("environment", help=HELP).add_subparsers(metavar="VERB", required=True)
    parser = verbs.add_parser("list", help="List environments")
    parser.add_argument("--retired", action="store_true", help="also those that are retired")
    parser.set_defaults(run=run_list)
    parser = verbs.add_parser("show", help="Show one: its rules, gateways and routes")
    parser.add_argument("environment", metavar="ENVIRONMENT")
    parser.set_defaults(run=run_show)


def run_list(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        rows = list(client.pages("/environments", limit=None, retired="true" if arguments.retired else "false"))
    cells = [(row["slug"], _titled(row), len(row["gateways"]), len(row["routes"]), _asks_for(row)) for row in rows]
    output.table(
        rows, COLUMNS, cells, empty="No environment yet. Make one: sluicegate api POST /environments slug=NAME"
    )
    return exits.OK


def run_show(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        row = client.get(f"/environments/{quote(arguments.environment, safe='')}")
    routes = [f"  {one['model']}: {route_line(one)}" for one in row["routes"]]
    gateways = ", ".join(one["name"] for one in row["gateways"]) or "none"
    key = row["forced_release_key"]
    forced = [f"forced releases: by the header x-sluicegate-release-key: {key}"] if key else []
    about = [f"{row['slug']}: {_titled(row)}", f"asks for: {_asks_for(row)}", f"gateways: {gateways}"]
    output.result(row, [*about, *forced, *routes])
    return exits.OK


def route_line(route: dict[str, Any]) -> str:
    """What serves on a route of the API, at which weights, and how many of stable's servers answer."""
    candidate = f", {route['candidate']} at {route['candidate_bp'] / 100:g} %" if route["candidate"] else ""
    health = route["health"]
    silent = f"; no report from {', '.join(health['silent_nodes'])}" if health["silent_nodes"] else ""
    count = f"{health['answering']} of {health['wanted']} servers answer"
    return f"{route['stable']}{candidate}; {health['state']}, {count}{silent}"


def _titled(row: dict[str, Any]) -> str:
    return f"{row['title']} (retired)" if row["retired_at"] else str(row["title"])


def _asks_for(row: dict[str, Any]) -> str:
    found = [
        text
        for name, text in (("needs_passed_report", "a passed report"), ("needs_approval", "an approval"))
        if row[name]
    ]
    return " and ".join(found) or "nothing"
