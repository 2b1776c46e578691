"""`sluicegate webhook create|test`: webhooks and mails for events."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from sluicegate.cli import exits
from sluicegate.cli.errors import refuse
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect

FORMATS = ("signed", "slack", "teams", "pagerduty", "alertmanager")


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verbs = commands.add_parser("webhook", help="Tell other systems and people what happens").add_subparsers(
        metavar="VERB", required=True
    )
    parser = verbs.add_parser("create", help="Send events to a URL or an e-mail address; the secret is shown once")
    parser.add_argument(
        "target",
        metavar="URL",
        nargs="?",
        help="https://host/path; with --email an e-mail address; PagerDuty's may be left out",
    )
    parser.add_argument("--team", help="team of the events (default: all teams, administrators only)")
    parser.add_argument(
        "--verb",
        action="append",
        metavar="PATTERN",
        help="such as rollout.*, rollout.stuck or * (rollout.* if none is given); may be given several times",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--email", action="store_true", help="send e-mails instead of requests")
    how.add_argument("--format", choices=FORMATS, help="the form of the requests (signed)")
    parser.add_argument(
        "--routing-key-file", metavar="FILE", help="holds PagerDuty's integration key; - reads it from standard input"
    )
    parser.add_argument("--title", default="", help="name of the webhook")
    parser.set_defaults(run=run_create)
    parser = verbs.add_parser("test", help="Send a test now and show how it went (exit 1 if it did not arrive)")
    parser.add_argument("webhook", type=int, metavar="WEBHOOK", help="its number, as `webhook create` prints it")
    parser.set_defaults(run=run_test)


def run_create(arguments: argparse.Namespace, output: Output) -> int:
    body = {
        "team": arguments.team,
        "kind": "email" if arguments.email else "webhook",
        "verbs": arguments.verb or ["rollout.*"],
        "title": arguments.title,
        **({"target": arguments.target} if arguments.target else {}),
        **({"format": arguments.format} if arguments.format else {}),
        **({"routing_key": _read_key(arguments.routing_key_file)} if arguments.routing_key_file else {}),
    }
    with connect(arguments.server) as client:
        made = client.post("/webhooks", body)
    output.result(
        made, [f"Webhook {made['id']} is created.", *_secret_lines(made), f"Next: sluicegate webhook test {made['id']}"]
    )
    return exits.OK


def _read_key(name: str) -> str:
    """From a file: what stands on a command line is read by everybody on the machine. Raises CommandError."""
    try:
        return (sys.stdin.read() if name == "-" else Path(name).read_text()).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise refuse(f"{name} cannot be read: {error}.", "Name a file that holds the integration key alone.") from None


def run_test(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        sent = client.post(f"/webhooks/{arguments.webhook}/test")
    arrived = sent["state"] == "delivered"
    tried = sent["attempts"][0]
    took = f"in {tried['duration_ms']} ms"
    said = (
        f"It arrived: {tried['status_code'] or 'taken'} {took}." if arrived else f"It did not arrive: {tried['error']}"
    )
    output.result(sent, [said, *([f"  {tried['snippet']}"] if tried["snippet"] else [])])
    return exits.OK if arrived else exits.FAILED


def _secret_lines(made: dict[str, Any]) -> list[str]:
    if not made["secret"]:
        return []
    return [f"Secret, shown this once: {made['secret']}"]
