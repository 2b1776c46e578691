"""`sluicegate api METHOD PATH [FIELD=VALUE …]`: calls any operation of the REST API."""

from __future__ import annotations

import argparse
import getpass
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accounts.core.addresses import API
from sluicegate.cli import exits
from sluicegate.cli.errors import CommandError, Problem, refuse
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect
from sluicegate.client.documents import document_of, text_of
from sluicegate.client.errors import Mistake

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
STANDARD_INPUT = "-"
_IN_QUERY = ("GET", "DELETE")
DESCRIPTION = f"""Sends one request with your token and prints the JSON of the answer. Other answers,
such as a release's file, are written as they are. docs/openapi.json lists every path;
`{API}` before a path may be left out.

FIELD=VALUE is a text, FIELD:=JSON any other value. FIELD=@FILE reads the text from a file and
FIELD:=@FILE the JSON or YAML. FIELD=@- reads a line of standard input; on a terminal it asks for
it and does not show it. Fields go into the query of a GET or DELETE and of a body with --type,
and into the body otherwise."""
EXAMPLES = """examples:
  sluicegate api GET /models/sentiment/releases --all
  sluicegate api GET /rollouts environment=production state=shifting
  sluicegate api POST /models/sentiment/rollback environment=production reason="P99 doubled"
  sluicegate api PATCH /environments/production needs_approval:=true --if-match 3
  sluicegate api PUT /users/ada/password password=@-
  sluicegate api POST /users/ci-robot/tokens name=builds --field token > token
  sluicegate api POST /models/sentiment/golden-sets --input golden.jsonl --type application/jsonl
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
    parser.add_argument(
        "--input", metavar="FILE", help="the body, as JSON or YAML; - is standard input; fields replace its own"
    )
    parser.add_argument(
        "--type", metavar="MEDIA", help="send the body of --input as it is, with this media type, such as text/csv"
    )
    parser.add_argument(
        "--field",
        metavar="NAME",
        help="print this field of the answer alone, a text without quotes; such as results.0.id",
    )
    parser.add_argument(
        "--if-match",
        metavar="VERSION",
        help="change this version alone, as shown by GET; '*' for any version, if the API takes it",
    )
    parser.add_argument("--all", action="store_true", help="follow a list's pages and print all items as one list")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    _check(arguments)
    values = fields_of(arguments.fields)
    is_query = arguments.method in _IN_QUERY or arguments.type is not None
    query = {name: _in_query(value) for name, value in values.items()} if is_query else None
    body = None if is_query else _document(arguments.input) | values
    content = _bytes(arguments.input) if arguments.type else None
    version = arguments.if_match
    path = "/" + arguments.path.lstrip("/") if "://" not in arguments.path else arguments.path
    with connect(arguments.server) as client:
        if "://" in path and not path.startswith(f"{client.url}/"):  # the token would go to another server
            raise refuse(f"{path} is not an address of {client.url}.", "Write the path alone, such as /models.")
        if arguments.all:
            items = list(client.pages(path, query=query))
            if arguments.field is not None:
                return _print_each(items, arguments.field, output)
            return _print(items, None, output)
        try:
            answer = client.call(
                arguments.method,
                path,
                query=query,
                body=body,
                content=content,
                content_type=arguments.type or "",
                if_match=f'"{version}"' if version and version != "*" else version,
            )
        except Problem as problem:
            if problem.code in {"if_match_missing", "if_match_invalid"}:
                problem.next_step = (
                    "Add --if-match VERSION. It is the field `version` of the changed object: "
                    "sluicegate api GET PATH --field version"
                )
            raise
    return _print(answer, arguments.field, output)


def _check(arguments: argparse.Namespace) -> None:
    if arguments.all and arguments.method != "GET":
        raise refuse("--all follows the pages of a list.", "Use it with GET.")
    if arguments.input and arguments.method in _IN_QUERY:
        raise refuse(f"A {arguments.method} has no body.", "Give its query as FIELD=VALUE.")
    if arguments.type and not arguments.input:
        raise refuse("--type is the media type of --input.", "Name the body's file with --input, or leave --type out.")


def _print(answer: Any, field: str | None, output: Output) -> int:
    if field is not None:
        try:
            answer = value_at(answer, field)
        except CommandError as error:
            # The request is done, and a new secret is shown only once: print the whole answer.
            if output.as_json:
                error.facts["answer"] = answer
            else:
                _print(answer, None, output)
            raise
        if isinstance(answer, str) and not output.as_json:
            sys.stdout.write(answer if answer.endswith("\n") else f"{answer}\n")
            return exits.OK
    if isinstance(answer, bytes):
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()
    elif answer is not None or field is not None:
        Output(as_json=True).result(answer)
    return exits.OK


def _print_each(items: list[dict[str, Any]], field: str, output: Output) -> int:
    if output.as_json:
        return _print([value_at(item, field) for item in items], None, output)
    for item in items:
        _print(item, field, output)
    return exits.OK


def value_at(answer: Any, name: str) -> Any:
    """Returns the value under a dotted name, such as `results.0.pem`. Raises CommandError."""
    found = answer
    for part in name.split("."):
        if isinstance(found, dict) and part in found:
            found = found[part]
        elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        else:
            names = list(found) if isinstance(found, dict) else []
            if isinstance(found, list) and found:
                names = [f"0 to {len(found) - 1}"]
            step = f"Its fields: {', '.join(names)}." if names else "Leave --field out."
            raise refuse(f"The answer has no field {name}.", step)
    return found


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
        if value.startswith("@"):
            found[name] = _read(value[1:]) if is_json else _secret(name, value[1:])
            continue
        try:
            found[name] = json.loads(value) if is_json else value
        except ValueError as error:
            raise refuse(
                f"The value of {name} is no JSON: {error}.", f"Quote it for your shell, or write {name}=TEXT."
            ) from None
    return found


def _secret(name: str, file: str) -> str:
    """Returns the file's text, or a line of standard input, without the line end after it."""
    if file != STANDARD_INPUT:
        try:
            return _text(file).rstrip("\r\n")
        except Mistake as mistake:
            mistake.next_step = f"Name a file, or write a text that begins with @ as {name}:='\"@…\"'."
            raise
    line = getpass.getpass(f"{name}: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
    if not line:
        raise refuse(f"Standard input has no line for {name}.", "Write a line for each field that is @-.")
    return line


def _text(file: str) -> str:
    return sys.stdin.read() if file == STANDARD_INPUT else text_of(Path(file))


def _read(file: str) -> Any:
    return document_of(_text(file), "standard input" if file == STANDARD_INPUT else file)


def _document(file: str | None) -> dict[str, Any]:
    found = _read(file) if file else {}
    if not isinstance(found, dict):
        raise refuse(f"The body in {file} is no mapping of fields.", "Write fields with their values.")
    return found


def _bytes(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == STANDARD_INPUT else Path(file).read_bytes()
    except OSError as error:
        raise refuse(f"{file} cannot be read: {error.strerror}.", "Name the file of the body.") from None


def _in_query(value: Any) -> Any:
    return value if isinstance(value, str | list) else json.dumps(value)
