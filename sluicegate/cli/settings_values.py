"""What the commands of settings share: values from options over those of a file, and a yes before something is taken away."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluicegate.client import Client


def add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--file", type=Path, metavar="FILE", help="YAML or JSON with the fields of the API; options go before it"
    )


def add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")


def values_of(arguments: argparse.Namespace, names: Sequence[str], **more: Any) -> dict[str, Any]:
    """The body of a request: what the file holds, over it what was given as options. What is nowhere is not there.

    Raises CommandError for a file that cannot be read.
    """
    from sluicegate.client.documents import read_yaml

    found = read_yaml(arguments.file) if arguments.file else {}
    given = {name: getattr(arguments, name) for name in names} | more
    return {**found, **{name: value for name, value in given.items() if value is not None}}


def claims_of(given: Sequence[str]) -> dict[str, str] | None:
    """{name: value} of `NAME=VALUE` words; None for none. Raises CommandError naming one that is not so."""
    from sluicegate.cli.errors import refuse

    for word in given:
        if not all(word.partition("=")):
            raise refuse(f"{word!r} is no claim.", "Write NAME=VALUE, such as repository_id=4711.")
    return {word.partition("=")[0]: word.partition("=")[2] for word in given} or None


def secret_in(name: str | None) -> str | None:
    """What the file holds (`-`: standard input); None without one. Raises CommandError.

    What stands on a command line is read by everybody on the machine.
    """
    if name is None:
        return None
    from sluicegate.client.documents import text_of

    return (sys.stdin.read() if name == "-" else text_of(Path(name))).strip()


def require_yes(arguments: argparse.Namespace, what_happens: str) -> None:
    """Asks on a terminal. Raises CommandError without a yes, and where there is nobody to ask and no `--yes`."""
    from sluicegate.cli.errors import refuse

    if arguments.yes:
        return
    if not sys.stdin.isatty():
        raise refuse(f"{what_happens} There is no terminal to ask on, so nothing was done.", "Repeat it with --yes.")
    if input(f"{what_happens} Go on? (yes/no) ").strip().lower() not in ("y", "yes"):
        raise refuse("Nothing was done.", "Answer yes, or give --yes.")


def changed(client: Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """What is there after the change of the version that is there now. Raises CommandError for an empty one."""
    from sluicegate.cli.errors import refuse

    if not body:
        raise refuse("Nothing is to be changed.", "Name a value, by an option or in --file.")
    done: dict[str, Any] = client.patch(path, body, version=client.get(path)["version"])
    return done
