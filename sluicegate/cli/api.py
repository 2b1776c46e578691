"""`sluicegate api METHOD PATH [FIELD=VALUE …]`: calls any operation of the REST API."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accounts.core.addresses import API
from sluicegate.cli import exits
from sluicegate.cli.errors import refuse
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_IN_QUERY = ("GET", "DELETE")
DESCRIPTION = f"""Sends one request with your token and prints the JSON of the answer. Other answers, such as a release's
file, are written as they are. docs/openapi.json lists every path; `{API}` before a path may be left out.

FIELD=VALUE is a text, FIELD:=JSON any other value. They go into the query of a GET or DELETE, and into the body otherwise."""
EXAMPLES = """examples:
  sluicegate api GET /models/sentiment/releases --all
  sluicegate api GET /rollouts environment=production state=shifting
  sluicegate api POST /models/sentiment/rollback environment=production reason="P99 doubled"
  sluicegate api PATCH /environments/production needs_approval:=true --if-match 3
  sluicegate api GET /models/sentiment/releases/r3/files/artifact/model.onnx > model.onnx
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "api",
        help="Call any operation of the REST API",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("method", metavar="METHOD", type=str.upper, choices=METHODS, help=", ".join(METHODS))
    parser.add_argument("path", metavar="PATH", help="such as /models/sentiment")
    parser.add_argument("fields", metavar="FIELD=VALUE", nargs="*", help="a text; FIELD:=JSON for any other value")
    parser.add_argument("--input", type=Path, metavar="FILE", help="the body, as JSON or YAML; fields replace its own")
    parser.add_argument(
        "--if-match", metavar="VERSION", help="change this version alone, the one that GET shows; '*' for any"
    )
    parser.add_argument("--all", action="store_true", help="follow a list's pages and print all items as one list")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    values = fields_of(arguments.fields)
    is_query = arguments.method in _IN_QUERY
    if arguments.all and arguments.method != "GET":
        raise refuse("--all follows the pages of a list.", "Use it with GET.")
    if arguments.input and is_query:
        raise refuse(f"A {arguments.method} has no body.", "Give its query as FIELD=VALUE.")
    version = arguments.if_match
    path = "/" + arguments.path.lstrip("/") if "://" not in arguments.path else arguments.path
    with connect(arguments.server) as client:
        if "://" in path and not path.startswith(f"{client.url}/"):  # the token would go to another server
            raise refuse(f"{path} is not an address of {client.url}.", "Write the path alone, such as /models.")
        if arguments.all:
            Output(as_json=True).result(list(client.pages(path, **values)))
            return exits.OK
        answer = client.call(
            arguments.method,
            path,
            query={name: _in_query(value) for name, value in values.items()} if is_query else None,
            body=None if is_query else _file_of(arguments.input) | values,
            if_match=f'"{version}"' if version and version != "*" else version,
        )
    if isinstance(answer, bytes):
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()
    elif answer is not None:
        Output(as_json=True).result(answer)
    return exits.OK


def fields_of(words: Sequence[str]) -> dict[str, Any]:
    """{field: value} of `FIELD=VALUE` and `FIELD:=JSON` words. Raises CommandError naming a word that is neither."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        is_json = name.endswith(":")
        name = name.removesuffix(":")
        if not equals or not name:
            raise refuse(f"{word!r} is no field.", "Write FIELD=VALUE, or FIELD:=JSON.")
        if name in found:
            raise refuse(f"{name} is given twice.", f"Write a list as {name}:='[…]'.")
        try:
            found[name] = json.loads(value) if is_json else value
        except ValueError as error:
            raise refuse(
                f"The value of {name} is no JSON: {error}.", f"Quote it for your shell, or write {name}=TEXT."
            ) from None
    return found


def _in_query(value: Any) -> Any:
    return value if isinstance(value, str | list) else json.dumps(value)


def _file_of(path: Path | None) -> dict[str, Any]:
    from sluicegate.client.documents import read_yaml

    return read_yaml(path) if path else {}
