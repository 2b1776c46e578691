"""One person by two issuers, both real ones on loopback: a role goes when nobody gives it any more, and a session stays its issuer's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client

from accounts.actions import grant_role, revoke_role
from accounts.actions import issuers as issuer_actions
from accounts.actions.token_rules import create_role_rule, delete_role_rule
from accounts.models import Issuer as IssuerRow
from accounts.models import Membership, RuleMembership, User, UserSession
from ledger.models import Event
from tests.support.servers.issuer import Issuer, return_path
from tests.support.worlds.factories import make_team, make_user
from tests.support.worlds.issuer_setup import SYSTEM, configured

PASSWORD = "a long pass phrase"


@dataclass
class Door:
    """A running issuer, its row here, and what signs ann in by it."""

    issuer: Issuer
    row: IssuerRow

    def sign_in(self, *groups: str) -> Client:
        self.issuer.person = {"sub": f"{self.row.title}-ann", "groups": list(groups)}
        client = Client()
        away = client.get(f"/sign-in/with/{self.row.pk}/")
        assert client.get(return_path(self.issuer.authorize(away["Location"]))).status_code == 302
        return client


@pytest.fixture
def doors(db: Any) -> Iterator[tuple[Door, Door]]:
    """Two, by each of which the group `ml` gives ann the role model_team in search."""
    make_team("search")
    make_user("ann", password=PASSWORD)
    with Issuer() as first, Issuer() as second:
        made = (Door(first, configured(first, title="Acme")), Door(second, configured(second, title="Partner")))
        for door in made:
            issuer_actions.prepare_identity(actor=SYSTEM, issuer=door.row, username="ann", sub=f"{door.row.title}-ann")
            create_role_rule(actor=SYSTEM, issuer=door.row, claims={"groups": "ml"}, team="search", role="model_team")
        yield made


def has_role() -> bool:
    return Membership.objects.filter(user__username="ann", team__slug="search", role="model_team").exists()


def told() -> list[str]:
    rows = Event.objects.filter(verb__in=["role.granted", "role.revoked"], subject_id="ann").order_by("seq")
    return list(rows.values_list("verb", flat=True))


class TestRoles:
    @pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["the first stops first", "the second stops first"])
    def test_it_goes_with_the_last_who_gives_it(self, doors: tuple[Door, Door], order: tuple[int, int]) -> None:
        for door in doors:
            door.sign_in("ml")
        doors[order[0]].sign_in()
        assert has_role() and told() == ["role.granted"]
        doors[order[1]].sign_in()
        assert not has_role() and told() == ["role.granted", "role.revoked"]

    def test_one_that_gives_it_again_counts_again(self, doors: tuple[Door, Door]) -> None:
        first, second = doors
        for door in (first, second):
            door.sign_in("ml")
        first.sign_in()
        first.sign_in("ml")
        second.sign_in()
        assert has_role()

    def test_one_by_hand_stays_whoever_gives_it_as_well(self, doors: tuple[Door, Door]) -> None:
        first, second = doors
        grant_role(actor=SYSTEM, username="ann", team="search", role="model_team")
        first.sign_in("ml")
        second.sign_in("ml")
        first.sign_in()
        second.sign_in()
        assert has_role() and told() == ["role.granted"]

    def test_one_that_rules_gave_and_a_person_confirmed_stays(self, doors: tuple[Door, Door]) -> None:
        for door in doors:
            door.sign_in("ml")
        grant_role(actor=SYSTEM, username="ann", team="search", role="model_team")
        for door in doors:
            door.sign_in()
        assert has_role()

    def test_a_person_takes_it_away_from_both(self, doors: tuple[Door, Door]) -> None:
        first, second = doors
        first.sign_in("ml")
        second.sign_in("ml")
        revoke_role(actor=SYSTEM, username="ann", team="search", role="model_team")
        assert not has_role() and not RuleMembership.objects.exists()
        second.sign_in("ml")  # whose rule gives it still: the rule is what to change
        assert has_role()
        second.sign_in()
        assert not has_role()

    def test_a_rule_that_is_deleted_gives_it_no_more(self, doors: tuple[Door, Door]) -> None:
        first, second = doors
        first.sign_in("ml")
        second.sign_in("ml")
        for rule in list(second.row.role_rules.all()):
            delete_role_rule(actor=SYSTEM, rule=rule)
        second.sign_in("ml")
        assert has_role()
        first.sign_in()
        assert not has_role()

    @pytest.mark.parametrize("what", ["off", "not for people", "unlinked"])
    def test_an_issuer_that_is_shut_gives_none_any_more(self, doors: tuple[Door, Door], what: str) -> None:
        first, second = doors
        first.sign_in("ml")
        second.sign_in("ml")
        shut: dict[str, Callable[[Door], Any]] = {
            "off": lambda door: change(door, is_active=False),
            "not for people": lambda door: change(door, is_for_people=False),
            "unlinked": lambda door: [
                issuer_actions.remove_identity(actor=SYSTEM, identity=one) for one in door.row.identities.all()
            ],
        }
        shut[what](first)
        assert has_role()
        shut[what](second)
        assert not has_role() and told() == ["role.granted", "role.revoked"]
        ended = Event.objects.filter(facts__has_key="roles_ended").order_by("seq").values_list("facts", flat=True)
        assert [facts["roles_ended"] for facts in ended] == [0, 1]


def change(door: Door, **changes: Any) -> None:
    row = IssuerRow.objects.get(pk=door.row.pk)
    issuer_actions.change_issuer(actor=SYSTEM, issuer=row, expected_version=row.version, changes=changes)


class TestSession:
    def test_a_new_password_leaves_it_the_issuers(self, doors: tuple[Door, Door]) -> None:
        first, second = doors
        client = first.sign_in("ml")
        ends_at = client.session.get_expiry_date()
        new = "quite another pass phrase"
        sent = {"old_password": PASSWORD, "password": new, "again": new}
        assert client.post("/password/", sent).status_code == 302
        assert [row.issuer for row in UserSession.objects.all()] == [first.row]
        assert abs((client.session.get_expiry_date() - ends_at).total_seconds()) < 60
        change(second, is_active=False)
        assert client.get("/models/").status_code == 200
        change(first, is_active=False)
        assert client.get("/models/").status_code == 302, "the issuer is off, and a session that it began goes on"

    def test_one_by_password_stays_that(self, doors: tuple[Door, Door]) -> None:
        client = Client()
        assert client.post("/sign-in/", {"username": "ann", "password": PASSWORD}).status_code == 302
        new = "quite another pass phrase"
        sent = {"old_password": PASSWORD, "password": new, "again": new}
        assert client.post("/password/", sent).status_code == 302
        assert [row.issuer for row in UserSession.objects.all()] == [None]


@pytest.mark.django_db(transaction=True)
def test_two_sign_ins_at_once_lose_no_role(transactional_db: Any) -> None:
    """The one issuer takes the role back while the other gives it: the second waits, and the role is there in the end."""
    from accounts.actions.issuer_sign_in import _follow_rules

    make_team("search")
    ann = make_user("ann")
    with Issuer() as running, Issuer() as other:
        takes, gives = configured(running, title="Acme"), configured(other, title="Partner")
        for row in (takes, gives):
            create_role_rule(actor=SYSTEM, issuer=row, claims={"groups": "ml"}, team="search", role="model_team")
        with transaction.atomic():
            _follow_rules(takes, ann, {"groups": ["ml"]})
        errors: list[BaseException] = []

        def give() -> None:
            try:
                with transaction.atomic():
                    _follow_rules(gives, User.objects.get(pk=ann.pk), {"groups": ["ml"]})
            except BaseException as error:
                errors.append(error)
            finally:
                connection.close()

        thread = threading.Thread(target=give)
        with transaction.atomic():
            _follow_rules(takes, ann, {"groups": []})
            thread.start()
            thread.join(1)
            assert thread.is_alive(), "it did not wait for the sign-in that takes the role back"
        thread.join(60)
    assert not errors and has_role()
