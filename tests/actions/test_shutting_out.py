"""People who must not come in any more, passwords that change, and guesses that are slowed."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from io import StringIO
from threading import BoundedSemaphore
from typing import Any

import pytest
from django.contrib.auth.hashers import make_password
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts import actions
from accounts.actions import hashing
from accounts.core.access import Actor, Role
from accounts.core.throttle import KNOWN_FOR, LIMITS, TallyKind
from accounts.models import SignInTally, User
from ledger.core.errors import Invalid, NotFound, Refused, StateChanged, Throttled, Unavailable
from tests.support.worlds.factories import events_of, make_user

pytestmark = pytest.mark.django_db
SYSTEM = Actor.system("tests")
GOOD, BETTER = "a long pass phrase", "an even longer phrase"
NOW = datetime(2026, 3, 1, tzinfo=UTC)


def admin(name: str = "root") -> Actor:
    return actions.actor_for(make_user(name, is_admin=True, password=GOOD))


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


class TestStanding:
    def test_a_deactivated_user_is_out_at_once_and_for_good(self) -> None:
        root, anna = admin(), make_user("anna", team="search", password=GOOD)
        token = actions.issue_token(user=anna, name="laptop", actor=actions.actor_for(anna))
        page = signed_in(anna)
        assert page.get("/api/v1/me").status_code == 200
        for _ in range(2):
            actions.deactivate_user(actor=root, username="anna", reason=" left ")
        assert page.get("/api/v1/me").status_code == 401
        with pytest.raises(Refused, match="was revoked"):
            actions.user_of_token(token)
        assert actions.sign_in(username="anna", password=GOOD, address="192.0.2.1") is None
        event = events_of("user", "anna")[0]
        assert (event.verb, event.reason, event.facts) == ("user.deactivated", "left", {"tokens_ended": 1})
        assert events_of("user", "anna").filter(verb="user.deactivated").count() == 1
        actions.reactivate_user(actor=root, username="anna")
        assert page.get("/api/v1/me").status_code == 401, "a session of before came back"
        with pytest.raises(Refused):
            actions.user_of_token(token)
        anna.refresh_from_db()
        assert actions.sign_in(username="anna", password=GOOD, address="192.0.2.1") == anna
        assert signed_in(anna).get("/api/v1/me").json()["roles"] == [{"team": "search", "role": "model_team"}]

    def test_the_last_administrator_cannot_be_shut_out(self) -> None:
        root = admin()
        make_user("robot", is_admin=True)  # only tokens let it in
        for shut_out in (actions.deactivate_user, lambda **who: actions.set_administrator(is_admin=False, **who)):
            with pytest.raises(StateChanged, match="last administrator") as caught:
                shut_out(actor=root, username="root")
            assert caught.value.code == "last_administrator"
        other = admin("other")
        actions.deactivate_user(actor=other, username="root")
        with pytest.raises(StateChanged):
            actions.deactivate_user(actor=other, username="other")

    def test_a_right_is_rolled_back_in(self) -> None:
        root = admin()
        make_user("anna", team="search", role=Role.CI)
        actions.revoke_role(actor=root, username="anna", team="search", role=Role.CI)
        assert actions.actor_for(User.objects.get(username="anna")).roles == ()
        with pytest.raises(NotFound, match="list the team's members"):
            actions.revoke_role(actor=root, username="anna", team="search", role=Role.CI)
        actions.set_administrator(actor=root, username="anna", is_admin=True)
        assert not actions.set_administrator(actor=root, username="anna", is_admin=False).is_superuser
        assert [(event.verb, event.facts["role"]) for event in events_of("user", "anna")] == [
            ("role.revoked", "administrator"), ("role.granted", "administrator"), ("role.revoked", "ci"),
        ]  # fmt: skip

    def test_others_may_do_none_of_it(self) -> None:
        make_user("bob", team="search", role=Role.RELEASE_MANAGER, password=GOOD)
        anna = actions.actor_for(make_user("anna", team="search", role=Role.RELEASE_MANAGER))
        for forbidden in (
            lambda: actions.deactivate_user(actor=anna, username="bob"),
            lambda: actions.deactivate_user(actor=anna, username="anna"),
            lambda: actions.reactivate_user(actor=anna, username="bob"),
            lambda: actions.set_administrator(actor=anna, username="anna", is_admin=True),
            lambda: actions.revoke_role(actor=anna, username="bob", team="search", role="ci"),
            lambda: actions.change_password(actor=anna, user=User.objects.get(username="bob"), password=BETTER),
        ):
            with pytest.raises(Refused):
                forbidden()
        with pytest.raises(NotFound):
            actions.deactivate_user(actor=SYSTEM, username="nobody")


class TestPasswords:
    @pytest.mark.parametrize("weak", ["password12", "1234567890123", "admin-admin", "short", "annabella-r", "x" * 1025])
    def test_weak_ones_are_refused_by_every_way(self, weak: str) -> None:
        anna = make_user("annabella-rose", password=GOOD)
        with pytest.raises(Invalid) as caught:
            actions.create_user(actor=SYSTEM, username="annabella-rosa", password=weak)
        assert caught.value.facts["errors"][0]["field"] == "password"
        with pytest.raises(Invalid):
            actions.change_password(actor=SYSTEM, user=anna, password=weak)

    def test_a_change_ends_sessions_and_tokens(self) -> None:
        anna = make_user("anna", password=GOOD)
        token = actions.issue_token(user=anna, name="laptop", actor=actions.actor_for(anna))
        page = signed_in(anna)
        actions.change_password(actor=actions.actor_for(anna), user=anna, password=BETTER)
        assert page.get("/api/v1/me").status_code == 401
        with pytest.raises(Refused):
            actions.user_of_token(token)
        assert actions.sign_in(username="anna", password=GOOD, address="192.0.2.1") is None
        assert actions.sign_in(username="anna", password=BETTER, address="192.0.2.1") is not None
        event = events_of("user", "anna").get(verb="password.changed")
        assert event.facts == {"tokens_ended": 1} and BETTER not in str(vars(event))
        with pytest.raises(Invalid, match="is the old one"):
            actions.change_password(actor=SYSTEM, user=anna, password=BETTER)

    def test_an_owner_who_is_locked_out_comes_in_again(self) -> None:
        make_user("admin", is_admin=True, password=GOOD)
        User.objects.update(is_active=False, is_superuser=False)
        for n in range(LIMITS[TallyKind.ACCOUNT].free):
            actions.sign_in(username="admin", password="wrong", address=f"192.0.{n}.1", now=NOW)
        said = StringIO()
        call_command("recover_administrator", stdout=said)
        password = said.getvalue().split()[-1].rstrip(".")
        found = actions.sign_in(username="admin", password=password, address="198.51.100.1", now=NOW)
        assert found is not None and found.is_superuser and found.is_active
        with pytest.raises(CommandError, match="no user nobody"):
            call_command("recover_administrator", "nobody")

    def test_the_owner_may_choose_the_password(self, monkeypatch: pytest.MonkeyPatch) -> None:
        make_user("admin")
        for _ in range(LIMITS[TallyKind.PAIR].free + 5):
            with suppress(Throttled):
                actions.sign_in(username="admin", password="wrong", address="192.0.2.1")
        monkeypatch.setattr("sys.stdin", StringIO(f"{BETTER}\n"))
        said = StringIO()
        call_command("recover_administrator", "admin", "--password-stdin", "--token", stdout=said)
        assert BETTER not in said.getvalue()
        assert actions.sign_in(username="admin", password=BETTER, address="192.0.2.1") is not None
        assert actions.user_of_token(said.getvalue().split("SLUICEGATE_TOKEN=")[1].strip()).username == "admin"


class TestThrottle:
    def guess(self, times: int, *, address: str = "192.0.2.1", at_s: float = 0, username: str = "anna") -> None:
        for _ in range(times):
            now = NOW + timedelta(seconds=at_s)
            assert actions.sign_in(username=username, password="wrong", address=address, now=now) is None

    def enter(self, *, address: str = "192.0.2.1", at_s: float = 0) -> User | None:
        return actions.sign_in(username="anna", password=GOOD, address=address, now=NOW + timedelta(seconds=at_s))

    @pytest.fixture(autouse=True)
    def anna(self) -> User:
        return make_user("anna", password=GOOD)

    def test_guesses_are_slowed_and_say_for_how_long(self, anna: User) -> None:
        self.guess(5)
        with pytest.raises(Throttled) as caught:
            self.enter(at_s=0.5)
        assert caught.value.facts["retry_after_s"] == 1 and "Try again in 1 s" in caught.value.message
        assert self.enter(at_s=1) == anna
        self.guess(5, at_s=2)  # the right one forgave what was before

    def test_a_try_that_is_not_taken_does_not_count(self, anna: User) -> None:
        self.guess(5)
        for _ in range(50):
            with pytest.raises(Throttled):
                self.enter()
        assert self.enter(at_s=1) == anna

    def test_guesses_from_everywhere_do_not_shut_out_who_was_here_before(self, anna: User) -> None:
        self.enter()
        for n in range(40):
            try:
                self.guess(1, address=f"198.51.{n}.1", at_s=1)
            except Throttled:
                break
        else:
            raise AssertionError("forty networks guessed at one account unslowed")
        assert self.enter(at_s=1) == anna
        with pytest.raises(Throttled):
            self.enter(address="203.0.113.1", at_s=1)
        assert self.enter(address="203.0.113.1", at_s=62) == anna

    def test_one_network_is_slowed_for_all_accounts_together(self) -> None:
        for n in range(LIMITS[TallyKind.NETWORK].free):
            self.guess(1, username=f"user-{n}")
        with pytest.raises(Throttled):
            self.guess(1, username="another")
        assert self.enter(address="198.51.100.1") is not None

    def test_unknown_names_are_slowed_alike(self) -> None:
        self.guess(5, username="nobody")
        with pytest.raises(Throttled):
            self.guess(1, username="nobody")
        self.guess(1, username="x" * 5000)

    def test_a_stolen_token_cannot_guess_the_password(self, anna: User) -> None:
        for _ in range(5):
            with pytest.raises(Invalid, match="not the password"):
                actions.prove_password(user=anna, password="wrong", address="192.0.2.1", now=NOW)
        with pytest.raises(Throttled):
            actions.prove_password(user=anna, password=GOOD, address="192.0.2.1", now=NOW)

    def test_what_says_nothing_any_more_is_deleted(self, anna: User) -> None:
        self.guess(1, username="nobody", address="198.51.100.9")
        assert SignInTally.objects.count() == 3
        self.enter(at_s=86400 + 1)
        assert SignInTally.objects.filter(known_at=None, failed_at__lt=NOW + timedelta(seconds=1)).count() == 0

    def test_many_networks_cost_a_wrong_password_nothing(self) -> None:
        """Networks that are known stay for 90 days: who guesses does not make us read them all each time."""
        from accounts.actions.sign_in import _forget_old

        kept = [SignInTally(key=f"kept-{number}", forget_at=NOW + KNOWN_FOR) for number in range(20_000)]
        gone = [SignInTally(key=f"gone-{number}", forget_at=NOW - timedelta(seconds=1)) for number in range(120)]
        SignInTally.objects.bulk_create([*kept, *gone], batch_size=5_000)
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE accounts_signintally")
        with CaptureQueriesContext(connection) as asked:
            _forget_old(NOW)
        assert SignInTally.objects.count() == 20_020  # a hundred at a time
        with connection.cursor() as cursor:
            cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + asked[0]["sql"])
            (plan,) = cursor.fetchone()
        assert "Seq Scan" not in str(plan) and "Rows Removed by Filter" not in str(plan), plan

    def test_too_many_at_once_are_sent_away(self, anna: User, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hashing, "_LONGEST_WAIT_S", 0.01)
        monkeypatch.setattr(hashing, "_CHECKS", BoundedSemaphore(1))
        for _ in range(LIMITS[TallyKind.PAIR].free + 1):  # being sent away is no wrong password
            with hashing.one_of_few(), pytest.raises(Unavailable, match="Try again") as caught:
                self.enter()
            assert caught.value.facts["retry_after_s"] >= 1
        assert self.enter() == anna

    def test_an_old_hash_is_rewritten_when_its_owner_signs_in(self, settings: Any) -> None:
        settings.PASSWORD_HASHERS = [
            "django.contrib.auth.hashers.Argon2PasswordHasher",
            "django.contrib.auth.hashers.PBKDF2PasswordHasher",
            "tests.support.worlds.hashing.OnceHashed",
        ]
        old = make_password(GOOD, hasher="pbkdf2_sha256")
        User.objects.create(username="old", password=old)
        assert old.startswith("pbkdf2_sha256$")
        assert actions.sign_in(username="old", password=GOOD, address="192.0.2.1") is not None
        assert User.objects.get(username="old").password.startswith("argon2$argon2id$")
        assert actions.sign_in(username="old", password=GOOD, address="192.0.2.1") is not None

    def test_who_must_wait_takes_nobodys_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.guess(5)
        monkeypatch.setattr(hashing, "_LONGEST_WAIT_S", 0.01)
        monkeypatch.setattr(hashing, "_CHECKS", BoundedSemaphore(1))
        with hashing.one_of_few(), pytest.raises(Throttled):
            self.enter()

    def test_networks_are_forgotten_with_time_though_nobody_comes_in(self) -> None:
        self.enter()
        self.guess(1, username="nobody", address="198.51.100.9", at_s=KNOWN_FOR.total_seconds() - 1)
        assert SignInTally.objects.exclude(known_at=None).count() == 1
        self.guess(1, username="nobody", address="198.51.100.9", at_s=KNOWN_FOR.total_seconds() + 1)
        assert SignInTally.objects.count() == 3  # those of this guesser
