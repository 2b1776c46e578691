"""Issuers, rules and people of tests, made by the actions that administrators use."""

from __future__ import annotations

from typing import Any

from accounts.actions import issuers, token_rules
from accounts.adapters.issuer_keys import ISSUERS
from accounts.core.access import Actor, Role
from accounts.models import Issuer as IssuerRow
from accounts.models import TokenRule
from tests.support.servers.issuer import AUDIENCE, CLIENT, SECRET, Issuer
from tests.support.worlds.factories import make_user

SYSTEM = Actor.system("test")
GITHUB_RULE = {"repository_id": "4711", "ref": "refs/heads/main"}


def configured(running: Issuer, **over: Any) -> IssuerRow:
    """The row of an issuer that runs, for programs and people, with nothing kept of one that ran at its port before."""
    ISSUERS.forget(running.url)
    values = {
        "title": "Acme", "kind": "github", "audience": AUDIENCE, "client_id": CLIENT, "client_secret": SECRET,
        "is_for_people": True, **over,
    }  # fmt: skip
    return issuers.create_issuer(actor=SYSTEM, url=running.url, **values)


def rule_for(row: IssuerRow, **over: Any) -> TokenRule:
    """For the team search's robot."""
    robot = over.pop("robot", "robot")
    from accounts.models import User

    if not User.objects.filter(username=robot).exists():
        make_user(robot, team="search", role=Role.CI)
    values = {"title": "ranker's main", "claims": GITHUB_RULE, "username": robot, "verbs": ["ci"], **over}
    return token_rules.create_token_rule(actor=SYSTEM, issuer=row, **values)
