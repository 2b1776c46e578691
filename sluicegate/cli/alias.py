"""`sluicegate alias`: names that point to releases, set from what was seen, with their history."""

from __future__ import annotations

import argparse
import re
from typing import Any
from urllib.parse import quote

from sluicegate.cli import exits
from sluicegate.cli.errors import Problem, refuse
from sluicegate.cli.output import Output, short
from sluicegate.cli.session import connect
from sluicegate.client import Client
from sluicegate.client.names import model_path

ABOUT = """An alias is a pointer and nothing else: no rollout, gate or server follows it. It is set only if nobody moved it since this
command looked (or since --if-version), and every move stays in its history. There is no `latest`."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verbs = commands.add_parser("alias", help="Name releases, such as champion", description=ABOUT).add_subparsers(
        metavar="VERB", required=True
    )
    parser = verbs.add_parser("set", help="Point MODEL/NAME to a release", description=ABOUT)
    parser.add_argument("alias", metavar="MODEL/NAME", help="such as sentiment/champion")
    parser.add_argument("release", metavar="RELEASE", help="such as r14")
    _add_decision(parser)
    parser.set_defaults(run=run_set)
    parser = verbs.add_parser("clear", help="Let MODEL/NAME point nowhere; its history stays")
    parser.add_argument("alias", metavar="MODEL/NAME")
    _add_decision(parser)
    parser.set_defaults(run=run_set, release=None)
    parser = verbs.add_parser("list", help="List a model's aliases")
    parser.add_argument("model", metavar="MODEL")
    parser.set_defaults(run=run_list)
    parser = verbs.add_parser("history", help="Show where MODEL/NAME pointed, newest first")
    parser.add_argument("alias", metavar="MODEL/NAME")
    parser.add_argument("--limit", type=int, default=20, metavar="N")
    parser.set_defaults(run=run_history)


def _add_decision(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reason", default="", help="told in its history")
    parser.add_argument(
        "--if-version", type=int, metavar="N", help="only if it is at this version; 0: only if there is none"
    )


def run_set(arguments: argparse.Namespace, output: Output) -> int:
    release = arguments.release
    if release is not None and not re.fullmatch(r"r?[1-9][0-9]*", release := release.rpartition("/")[2]):
        raise refuse(f"{arguments.release!r} does not name a release.", "Write rN, such as r14.")
    with connect(arguments.server) as client:
        address = _path(arguments.alias)
        version = _version(client, address) if arguments.if_version is None else arguments.if_version
        alias = client.put(address, {"release": release, "reason": arguments.reason}, version=version)
    to = f"points to {alias['release']} ({short(alias['digest'])})" if alias["release"] else "points nowhere"
    output.result(alias, [f"{arguments.alias} {to}, version {alias['version']}."])
    return exits.OK


def run_list(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        found = list(client.pages(f"{model_path(arguments.model)}/aliases"))
    rows = ([a["name"], a["release"] or "(nowhere)", short(a["digest"]), a["version"], a["changed_at"]] for a in found)
    output.table(
        found,
        ("alias", "release", "digest", "version", "since"),
        rows,
        empty="No alias yet: sluicegate alias set MODEL/NAME rN.",
    )
    return exits.OK


def run_history(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        found = list(client.pages(f"{_path(arguments.alias)}/history", limit=arguments.limit))
    rows = ([e["at"], f"{e['from_release'] or '-'} → {e['to_release'] or '-'}", e["actor"], e["reason"]] for e in found)
    output.table(found, ("at", "move", "by", "why"), rows, empty="It never pointed anywhere.")
    return exits.OK


def _path(name: str) -> str:
    model, slash, alias = name.partition("/")
    if not slash or not model or not alias or "/" in alias:
        raise refuse(f"{name!r} does not name an alias.", "Write MODEL/NAME, such as sentiment/champion.")
    return f"{model_path(model)}/aliases/{quote(alias, safe='')}"


def _version(client: Client, address: str) -> int:
    try:
        alias: dict[str, Any] = client.get(address)
    except Problem as problem:
        if problem.code == "no_such_alias":
            return 0
        raise
    return int(alias["version"])
