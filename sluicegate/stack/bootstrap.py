"""`python -m sluicegate.stack.bootstrap`: required rows in the database, and files on disk, before the stack's services start.

Migrates, and makes sure of the first administrator, a token for the command line on this machine, the environments, and the gateway with
its start configuration. Every start runs it; what is there already stays.
"""

# ruff: noqa: T201 - it talks to a terminal
from __future__ import annotations

import argparse
import json
from datetime import timedelta
from pathlib import Path

import django
from django.conf import settings
from django.core.management import call_command
from django.db import transaction
from django.utils import timezone

from ledger.adapters.files import write_whole
from sluicegate.stack import secrets
from sluicegate.stack.machine import ADMIN_TOKEN, FIRST_PASSWORD, GATEWAY_NAME

#: Staging is where gates talk to servers directly; production is where users are: no caller chooses a release there, as its work
#: would slow down the users that a release is judged by.
ENVIRONMENTS: dict[str, dict[str, object]] = {
    "staging": {"title": "Staging", "is_routed": False, "needs_passed_report": False},
    "production": {"title": "Production", "is_routed": True, "needs_passed_report": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m sluicegate.stack.bootstrap")
    parser.add_argument("--gateway-http-port", type=int, required=True)
    parser.add_argument("--gateway-grpc-port", type=int, required=True)
    parser.add_argument("--gateway-admin", required=True, metavar="unix:/PATH")
    parser.add_argument("--gateway-relay", required=True, metavar="unix:/PATH")
    parser.add_argument("--envoy-config", type=Path, required=True)
    said = parser.parse_args()
    django.setup()
    call_command("migrate", interactive=False, verbosity=1)
    with transaction.atomic():
        ensure_administrator(settings.STATE_DIR)
        ensure_environments()
        ensure_gateway(http_port=said.gateway_http_port, grpc_port=said.gateway_grpc_port, admin_url=said.gateway_admin)
    write_gateway_config(said.envoy_config, admin_address=said.gateway_admin, relay=said.gateway_relay)
    print("The database is ready for the services.")


def ensure_administrator(state_dir: Path) -> None:
    """An administrator, the first one's password in a file for `up` to show, and a token that lets in.

    A token that would end within a month is replaced, since a stack may run for long without another start.
    """
    from accounts.actions import actor_for, ensure_first_administrator, issue_token, token_digest
    from accounts.queries import first_administrator, is_token_known

    password = ensure_first_administrator()
    if password:  # on disk before it is in the database: a crash between the two must not lose it
        secrets.write(state_dir / FIRST_PASSWORD, password)
    file = state_dir / ADMIN_TOKEN
    soon = timezone.now() + timedelta(days=30)
    if file.exists() and is_token_known(token_digest(file.read_text().strip()), until=soon):
        return
    administrator = first_administrator()
    if administrator is not None:
        latest = timezone.now() + timedelta(days=settings.TOKEN_MOST_DAYS)
        token = issue_token(user=administrator, name="this machine", actor=actor_for(administrator), expires_at=latest)
        secrets.write(file, token)


def ensure_environments() -> None:
    from serving.environments.actions.environments import ensure_environment

    for slug, rules in ENVIRONMENTS.items():
        ensure_environment(slug=slug, rules=rules)


def ensure_gateway(*, http_port: int, grpc_port: int, admin_url: str) -> None:
    from accounts.core.access import Actor
    from serving.targets.queries import get_environment
    from serving.traffic.actions.gateways import register_gateway

    production = get_environment("production")
    if production.retired_at is not None:  # a retired environment serves nothing
        return
    register_gateway(
        actor=Actor.system("setup"),
        environment=production,
        name=GATEWAY_NAME,
        admin_url=admin_url,
        http_url=f"http://127.0.0.1:{http_port}",
        grpc_address=f"127.0.0.1:{grpc_port}",
    )


def write_gateway_config(file: Path, *, admin_address: str, relay: str) -> None:
    from serving.traffic.adapters.envoy_bootstrap import bootstrap

    told = bootstrap(GATEWAY_NAME, settings.XDS_ADDRESS, admin_address, relay=relay)
    write_whole(file, json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
