"""The demo's users: three people with different roles, since an author may not approve their own release."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from sluicegate.client import Client

TEAM = "demo"


@dataclass(frozen=True)
class Actors:
    """Signed-in clients of one server. `author` makes the model and the first release, `robot` is CI."""

    author: Client
    robot: Client
    manager: Client

    def close(self) -> None:
        for client in (self.author, self.robot, self.manager):
            client.close()


def assemble(admin: Client) -> Actors:
    """The team and its members, created by an administrator, each signed in with a token of their own."""
    admin.post("/teams", {"slug": TEAM, "title": "The demo's team"})
    return Actors(
        _person(admin, "ada", "model_team"), _robot(admin, "ci-robot"), _person(admin, "mara", "release_manager")
    )


def _person(admin: Client, username: str, role: str) -> Client:
    """Somebody with a password, who signs in."""
    password = secrets.token_urlsafe(16)
    admin.post("/users", {"username": username, "password": password, "roles": [{"team": TEAM, "role": role}]})
    with Client(admin.url) as anonymous:
        made = anonymous.post("/tokens", {"username": username, "password": password, "name": "demo"})
    return Client(admin.url, str(made["token"]))


def _robot(admin: Client, username: str) -> Client:
    """CI: no password, a token that an administrator issues."""
    admin.post("/users", {"username": username, "roles": [{"team": TEAM, "role": "ci"}]})
    made = admin.post(f"/users/{username}/tokens", {"name": "demo"})
    return Client(admin.url, str(made["token"]))
