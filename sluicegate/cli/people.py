"""`sluicegate login`, `team create`, `user create` and users' tokens."""

from __future__ import annotations

import argparse
import getpass
import os
import platform
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from sluicegate.cli import exits
from sluicegate.cli.errors import refuse
from sluicegate.cli.id_token import AUDIENCE, ENVIRONMENT, exchange, read_id_tokens
from sluicegate.cli.output import Output
from sluicegate.cli.session import as_nobody, connect, save_token, server_url
from sluicegate.cli.users import ROLES, add_password, add_user_verbs, address_of, expiry
from sluicegate.client import Client


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "login",
        help="Sign in and keep a token",
        description="Asks for a password, gets a token "
        "for this machine and keeps it in ~/.config/sluicegate/token (mode 0600).",
    )
    parser.add_argument("--username")
    parser.add_argument("--password-stdin", action="store_true", help="read the password from standard input")
    parser.add_argument(
        "--oidc-token",
        metavar="FILE|env|-",
        help="by a CI job's identity token: of this file, of standard input, or as GitHub or GitLab give it (env)",
    )
    parser.add_argument(
        "--audience", help="for GitHub: what its token is made for; else SLUICEGATE_AUDIENCE, the server"
    )
    parser.add_argument("--rule", type=int, help="of which token rule, where several are met")
    parser.set_defaults(run=run_login)
    team = commands.add_parser("team", help="Create teams (administrators)").add_subparsers(
        metavar="VERB", required=True
    )
    parser = team.add_parser("create", help="Create a team")
    parser.add_argument("slug", metavar="TEAM")
    parser.add_argument("--title", default="")
    parser.set_defaults(run=run_team)
    user = commands.add_parser("user", help="Create users (administrators)").add_subparsers(
        metavar="VERB", required=True
    )
    parser = user.add_parser(
        "create",
        help="Create a user with a role in a team",
        description="Asks for a password on a terminal, unless the only role is ci. A user without one is let in by "
        "tokens alone: sluicegate user token.",
    )
    parser.add_argument("username", metavar="USERNAME")
    parser.add_argument("--team")
    parser.add_argument("--role", action="append", choices=ROLES, help="may be given several times")
    parser.add_argument("--password-stdin", action="store_true", help="read the password from standard input")
    parser.set_defaults(run=run_user)
    parser = user.add_parser("token", help="Issue a token for a user, such as a CI robot; it is shown once")
    parser.add_argument("username", metavar="USERNAME")
    parser.add_argument("--name", default="issued by an administrator", help="what it is for")
    parser.add_argument("--days", type=float, help="how long it lives; else as the installation has it")
    parser.set_defaults(run=run_token)
    parser = user.add_parser("revoke", help="End every token of a user that has this name")
    parser.add_argument("username", metavar="USERNAME")
    parser.add_argument("--name", required=True, help="as it was named when it was issued")
    parser.set_defaults(run=run_revoke)
    add_user_verbs(user)
    add_password(commands)


def run_login(arguments: argparse.Namespace, output: Output) -> int:
    url = server_url(arguments.server)
    if arguments.oidc_token:
        return _login_by_id_token(arguments, output, url)
    username = arguments.username or _ask("Username: ")
    password = sys.stdin.readline().rstrip("\n") if arguments.password_stdin else _ask("Password: ", getpass.getpass)
    with as_nobody(url) as client:
        token = issue_token(client, username, password, name=f"cli on {platform.node()}")
    path = save_token(url, token)
    output.result(
        {"server": url, "username": username, "token_file": str(path)},
        [f"Signed in to {url} as {username}; the token is in {path}."],
    )
    return exits.OK


def _login_by_id_token(arguments: argparse.Namespace, output: Output, url: str) -> int:
    audience = arguments.audience or os.environ.get(AUDIENCE) or url
    with as_nobody(url) as client:
        given = exchange(client, read_id_tokens(arguments.oidc_token, audience=audience), arguments.rule)
    is_renewable = arguments.oidc_token == ENVIRONMENT
    path = save_token(url, given.pop("token"), audience=audience if is_renewable else None, rule=arguments.rule)
    models = "all models" if given["models"] is None else ", ".join(given["models"])
    output.result(
        {"server": url, **given, "token_file": str(path)},
        [
            f"Signed in to {url} as {given['username']} by rule {given['rule']}, until {given['expires_at']}.",
            f"It may {', '.join(given['verbs'])} on {models}; the token is in {path}.",
        ],
    )
    return exits.OK


def _ask(prompt: str, ask: Callable[[str], str] = input) -> str:
    if not sys.stdin.isatty():
        raise refuse("There is no terminal to ask on.", "Use --username with --password-stdin.")
    return ask(prompt)


def issue_token(client: Client, username: str, password: str, *, name: str) -> str:
    """A new token in clear text; it is shown this once. Needs no token itself."""
    return str(client.post("/tokens", {"username": username, "password": password, "name": name})["token"])


def create_team(client: Client, slug: str, title: str = "") -> dict[str, Any]:
    created: dict[str, Any] = client.post("/teams", {"slug": slug, "title": title or slug})
    return created


def create_user(
    client: Client,
    username: str,
    *,
    password: str | None,
    team: str | None,
    roles: list[str],
) -> dict[str, Any]:
    """The created user, with its roles in the team granted."""
    memberships = [{"team": team, "role": role} for role in roles] if team else []
    body: dict[str, Any] = {"username": username, "roles": memberships}
    created: dict[str, Any] = client.post("/users", body if password is None else {**body, "password": password})
    return created


def issue_token_for(client: Client, username: str, *, name: str, days: float | None = None) -> str:
    """A new token in clear text for somebody else, such as a robot; administrators may."""
    return str(client.post(address_of(username, "/tokens"), {"name": name, **expiry(days)})["token"])


def run_team(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        created = create_team(client, arguments.slug, arguments.title)
    output.result(created, [f"Team {arguments.slug} is created."])
    return exits.OK


def run_user(arguments: argparse.Namespace, output: Output) -> int:
    if arguments.role and not arguments.team:
        raise refuse("A role is held in a team.", "Add --team TEAM.")
    with connect(arguments.server) as client:
        password = _password_of_new(arguments)
        created = create_user(
            client, arguments.username, password=password, team=arguments.team, roles=arguments.role or []
        )
    lines = [f"User {arguments.username} is created."]
    if password is None:
        lines = [
            f"User {arguments.username} is created without a password: only a token lets {arguments.username} in.",
            f"Next: sluicegate user token {arguments.username} --name TEXT; whoever has it sets SLUICEGATE_TOKEN.",
        ]
    else:
        lines.append(f"Next, as {arguments.username}: sluicegate login --username {arguments.username}")
    output.result(created, lines)
    return exits.OK


def _password_of_new(arguments: argparse.Namespace) -> str | None:
    """From standard input, or asked for on a terminal; None for a robot, which only tokens let in."""
    if arguments.password_stdin:
        return sys.stdin.readline().rstrip("\n")
    is_robot = arguments.role is not None and set(arguments.role) == {"ci"}
    if is_robot or not sys.stdin.isatty():
        return None
    password = getpass.getpass(f"Password for {arguments.username} (none: only tokens let in): ")
    if password and getpass.getpass("Again: ") != password:
        raise refuse("The two passwords differ; nobody was created.", "Repeat the command.")
    return password or None


def run_token(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        token = issue_token_for(client, arguments.username, name=arguments.name, days=arguments.days)
    output.result({"username": arguments.username, "token": token}, [token])
    return exits.OK


def run_revoke(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        client.delete(address_of(arguments.username, f"/tokens?name={quote(arguments.name, safe='')}"))
    named = {"username": arguments.username, "name": arguments.name}
    output.result(named, [f"The tokens of {arguments.username} named {arguments.name!r} let nobody in any more."])
    return exits.OK
