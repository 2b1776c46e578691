"""`sluicegate webhook`: who is told of what happens."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sluicegate.cli import exits
from sluicegate.cli.errors import refuse
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect
from sluicegate.client import Client

UNITS_S = {"m": 60, "h": 3600, "d": 86400}
FORMATS = ("signed", "slack", "teams", "pagerduty")
COLUMNS = ("webhook", "team", "kind", "target", "events", "on", "waiting", "last")
LOG_COLUMNS = ("delivery", "event", "seq", "state", "attempts", "answer", "problem")


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
    parser.add_argument("--team", help="whose events; left out: every team's (administrators)")
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
    parser.add_argument("--title", default="", help="what it is for")
    parser.set_defaults(run=run_create)
    parser = verbs.add_parser("list", help="List webhooks")
    parser.set_defaults(run=run_list)
    for name, (text, run) in VERBS.items():
        parser = verbs.add_parser(name, help=text)
        parser.add_argument("webhook", type=int, metavar="WEBHOOK", help="its number in the list")
        parser.set_defaults(run=run, verb=name)
        if name == "rotate":
            parser.add_argument(
                "--overlap-h",
                type=float,
                default=24.0,
                metavar="HOURS",
                help="the old secret signs as well for so long (24)",
            )
        elif name == "deliveries":
            parser.add_argument("--state", choices=("pending", "failed", "delivered", "gave_up"))
            parser.add_argument("--limit", type=int, default=20, metavar="N")
        elif name == "replay":
            which = parser.add_mutually_exclusive_group(required=True)
            which.add_argument("--delivery", metavar="ID", help="one delivery of the log")
            which.add_argument(
                "--since", metavar="TIME", help="every event since 2026-03-01T12:00:00Z, or 30m, 2h, 3d ago"
            )


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


def run_list(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        rows = list(client.pages("/webhooks"))
    cells = [
        (row["id"], row["team"] or "(all)", row["format"] or row["kind"], row["target"], " ".join(row["verbs"]),
         "yes" if row["is_active"] else "no", row["waiting"], row["last_state"])
        for row in rows
    ]  # fmt: skip
    output.table(rows, COLUMNS, cells, empty="No webhook yet. Create one: sluicegate webhook create URL --team TEAM")
    return exits.OK


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


def run_deliveries(arguments: argparse.Namespace, output: Output) -> int:
    wanted = {"state": arguments.state} if arguments.state else {}
    with connect(arguments.server) as client:
        rows = list(client.pages(f"/webhooks/{arguments.webhook}/deliveries", limit=arguments.limit, **wanted))
    cells = []
    for row in rows:
        last = row["attempts"][0] if row["attempts"] else {}
        cells.append((row["id"], row["verb"], row["seq"], row["state"], len(row["attempts"]), last.get("status_code"),
                      last.get("error")))  # fmt: skip
    empty = f"No delivery is {arguments.state}." if arguments.state else "Nothing was sent to it yet."
    output.table(rows, LOG_COLUMNS, cells, empty=empty)
    return exits.OK


def run_replay(arguments: argparse.Namespace, output: Output) -> int:
    address = f"/webhooks/{arguments.webhook}"
    with connect(arguments.server) as client:
        if arguments.delivery:
            done = client.post(f"{address}/deliveries/{arguments.delivery}/replay")
        else:
            done = client.post(
                f"{address}/replay", {"since": moment_of(arguments.since, datetime.now(UTC)).isoformat()}
            )
    lines = [f"Sent again: {done['deliveries']}. What is on its way already is not counted."]
    output.result(
        done, lines if done["deliveries"] else ["Nothing to send again: it is on its way, or nothing happened."]
    )
    return exits.OK


def run_rotate(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        body = {"overlap_s": arguments.overlap_h * 3600}
        made = client.post(f"/webhooks/{arguments.webhook}/rotate", body, version=_version(client, arguments.webhook))
    until = made["previous_until"]
    output.result(
        made,
        [*_secret_lines(made), f"The old secret signs as well until {until}." if until else "The old one is void."],
    )
    return exits.OK


def run_switch(arguments: argparse.Namespace, output: Output) -> int:
    is_on = arguments.verb == "enable"
    with connect(arguments.server) as client:
        version = _version(client, arguments.webhook)
        row = client.patch(f"/webhooks/{arguments.webhook}", {"is_active": is_on}, version=version)
    output.result(row, [f"Webhook {row['id']} is {'on, from now' if is_on else 'off'}."])
    return exits.OK


def run_delete(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        client.delete(f"/webhooks/{arguments.webhook}", version=_version(client, arguments.webhook))
    output.result({"id": arguments.webhook, "deleted": True}, [f"Webhook {arguments.webhook} is deleted."])
    return exits.OK


Run = Callable[[argparse.Namespace, Output], int]
#: verb on one webhook → (help, what runs it)
VERBS: dict[str, tuple[str, Run]] = {
    "test": ("Send a test now and show how it went (exit 1 if it did not arrive)", run_test),
    "deliveries": ("Show the delivery log, newest first", run_deliveries),
    "replay": ("Send one delivery, or everything since a time, again", run_replay),
    "rotate": ("Make a new secret; it is shown once", run_rotate),
    "disable": ("Turn it off; what happens meanwhile is not sent to it", run_switch),
    "enable": ("Turn it on again, from now", run_switch),
    "delete": ("Delete it with its log", run_delete),
}


def moment_of(text: str, now: datetime) -> datetime:
    """An ISO 8601 instant (UTC where it names no zone), or `30m`, `2h`, `3d` before `now`. Raises CommandError."""
    if ago := re.fullmatch(r"([0-9]{1,6})([mhd])", text):
        return now - timedelta(seconds=int(ago[1]) * UNITS_S[ago[2]])
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise refuse(f"{text!r} is no time.", "Write 2026-03-01T12:00:00Z, or 30m, 2h, 3d.") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _version(client: Client, webhook: int) -> int:
    return int(client.get(f"/webhooks/{webhook}")["version"])


def _secret_lines(made: dict[str, Any]) -> list[str]:
    if not made["secret"]:
        return []
    return [f"Secret, shown this once: {made['secret']}"]
