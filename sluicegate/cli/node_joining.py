"""`sluicegate node invite|rotate|revoke`: how agents join, and how one is shut out."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from sluicegate.cli import exits
from sluicegate.cli.errors import refuse
from sluicegate.cli.output import Output
from sluicegate.cli.plans import is_agreed
from sluicegate.cli.session import connect
from sluicegate.cli.settings_values import add_yes
from sluicegate.client.names import node_path


def add_joining(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    invite = verbs.add_parser("invite", help="A token with which one agent joins under a name (administrators)")
    invite.add_argument("--hours", type=float, metavar="N", help="how long it is good (1)")
    invite.add_argument("--out", type=Path, metavar="FILE", help="where to write the token, 0600 (printed)")
    invite.set_defaults(run=run_invite)
    rotate = verbs.add_parser(
        "rotate", help="Another credential for a node, without stopping a server (administrators)"
    )
    rotate.set_defaults(run=run_rotate)
    revoke = verbs.add_parser(
        "revoke", help="Shut a node's agent out, and place its replicas elsewhere (administrators)"
    )
    add_yes(revoke)
    revoke.set_defaults(run=run_revoke)
    for parser in (invite, rotate, revoke):
        parser.add_argument("node", metavar="NODE")
        parser.add_argument("--reason", default="", help="told in the log")


def run_invite(arguments: argparse.Namespace, output: Output) -> int:
    body: dict[str, Any] = {"reason": arguments.reason}
    if arguments.hours is not None:
        body["hours"] = arguments.hours
    with _file_for(arguments.out) as file:
        with connect(arguments.server) as client:
            made = client.post(_address(arguments.node, "invite"), body)
        if file is None:
            output.result(made, [made["token"]])
            return exits.OK
        file.write(f"{made['token']}\n")
    how = f"SLUICEGATE_NODE_JOIN_TOKEN_FILE={arguments.out} manage.py agent --node {arguments.node}"
    output.result(
        {**made, "token": None}, [f"Until {made['expires_at']} one agent may join as {arguments.node}: {how}"]
    )
    return exits.OK


@contextmanager
def _file_for(path: Path | None) -> Iterator[TextIO | None]:
    """The new file, opened before there is a token, which is shown once; taken away where none is put into it. Raises CommandError."""
    if path is None:
        yield None
        return
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise refuse(f"{path} exists already.", "Remove it, or name another file.") from None
    except OSError as error:
        raise refuse(f"{path} cannot be written: {error.strerror}.", "Name another file.") from error
    try:
        with os.fdopen(handle, "w") as file:
            yield file
    except BaseException:  # also Ctrl-C
        path.unlink(missing_ok=True)
        raise


def run_rotate(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        node = client.post(_address(arguments.node, "rotate"), {"reason": arguments.reason}, is_any_version=True)
    output.result(node, [f"The agent of {arguments.node} takes another credential at its next heartbeat."])
    return exits.OK


def run_revoke(arguments: argparse.Namespace, output: Output) -> int:
    """What shuts is never refused because something has changed: the plan has no digest."""
    with connect(arguments.server) as client:
        held = (
            0 if arguments.yes else len(client.get(_address(arguments.node, "drain"))["steps"])
        )  # of a node that is there
        more = f", and what runs there ({held}) is placed elsewhere" if held else ""
        says = [f"The agent of {arguments.node} is refused from its next heartbeat on{more}."]
        plan = {"node": arguments.node, "says": says}
        if not is_agreed(arguments, output, plan, says, f"{arguments.node} is shut out."):
            return exits.OK
        node = client.post(_address(arguments.node, "revoke"), {"reason": arguments.reason}, is_any_version=True)
    output.result(
        {**node, "is_done": True},
        [f"{arguments.node} is revoked and cordoned. To let it join again: sluicegate node invite {arguments.node}"],
    )
    return exits.OK


def joined(node: dict[str, Any]) -> str:
    """How it came, of `node list`."""
    if node["revoked_at"]:
        return f"revoked by {node['revoked_by']}"
    if not node["joined_at"]:
        return "without a token"
    return f"invited by {node['joined_by']}" + (", to be rotated" if node["rotation_asked_at"] else "")


def _address(node: str, verb: str) -> str:
    return f"{node_path(node)}/{verb}"
