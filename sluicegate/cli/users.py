"""`sluicegate user deactivate|reactivate|password|grant|take|list` and `password change`: who may come in, and how."""

from __future__ import annotations

import argparse
import getpass
import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from sluicegate.cli import exits
from sluicegate.cli.errors import refuse
from sluicegate.cli.output import Output
from sluicegate.cli.session import as_nobody, connect, save_token, server_url

ROLES = ("viewer", "model_team", "ci", "release_manager")
Verbs = argparse._SubParsersAction


def add_user_verbs(user: Verbs[argparse.ArgumentParser]) -> None:
    """Those that change a user who is there."""
    for verb, run, about in (
        ("deactivate", run_deactivate, "Shut a user out: sessions and tokens end at once"),
        ("reactivate", run_reactivate, "Let a user in again; old sessions and tokens stay ended"),
    ):
        parser = user.add_parser(verb, help=about)
        parser.add_argument("username", metavar="USERNAME")
        parser.add_argument("--reason", default="", help="kept in the log")
        parser.set_defaults(run=run)
    parser = user.add_parser("password", help="Set somebody else's password; their sessions and tokens end")
    parser.add_argument("username", metavar="USERNAME")
    _add_password_stdin(parser)
    parser.set_defaults(run=run_reset)
    for verb, run, about in (
        ("grant", run_grant, "Give a user a role in a team, or administration"),
        ("take", run_take, "Take a role, or administration, away from a user"),
    ):
        parser = user.add_parser(verb, help=about)
        parser.add_argument("username", metavar="USERNAME")
        parser.add_argument("--team", help="`*` for every team (viewer and release_manager alone)")
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument("--role", choices=ROLES)
        what.add_argument("--admin", action="store_true", help="the right to administer everything")
        parser.set_defaults(run=run)
    parser = user.add_parser("list", help="List users: who may come in, and with which roles")
    parser.set_defaults(run=run_list)


def add_password(commands: Verbs[argparse.ArgumentParser]) -> None:
    verbs = commands.add_parser("password", help="Change your password").add_subparsers(metavar="VERB", required=True)
    parser = verbs.add_parser(
        "change",
        help="Change your own password",
        description="Your sessions and tokens end, on every machine; this one gets a new token.",
    )
    _add_password_stdin(parser, "read two lines from standard input: the old password, then the new one")
    parser.set_defaults(run=run_change)


def _add_password_stdin(parser: argparse.ArgumentParser, about: str = "read the password from standard input") -> None:
    parser.add_argument("--password-stdin", action="store_true", help=about)


def address_of(username: str, rest: str = "") -> str:
    return f"/users/{quote(username, safe='')}{rest}"


def expiry(days: float | None) -> dict[str, str]:
    """The field `expires_at` of a new token; none: as the installation has it."""
    return {} if days is None else {"expires_at": (datetime.now(UTC) + timedelta(days=days)).isoformat()}


def run_deactivate(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        user = client.post(address_of(arguments.username, "/deactivate"), {"reason": arguments.reason})
    output.result(user, [f"{arguments.username} is shut out; sessions and tokens have ended."])
    return exits.OK


def run_reactivate(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        user = client.post(address_of(arguments.username, "/reactivate"), {"reason": arguments.reason})
    output.result(user, [f"{arguments.username} may sign in again; tokens must be issued anew."])
    return exits.OK


def run_reset(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        password = new_password(arguments.username, is_piped=arguments.password_stdin)
        client.put(address_of(arguments.username, "/password"), {"password": password})
    output.result(
        {"username": arguments.username},
        [f"{arguments.username} signs in with the new password; sessions and tokens have ended."],
    )
    return exits.OK


def run_change(arguments: argparse.Namespace, output: Output) -> int:
    url = server_url(arguments.server)
    with connect(arguments.server) as client:
        username = str(client.get("/me")["username"])
        if arguments.password_stdin:
            old = sys.stdin.readline().rstrip("\n")
        else:
            require_terminal()
            old = getpass.getpass(f"The present password of {username}: ")
        new = new_password(username, is_piped=arguments.password_stdin)
        client.put(address_of(username, "/password"), {"password": new, "old_password": old})
    with as_nobody(url) as anew:
        body = {"username": username, "password": new, "name": f"cli on {platform.node()}"}
        path = save_token(url, str(anew.post("/tokens", body)["token"]))
    lines = [
        f"The password of {username} is changed. Other sessions and tokens have ended; the new token is in {path}."
    ]
    output.result({"username": username, "token_file": str(path)}, lines)
    return exits.OK


def run_grant(arguments: argparse.Namespace, output: Output) -> int:
    return _change_role(arguments, output, is_given=True)


def run_take(arguments: argparse.Namespace, output: Output) -> int:
    return _change_role(arguments, output, is_given=False)


def _change_role(arguments: argparse.Namespace, output: Output, *, is_given: bool) -> int:
    name, team, role = arguments.username, arguments.team, arguments.role
    if role and not team:
        raise refuse("A role is held in a team.", "Add --team TEAM.")
    with connect(arguments.server) as client:
        if arguments.admin:
            client.patch(address_of(name), {"is_admin": is_given})
        elif is_given:
            client.post(f"/teams/{quote(team, safe='')}/members", {"username": name, "role": role})
        else:
            client.delete(f"/teams/{quote(team, safe='')}/members?username={quote(name, safe='')}&role={role}")
    what = "administers everything" if arguments.admin else f"has the role {role} in team {team}"
    changed = {"username": name, "team": team, "role": role or "administrator", "is_given": is_given}
    output.result(changed, [f"{name} {what}{'.' if is_given else ' no more.'}"])
    return exits.OK


def run_list(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        users = list(client.pages("/users"))
    rows = [
        (
            user["username"],
            "yes" if user["is_active"] else "shut out",
            "password" if user["has_password"] else "tokens",
            _roles_text(user),
        )
        for user in users
    ]
    output.table(users, ("user", "may come in", "by", "roles"), rows, empty="There is nobody.")
    return exits.OK


def _roles_text(user: Mapping[str, Any]) -> str:
    held = [f"{one['role']} of {one['team']}" for one in user["roles"]]
    return ", ".join([*(["administrator"] if user["is_admin"] else []), *held])


def new_password(username: str, *, is_piped: bool) -> str:
    """From standard input, or typed twice on a terminal. Raises CommandError."""
    if is_piped:
        return sys.stdin.readline().rstrip("\n")
    require_terminal()
    password = getpass.getpass(f"The new password of {username}: ")
    if getpass.getpass("Again: ") != password:
        raise refuse("The two passwords differ; nothing was changed.", "Repeat the command.")
    return password


def require_terminal() -> None:
    if not sys.stdin.isatty():
        raise refuse("There is no terminal to ask on.", "Use --password-stdin.")
