"""`sluicegate login`: a token for this machine, by a password or by a CI job's identity token."""

from __future__ import annotations

import argparse
import getpass
import os
import platform
import sys
from collections.abc import Callable

from sluicegate.cli import exits
from sluicegate.cli.errors import refuse
from sluicegate.cli.id_token import AUDIENCE, ENVIRONMENT, exchange, read_id_tokens
from sluicegate.cli.output import Output
from sluicegate.cli.session import as_nobody, save_token, server_url


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


def run_login(arguments: argparse.Namespace, output: Output) -> int:
    url = server_url(arguments.server)
    if arguments.oidc_token:
        return _login_by_id_token(arguments, output, url)
    username = arguments.username or _ask("Username: ")
    password = sys.stdin.readline().rstrip("\n") if arguments.password_stdin else _ask("Password: ", getpass.getpass)
    with as_nobody(url) as client:
        body = {"username": username, "password": password, "name": f"cli on {platform.node()}"}
        token = str(client.post("/tokens", body)["token"])
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
