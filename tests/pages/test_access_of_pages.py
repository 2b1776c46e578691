"""Every page asked by every kind of person, and every form sent by who may not: nothing is shown, and nothing happens."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from django.urls import URLPattern

from accounts import actions as accounts
from accounts.core.access import EVERY_TEAM, Actor, Role
from accounts.models import User
from ledger.models import Event
from tests.api.route_world import MODEL, OURS, THEIRS, World, with_every_role, world
from tests.support.house import access_matrix
from tests.support.servers.issuer import Issuer
from tests.support.worlds.factories import make_user
from web.urls import urlpatterns

pytestmark = [pytest.mark.django_db, pytest.mark.slow]  # every page by everybody

#: Pages for people who are not signed in.
OPEN = {"sign_in", "errors", "error"}
#: Not asked: what leaves for another site, or only changes this browser or which mails oneself gets.
UNASKED = {"sign_out", "looks", "issuer_sign_in", "issuer_return", "account_mails"}
#: Whose first part names something of one team.
_OF_A_TEAM = re.compile(r"(models/<|rollouts/<|gate-runs/<|alarms/<|incidents/<|webhooks/<int)")
#: Enough for a form to come as far as its permission.
FORM = {
    "reason": "tried", "confirmed": "yes", "version": "1", "name": "tried", "username": "tried", "slug": "tried", "team": OURS,
    "role": "viewer", "title": "tried", "text": "tried", "target": "https://example.com/a", "kind": "webhook", "verbs": "rollout.*",
}  # fmt: skip


@dataclass(frozen=True)
class Person:
    """`column` of the printed table; none for those who only must be let in nowhere."""

    name: str
    client: Client
    column: str = ""
    is_outsider: bool = False
    may_change: bool = True


def _signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def people() -> list[Person]:
    found = [
        Person("nobody", Client(), "nobody", is_outsider=True),
        Person("no role", _signed_in(make_user("norole")), "no role", is_outsider=True),
    ]
    found.append(Person("every role elsewhere", _signed_in(with_every_role(THEIRS)), is_outsider=True))
    for role in Role:
        ours = make_user(f"{role}-y", team=OURS, role=role)
        found.append(Person(role.value, _signed_in(ours), role.value, may_change=role is not Role.VIEWER))
    everywhere = make_user("everywhere")
    accounts.grant_role(actor=Actor.system("test"), username="everywhere", team=EVERY_TEAM, role=Role.RELEASE_MANAGER)
    found.append(Person("release_manager of every team", _signed_in(everywhere), "release_manager of every team"))
    found.append(Person("administrator", _signed_in(make_user("root", is_admin=True)), "administrator"))
    return found


def is_form(page: URLPattern) -> bool:
    """Whether it only takes what a form sends (`web.pages.forms.posted`)."""
    return str(getattr(page.callback, "__qualname__", "")).startswith("posted.")


def address_of(page: URLPattern, made: World) -> str:
    """The page's address with what the world has in place of its arguments."""
    pattern = str(page.pattern)
    numbers = {
        "rollouts": made.rollout.pk, "gate-runs": made.gate_run.pk, "webhooks": made.webhook.pk,
        "settings": made.issuer_row.pk, "alarms": made.alarm.pk, "incidents": made.incident.pk,
    }  # fmt: skip
    values: dict[str, Any] = {
        "slug": MODEL, "number": made.release.number, "pk": numbers.get(pattern.split("/")[0], 1), "username": "target",
        "path": "artifact/model.onnx", "code": "forbidden", "delivery": made.delivery.pk, "release": made.release.pk,
        "verb": "pause", "to": "off", "rule": 1, "identity": 1, "digest": made.report.digest, "upload": made.upload_id,
        "name": "eu-1" if pattern.startswith("settings/gateways/") else "x",
    }  # fmt: skip
    return "/" + re.sub(r"<(?:(\w+):)?(\w+)>", lambda found: str(values.get(found[2], _any(found[1]))), pattern)


def _any(converter: str | None) -> Any:
    return {"int": 1, "uuid": uuid.uuid4(), None: "x"}.get(converter, "x")


def outcome(answer: Any) -> str:
    """In a word: shown, another page's, sign in first, not allowed, or not there as far as this person is told."""
    if answer.status_code == 302:
        return "signs in" if answer.url.startswith("/sign-in/") else "moves on"
    return {200: "yes", 401: "signs in", 403: "no", 404: "hidden"}.get(answer.status_code, str(answer.status_code))


def _ask(person: Person, page: URLPattern, made: World, *, send: bool) -> tuple[str, bytes, int]:
    """(outcome, body, events written) of one request, whose effects are undone."""
    address = address_of(page, made)
    with transaction.atomic():
        before = Event.objects.count()
        answer: Any = person.client.post(address, FORM) if send else person.client.get(address)
        body = b"".join(answer.streaming_content) if answer.streaming else answer.content
        events = Event.objects.count() - before
        transaction.set_rollback(True)
    return outcome(answer), body, events


@pytest.mark.timeout(900)  # some hundred pages, a dozen people
def test_pages_show_what_is_ones_own_and_forms_do_nothing_for_others(settings: Any) -> None:
    settings.WEBHOOKS_ALLOW_PRIVATE, settings.WEBHOOK_TIMEOUT_S = True, 0.1
    everybody = people()
    root = Client(
        headers={
            "Authorization": f"Bearer {accounts.issue_token(user=User.objects.get(username='root'), name='w', actor=Actor.system('test'))}"
        }
    )
    with Issuer() as issuer:
        _ask_all(everybody, world(root, issuer))


def _ask_all(everybody: list[Person], made: World) -> None:
    wrong, found = [], {}
    for page in urlpatterns:
        assert isinstance(page, URLPattern)
        name, pattern = str(page.name), str(page.pattern)
        if name in UNASKED:
            continue
        for person in everybody:
            told, body, events = _ask(person, page, made, send=is_form(page))
            where = f"{name} ({pattern}) by {person.name}: {told}"
            if told == "yes" and person.column == "nobody" and name not in OPEN:
                wrong.append(f"{where}, without signing in")
            if person.is_outsider and _OF_A_TEAM.match(pattern) and told in {"yes", "moves on"}:
                wrong.append(f"{where}, of another team")
            if person.is_outsider and name not in UNASKED and MODEL.encode() in body and told == "yes":
                wrong.append(f"{where}, and names {MODEL}")
            if events and (person.is_outsider or not person.may_change):
                wrong.append(f"{where}, and wrote {events} events")
            if re.fullmatch(r"5\d\d", told):
                wrong.append(where)
            if person.column and not is_form(page):
                found.setdefault(f"/{pattern}", {})[person.column] = told
    assert not wrong, "\n".join(wrong)
    columns = [person.column for person in everybody if person.column]
    access_matrix.section("pages", access_matrix.outcomes_table("page", columns, found))


def test_the_table_of_roles_is_the_one_that_is_printed() -> None:
    access_matrix.section("roles", access_matrix.roles_table())
