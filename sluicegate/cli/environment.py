"""`sluicegate environment list|show|create|change|remove|restore`: where releases run, and the rules for entering."""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import quote

from sluicegate.cli import exits
from sluicegate.cli.output import Output
from sluicegate.cli.plans import consent, is_agreed
from sluicegate.cli.session import connect
from sluicegate.cli.settings_values import add_file, add_yes, changed, values_of

HELP = "Environments, and the rules for entering them"
RULES = {
    "needs_passed_report": "a rollout starts only with a passed report",
    "needs_approval": "every rollout waits for an approval at its start; on in a new environment with a gateway",
    "allows_forced_release": "a request that shows the key may choose its release by x-sluicegate-release",
}
COLUMNS = ("environment", "title", "gateways", "models served", "asks for")
EXAMPLES = """examples:
  sluicegate environment create canary --title "Canary, Frankfurt" --needs-passed-report
  sluicegate environment change production --needs-approval
  sluicegate environment change staging --file staging.yaml      # title: Staging
  sluicegate environment remove canary                            # tells what would go, and asks
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "environment", help=HELP, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    parser = verbs.add_parser("list", help="List environments")
    parser.add_argument("--retired", action="store_true", help="also those that are retired")
    parser.set_defaults(run=run_list)
    parser = verbs.add_parser("show", help="Show one: its rules, gateways and routes")
    parser.add_argument("environment", metavar="ENVIRONMENT")
    parser.set_defaults(run=run_show)
    for verb, run, text in (
        ("create", run_create, "Make one (administrators)"),
        ("change", run_change, "Change its title and the rules for entering it (administrators)"),
    ):
        parser = verbs.add_parser(
            verb, help=text, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("environment", metavar="ENVIRONMENT", help="its short name, such as production")
        parser.add_argument("--title")
        for name, about in RULES.items():
            parser.add_argument(f"--{name.replace('_', '-')}", action=argparse.BooleanOptionalAction, help=about)
        if verb == "create":
            parser.add_argument(
                "--routed",
                dest="is_routed",
                action=argparse.BooleanOptionalAction,
                help="a gateway serves it (yes); without one, gates talk to its servers directly",
            )
        add_file(parser)
        parser.set_defaults(run=run)
    for verb, run, text in (
        ("remove", run_remove, "Delete one in which nothing ever ran; retire any other (administrators)"),
        ("restore", run_restore, "Bring a retired one back (administrators)"),
    ):
        parser = verbs.add_parser(verb, help=text)
        parser.add_argument("environment", metavar="ENVIRONMENT")
        parser.add_argument("--reason", default="", help="told in the log")
        if verb == "remove":
            add_yes(parser)
        parser.set_defaults(run=run)


def run_list(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        rows = list(client.pages("/environments", limit=None, retired="true" if arguments.retired else "false"))
    cells = [(row["slug"], _titled(row), len(row["gateways"]), len(row["routes"]), _asks_for(row)) for row in rows]
    output.table(rows, COLUMNS, cells, empty="No environment yet. Make one: sluicegate environment create NAME")
    return exits.OK


def run_show(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        row = client.get(_path(arguments.environment))
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


def run_create(arguments: argparse.Namespace, output: Output) -> int:
    body = values_of(arguments, ("title", "is_routed", *RULES), slug=arguments.environment)
    with connect(arguments.server) as client:
        row = client.post("/environments", body)
    output.result(row, [f"Environment {row['slug']} is there; it asks for: {_asks_for(row)}."])
    return exits.OK


def run_change(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        row = changed(client, _path(arguments.environment), values_of(arguments, ("title", *RULES)))
    output.result(row, [f"Environment {row['slug']} is changed; it asks for: {_asks_for(row)}."])
    return exits.OK


def run_remove(arguments: argparse.Namespace, output: Output) -> int:
    """Tells what would go, and does that after a yes, and nothing else; with `--yes` what goes by then."""
    address = f"{_path(arguments.environment)}/remove"
    with connect(arguments.server) as client:
        plan = client.get(address)
        if not is_agreed(arguments, output, plan, plan["says"], f"{arguments.environment} is taken out of use."):
            return exits.OK
        body = {"reason": arguments.reason, **consent(arguments, plan)}
        found = client.post(address, body, is_any_version=True)
    said = f"{arguments.environment} is {'deleted' if found['is_deleted'] else 'retired'}."
    output.result({**found, "is_done": True}, [said])
    return exits.OK


def run_restore(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        address = f"{_path(arguments.environment)}/restore"
        was = client.get(_path(arguments.environment))
        if was["retired_at"] is None:
            output.result(was, [f"Environment {was['slug']} is in use already; nothing was done."])
            return exits.OK
        row = client.post(address, {"reason": arguments.reason}, is_any_version=True)
    servers = " A server of each release that was stable there is on its way." if row["routes"] else ""
    gateways = " Register its gateways: sluicegate gateway add --help" if row["is_routed"] else ""
    output.result(row, [f"Environment {row['slug']} is in use again.{servers}{gateways}"])
    return exits.OK


def _titled(row: dict[str, Any]) -> str:
    return f"{row['title']} (retired)" if row["retired_at"] else str(row["title"])


def _path(slug: str) -> str:
    return f"/environments/{quote(slug, safe='')}"


def _asks_for(row: dict[str, Any]) -> str:
    found = [
        text
        for name, text in (("needs_passed_report", "a passed report"), ("needs_approval", "an approval"))
        if row[name]
    ]
    return " and ".join(found) or "nothing"
