"""Mails to those whom an approval waits for, and whose model was rolled back: who gets one, once, and what it says."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from accounts import actions as people
from accounts.core.access import Actor, Role
from accounts.models import User
from ledger.actions import append_event
from ledger.core.errors import Invalid, Refused
from ledger.models import Event
from notifications import actions
from notifications.actions.deliveries import people_row, wake_dispatcher
from notifications.core.delivery import DeliveryState
from notifications.dispatcher import rounds
from notifications.models import Delivery, Webhook
from rollouts import actions as rollouts
from rollouts.actions.alarms import end_alarm
from rollouts.models import Rollout
from tests.support.servers.mail_server import MailServer
from tests.support.worlds.alarm_setup import burning
from tests.support.worlds.factories import make_admin, make_user
from tests.support.worlds.rollout_setup import awaiting, report_for, with_stable

pytestmark = pytest.mark.django_db
ENGINE = Actor.system("engine")
AT = "https://sluicegate.example.com"
S = DeliveryState


@pytest.fixture(autouse=True)
def mail(settings: Any) -> Iterator[MailServer]:
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.PUBLIC_URL = AT
    with MailServer() as running:
        settings.EMAIL_HOST, settings.EMAIL_PORT, settings.EMAIL_TIMEOUT = "127.0.0.1", running.port, 30
        people_row()
        yield running


def user_of(actor: Actor) -> User:
    return User.objects.get(pk=actor.user_id)


def gives_addresses() -> None:
    """Everybody has one: who gets no mail has another reason."""
    for user in User.objects.all():
        User.objects.filter(pk=user.pk).update(email=f"{user.username}@example.com")


def ask_again(rollout: Rollout) -> None:
    append_event(verb="rollout.approval_requested", subject_type="rollout", subject_id=rollout.pk, actor=ENGINE)


def send_all() -> None:
    rounds.run_round(lambda: True)


def receivers(mail: MailServer) -> list[str]:
    return sorted(address.partition("@")[0] for address in mail.recipients)


def test_whoever_may_approve_gets_one_mail_and_nobody_else(mail: MailServer) -> None:
    admin = make_user("root", is_admin=True)
    gone = make_user("gone", team="search", role=Role.RELEASE_MANAGER)
    people.deactivate_user(actor=make_admin("boss"), username=gone.username)
    for role in (Role.VIEWER, Role.MODEL_TEAM, Role.CI):
        make_user(role.value, team="search", role=role)
    make_user("elsewhere", team="other", role=Role.RELEASE_MANAGER)
    rollout, requester, manager = awaiting()
    gives_addresses()
    send_all()
    assert receivers(mail) == sorted([manager.name, admin.username, "boss"])
    ask_again(rollout), send_all()
    assert len(mail.got) == 3, "the same need, told twice"
    assert Delivery.objects.filter(need=f"approval:{rollout.pk}:start", state=S.DELIVERED).count() == 3
    assert requester.name not in receivers(mail) and rollout.candidate.author.username not in receivers(mail)  # type: ignore[union-attr]


def test_it_says_what_is_asked_by_whom_until_when_and_where_to_answer(mail: MailServer) -> None:
    rollout, requester, _ = awaiting()
    gives_addresses()
    send_all()
    (got,) = mail.got
    name, slug = rollout.candidate.name, rollout.model.slug
    assert got["Subject"] == f"[Sluicegate] {slug} {name} in Production waits for your approval (start)"
    text = got.get_content()
    for line in (
        f"{name} of {slug} waits for your approval of start in Production.", f"Asked by: {requester.name}", "Approvals: 0 of 1",
        "Until: ", f"{AT}/approvals/", f"{AT}/models/{slug}/r/2/diff/", f"{AT}/rollouts/{rollout.pk}/", f"{AT}/account/#mails",
        "Files: 1 changed", "is loaded and warmed in Production",
    ):  # fmt: skip
        assert line in text
    assert got["Message-ID"].startswith(f"<{Delivery.objects.get().pk}@")


def test_without_a_public_address_there_is_no_link(mail: MailServer, settings: Any) -> None:
    settings.PUBLIC_URL = ""
    awaiting()
    gives_addresses()
    send_all()
    assert "http" not in mail.got[0].get_content()


def test_who_switched_it_off_or_has_no_address_gets_none(mail: MailServer) -> None:
    _, _, manager = awaiting()
    other, without = (make_user(team="search", role=Role.RELEASE_MANAGER) for _ in range(2))
    gives_addresses()
    User.objects.filter(pk=without.pk).update(email="")
    mine = {"actor": manager, "user": user_of(manager), "address": "m@example.com"}
    actions.choose_mails(**mine, wants_approvals=False, wants_rollbacks=True)  # type: ignore[arg-type]
    send_all()
    assert receivers(mail) == [other.username]


@pytest.mark.takes("delivery: pending → withdrawn", "delivery: withdrawn → pending", "delivery: failed → withdrawn")
def test_what_nobody_needs_any_more_is_not_sent(mail: MailServer) -> None:
    """Between its event and its sending the approval is given, or the person is shut out."""
    rollout, _, manager = awaiting()
    other = make_user("other", team="search", role=Role.RELEASE_MANAGER)
    gives_addresses()
    mail.refuses = "451 greylisted"
    send_all()
    assert set(Delivery.objects.values_list("state", flat=True)) == {S.FAILED}
    mail.refuses = ""
    rollouts.approve(actor=manager, rollout=rollout, expected_version=rollout.version)
    Delivery.objects.update(due_at=Event.objects.latest("seq").at - timedelta(minutes=1))
    send_all()
    assert mail.got == [] and set(Delivery.objects.values_list("state", flat=True)) == {S.WITHDRAWN}
    assert not Event.objects.filter(verb="webhook.gave_up").exists()
    assert "nothing waits for this person" in Delivery.objects.filter(person=other)[0].tries.latest("number").error
    assert actions.replay_delivery(actor=ENGINE, delivery=Delivery.objects.filter(person=other)[0])
    send_all()
    assert mail.got == [] and set(Delivery.objects.values_list("state", flat=True)) == {S.WITHDRAWN}


def test_nothing_can_be_approved_on_a_superseded_report_so_nobody_is_asked(mail: MailServer) -> None:
    rollout, _, _ = awaiting()
    report_for(rollout.candidate)
    gives_addresses()
    send_all()
    assert mail.got == []


def test_a_rollback_is_told_to_those_whose_model_it_is(mail: MailServer) -> None:
    rollout, _ = with_stable()
    make_user("ours", team="search", role=Role.MODEL_TEAM)
    make_user("quiet", team="search", role=Role.MODEL_TEAM)
    make_user("viewer", team="search", role=Role.VIEWER)
    make_user("theirs", team="other", role=Role.MODEL_TEAM)
    gives_addresses()
    quiet = User.objects.get(username="quiet")
    itself = people.actor_for(quiet)
    actions.choose_mails(actor=itself, user=quiet, address=quiet.email, wants_approvals=True, wants_rollbacks=False)
    facts = {"model": rollout.model.slug, "candidate": "r2", "environment": "production"}
    append_event(
        verb="rollout.rolled_back",
        subject_type="rollout",
        subject_id=rollout.pk,
        actor=ENGINE,
        reason="slow: 4 %",
        facts=facts,
    )
    send_all()
    assert receivers(mail) == sorted(["ours", rollout.requested_by.username])  # type: ignore[union-attr]
    assert mail.got[0]["Subject"] == f"[Sluicegate] {rollout.model.slug} r2 in production was rolled back"
    assert "slow: 4 %" in mail.got[0].get_content() and f"{AT}/rollouts/{rollout.pk}/" in mail.got[0].get_content()


def test_an_alarm_that_pages_is_told_to_the_owners_each_time_that_it_opens(mail: MailServer) -> None:
    rollout, _ = with_stable()
    make_user("ours", team="search", role=Role.MODEL_TEAM)
    make_user("viewer", team="search", role=Role.VIEWER)
    gives_addresses()
    people_row()
    Webhook.objects.update(verbs=["rollout.stuck"])  # as an installation stored it before there were alarms
    burning(rollout.model, tier="ticket")
    alarm = burning(rollout.model)
    send_all()
    assert receivers(mail) == ["ours"]
    assert "48 of 1200 errors" in mail.got[0].get_content() and f"{AT}/alarms/{alarm.pk}/" in mail.got[0].get_content()
    end_alarm(alarm, at=alarm.opened_at, reason="It is met again.")
    assert burning(rollout.model) == alarm
    send_all()
    assert receivers(mail) == ["ours", "ours"]


class TestTheRow:
    def test_it_makes_itself_where_there_is_a_mail_server(self, settings: Any) -> None:
        Webhook.objects.all().delete()
        settings.EMAIL_HOST = ""
        wake_dispatcher()
        assert not Webhook.objects.exists()
        settings.EMAIL_HOST = "127.0.0.1"
        wake_dispatcher(), wake_dispatcher()
        assert Webhook.objects.get().kind == "people"

    def test_it_is_turned_off_and_is_nothing_else(self, mail: MailServer) -> None:
        row, root = people_row(), make_admin()
        for verb in (
            lambda: actions.delete_webhook(actor=root, webhook=row, expected_version=1),
            lambda: actions.change_webhook(actor=root, webhook=row, expected_version=1, changes={"verbs": ["*"]}),
        ):
            with pytest.raises(Invalid, match="what each person chose"):
                verb()
        with pytest.raises(Invalid, match="makes itself"):
            actions.create_webhook(actor=root, team=None, kind="people", target="people", verbs=["*"])
        actions.change_webhook(actor=root, webhook=row, expected_version=1, changes={"is_active": False})
        awaiting()
        gives_addresses()
        send_all()
        assert mail.got == []

    def test_a_test_goes_to_whoever_asks(self, mail: MailServer) -> None:
        root = make_admin("root")
        assert "You have no e-mail address" in rounds.send_test(actor=root, webhook=people_row()).tries.get().error
        User.objects.filter(pk=root.user_id).update(email="root@example.com")
        for _ in range(2):
            assert rounds.send_test(actor=root, webhook=people_row()).state == S.DELIVERED
        assert mail.recipients == ["root@example.com"] * 2


class TestChoosing:
    def test_it_is_one_s_own_and_leaves_an_event_without_the_address(self) -> None:
        user = make_user("ana")
        actor = people.actor_for(user)
        choice = {"address": "ana@example.com", "wants_approvals": True, "wants_rollbacks": False}
        actions.choose_mails(actor=actor, user=user, **choice)  # type: ignore[arg-type]
        user.refresh_from_db()
        assert user.email == "ana@example.com" and not user.mail_choice.wants_rollbacks
        event = Event.objects.get(verb="user.mails_chosen")
        assert event.facts == {"has_address": True, "approvals": True, "rollbacks": False}
        with pytest.raises(Refused):
            actions.choose_mails(actor=people.actor_for(make_user()), user=user, **choice)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "address", ["nobody", "a@b@c", "a@example.com\r\nBcc: b@example.com", "a" * 250 + "@b.example"]
    )
    def test_what_is_no_address(self, address: str) -> None:
        user = make_user()
        with pytest.raises(Invalid):
            actions.choose_mails(
                actor=people.actor_for(user), user=user, address=address, wants_approvals=True, wants_rollbacks=True
            )
