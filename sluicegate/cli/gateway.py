"""`sluicegate gateway`: the gateways, setting one up, and taking users from one before it is stopped."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sluicegate.cli import exits
from sluicegate.cli.errors import refuse
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect

COLUMNS = ("gateway", "environment", "state", "http", "grpc", "heard", "routes acknowledged", "why drained")
#: Of `gateway add`, beside its name and where it listens: (option, what it is for).
SETUP = (
    ("control-planes", "addresses of the control planes, with commas between them (this installation's)"),
    ("admin", "where Envoy's admin interface listens (unix:/run/sluicegate/NAME-admin.sock, of a known one as before)"),
    ("counters", "host:port where engines on other machines read its counters, over TLS"),
    ("relay", "unix:/path of its relay, which keeps its last snapshot"),
    ("certificate", "a file on the gateway's machine, as the two below"),
    ("key", "the certificate's key"),
    ("authority", "who signed the control plane's certificate"),
)
EXAMPLES = """examples:
  sluicegate gateway add eu-1 --environment production --http-url http://10.20.0.9:8000 --grpc-address 10.20.0.9:8001 \\
      --control-planes 10.20.0.1:18000 --counters 10.20.0.9:9902 --relay unix:/run/sluicegate/relay.sock \\
      --certificate /etc/sluicegate/gw.crt --key /etc/sluicegate/gw.key --authority /etc/sluicegate/ca.crt --out envoy.json
  sluicegate gateway drain eu-1 --reason "kernel update"     # then stop its Envoy, and start it again
  sluicegate gateway resume eu-1
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "gateway",
        help="Gateways: set one up, drain it, take it off the list",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    verbs.add_parser("list", help="List gateways, and how far each is with its routes").set_defaults(run=run_list)
    add = verbs.add_parser(
        "add",
        help="Register one, or change where it is; prints what its Envoy is started with (administrators)",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add.add_argument("gateway", metavar="NAME", help="its name, which its certificate must carry")
    add.add_argument("--environment", required=True, metavar="ENVIRONMENT")
    add.add_argument("--http-url", required=True, metavar="URL", help="where it listens for HTTP: http://host:port")
    add.add_argument("--grpc-address", required=True, metavar="HOST:PORT", help="where it listens for gRPC")
    for option, about in SETUP:
        add.add_argument(f"--{option}", metavar="FILE" if "file" in about or "who" in about else "ADDRESS", help=about)
    add.add_argument("--heap-mib", type=int, metavar="MIB", help="memory that its Envoy may hold")
    add.add_argument("--out", type=Path, metavar="FILE", help="where to write Envoy's configuration (printed)")
    add.set_defaults(run=run_add)
    for verb, about in (
        ("drain", "Let it say that it is not ready; it goes on answering (administrators)"),
        ("resume", "Let it say again that it is ready (administrators)"),
        ("remove", "Take one off the list that is silent (administrators)"),
    ):
        parser = verbs.add_parser(verb, help=about)
        parser.add_argument("gateway", metavar="GATEWAY")
        parser.add_argument("--reason", default="", help="told in the log")
        if verb == "drain":
            parser.add_argument(
                "--yes", action="store_true", help="also where no other gateway of its environment is ready"
            )
        parser.set_defaults(run=run_verb, verb=verb)


def run_list(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        found = list(client.pages("/gateways"))
    rows = (
        [
            one["name"],
            one["environment"],
            one["state"],
            one["http_url"],
            one["grpc_address"],
            one["seen_at"] or "-",
            f"{one['acknowledged']} of {one['routes']}" + (f", {one['refused']} refused" if one["refused"] else ""),
            one["drain_reason"],
        ]
        for one in found
    )
    output.table(found, COLUMNS, rows, empty="No gateway yet. Register one: sluicegate gateway add NAME --help")
    return exits.OK


def run_add(arguments: argparse.Namespace, output: Output) -> int:
    named = [option.replace("-", "_") for option, _ in SETUP]
    given = {name: getattr(arguments, name) for name in ("environment", "http_url", "grpc_address", "heap_mib", *named)}
    body = {"name": arguments.gateway, **{name: value for name, value in given.items() if value is not None}}
    if arguments.out is not None:
        _refuse_unwritable(arguments.out)  # before it is registered
    with connect(arguments.server) as client:
        row = client.post("/gateways", body)
    text = json.dumps(row["envoy"], indent=1)
    if arguments.out is None:
        output.result(row, [text])
        return exits.OK
    arguments.out.write_text(f"{text}\n")
    output.result(
        row, [f"{row['name']} is registered for {row['environment']}.", f"Start it: envoy -c {arguments.out}"]
    )
    return exits.OK


def _refuse_unwritable(path: Path) -> None:
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise refuse(f"{path} cannot be written.", "Name another file.")


def run_verb(arguments: argparse.Namespace, output: Output) -> int:
    body: dict[str, Any] = {"reason": arguments.reason}
    if arguments.verb == "drain":
        body["is_confirmed"] = arguments.yes
    with connect(arguments.server) as client:
        address = f"/gateways/{quote(arguments.gateway, safe='')}/{arguments.verb}"
        row = client.post(address, body, is_any_version=True)
    said = {
        "drain": "says that it is not ready, and goes on answering. Stop its Envoy when nobody asks it any more.",
        "resume": "says that it is ready.",
        "remove": "is on no list any more; no control plane talks to one of that name.",
    }[arguments.verb]
    output.result(row, [f"{arguments.gateway} {said}"])
    return exits.OK
