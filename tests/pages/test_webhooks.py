"""The pages of webhooks: list, form, secret shown once, delivery log, test and send again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from accounts.core.access import Actor, Role
from accounts.models import User
from ledger.actions import append_event
from notifications.actions import create_webhook
from notifications.core.delivery import DeliveryState
from notifications.dispatcher import rounds
from notifications.models import Delivery, Webhook
from tests.pages.clients import signed_in
from tests.pages.markup import squeezed
from tests.support.servers.receiver import Receiver, replies
from tests.support.worlds.factories import make_model, make_team, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    settings.WEBHOOKS_ALLOW_PRIVATE = True
    settings.WEBHOOK_TIMEOUT_S = 0.5
    with Receiver() as running:
        yield running


@pytest.fixture
def member() -> User:
    return make_user("ana", team="search", role=Role.MODEL_TEAM)


@pytest.fixture
def row(receiver: Receiver, member: User) -> Webhook:
    make_model("sentiment", team=make_team("search"))
    return create_webhook(actor=Actor.system("setup"), team="search", target=receiver.url, verbs=["rollout.*"])[0]


def happen(verb: str = "rollout.held") -> None:
    facts = {"model": "sentiment"}
    append_event(verb=verb, subject_type="rollout", subject_id=17, actor=Actor.system("engine"), facts=facts)


def said(answer: Any) -> str:
    text: str = answer.content.decode()
    return text


FORM = {"kind": "webhook", "target": "https://example.com/hook", "team": "search", "verbs": "rollout.* model.changed"}


def test_an_empty_list_says_what_to_do_next(member: User) -> None:
    page = said(signed_in(member).get(reverse("webhooks")))
    assert "No webhook yet" in page and "Create" in page and "every team's" not in page
    robot = said(signed_in(make_user(team="search", role=Role.CI)).get(reverse("webhooks")))
    assert "It takes the role model_team" in robot and "Create</button>" not in robot


def test_the_secret_is_shown_once(member: User) -> None:
    client = signed_in(member)
    answer = client.post(reverse("webhook_create"), FORM)
    assert answer.status_code == 200 and "no-store" in answer["Cache-Control"]
    (secret,) = re.findall(r"whsec_[\w+/=]+", said(answer))
    made = Webhook.objects.get()
    assert made.verbs == ["rollout.*", "model.changed"] and made.created_by == "ana"
    for url in (reverse("webhooks"), reverse("webhook", args=[made.pk]), reverse("audit")):
        page = said(client.get(url))
        assert secret not in page
    assert "https://example.com/hook" in said(client.get(reverse("webhooks")))
    again = client.post(reverse("webhook_rotate", args=[made.pk]), {"version": 1})
    assert re.findall(r"whsec_[\w+/=]+", said(again)) != [secret] and "signs as well until" in said(again)
    stale = client.post(reverse("webhook_rotate", args=[made.pk]), {"version": 1}, follow=True)
    assert "is at version 2, not 1" in said(stale)


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ({"target": "http://127.0.0.1/"}, "private address"),
        ({"verbs": "rollout.exploded"}, "rollout.stuck"),
        ({"verbs": ""}, "0 patterns"),
        ({"team": ""}, "Name your team"),
        ({"team": "ads"}, "may not manage webhooks of team ads"),
        ({"kind": "email", "target": "a@example.com"}, "no mail server"),
    ],
)
def test_a_bad_form_is_a_sentence_and_keeps_what_was_typed(member: User, over: dict[str, str], says: str) -> None:
    make_team("ads")
    form = {**FORM, "title": "for the pager", **over}
    answer = signed_in(member).post(reverse("webhook_create"), form)
    assert answer.status_code in {403, 422} and says in said(answer)
    assert 'value="for the pager"' in said(answer) and f'value="{form["target"]}"' in said(answer)
    assert not Webhook.objects.exists()


def test_the_test_button_says_how_it_went(receiver: Receiver, row: Webhook, member: User) -> None:
    client, url = signed_in(member), reverse("webhook_test", args=[row.pk])
    assert "The test arrived: 204 in" in said(client.post(url, follow=True))
    receiver.answers = [replies(500, "<b>out of paper</b>")]
    page = said(client.post(url, follow=True))
    assert "The test did not arrive: The receiver answered 500" in page
    assert "&lt;b&gt;out of paper&lt;/b&gt;" in page and "<b>out" not in page


def test_the_log_shows_every_attempt_and_sends_again(receiver: Receiver, row: Webhook, member: User) -> None:
    client = signed_in(member)
    page = said(client.get(reverse("webhook", args=[row.pk])))
    assert "Nothing was sent yet" in page
    happen("rollout.stuck")
    receiver.answers = [410]
    rounds.run_round(lambda: True)
    delivery = Delivery.objects.get()
    page = said(client.get(reverse("webhook", args=[row.pk])))
    for text in ("off", "rollout.stuck", "gave up", "The receiver answered 410", str(delivery.pk), "Turn on"):
        assert text in page
    again = reverse("webhook_replay_one", args=[row.pk, delivery.pk])
    assert "Turn it on" in said(client.post(again, follow=True))
    client.post(reverse("webhook_change", args=[row.pk]), {"version": 2, "is_active": "1"})
    assert "sent again in a few seconds" in said(client.post(again, follow=True))
    rounds.run_round(lambda: True)
    assert Delivery.objects.get().state == DeliveryState.DELIVERED
    assert "No delivery is gave_up" in said(client.get(reverse("webhook", args=[row.pk]), {"state": "gave_up"}))
    since = reverse("webhook_replay", args=[row.pk])
    assert "Redelivered: 1," in said(client.post(since, {"hours": "24"}, follow=True))
    assert "Choose how far back" in said(client.post(since, {"hours": "²"}, follow=True))


def test_what_an_off_webhook_keeps_back_is_not_told_as_waiting_or_due(
    row: Webhook, receiver: Receiver, member: User
) -> None:
    client = signed_in(member)
    happen("rollout.stuck")
    receiver.answers = [500]
    rounds.run_round(lambda: True)
    Webhook.objects.update(is_active=False)
    page = said(client.get(reverse("webhook", args=[row.pk])))
    assert "1 kept back until it is turned on" in page and "once it is on" in page and "1 waiting" not in page
    assert "1 kept back" in said(client.get(reverse("webhooks")))


def test_it_is_changed_and_deleted(row: Webhook, member: User) -> None:
    client = signed_in(member)
    url = reverse("webhook_change", args=[row.pk])
    form = {"version": 1, "target": row.target, "verbs": "rollout.stuck", "title": "pager"}
    assert "pager" in said(client.post(url, form, follow=True))
    row.refresh_from_db()
    assert (row.verbs, row.title, row.version, row.is_active) == (["rollout.stuck"], "pager", 2, True)
    stale = said(client.post(url, form | {"title": "other"}, follow=True))
    assert "is at version 2, not 1" in stale and 'value="other"' in stale
    assert "Reload the page" in said(client.post(url, {"title": "x"}, follow=True))
    assert "never connects to" in said(
        client.post(url, {"version": 2, "target": "http://169.254.169.254/"}, follow=True)
    )
    client.post(reverse("webhook_change", args=[row.pk]), {"version": 2, "is_active": "0"})
    assert "Turn on" in said(client.get(reverse("webhook", args=[row.pk])))
    assert "is deleted" in said(client.post(reverse("webhook_delete", args=[row.pk]), {"version": 3}, follow=True))
    assert not Webhook.objects.exists()


def test_an_outsider_sees_nothing_of_it(row: Webhook) -> None:
    client = signed_in(make_user("otto", team="other"))
    assert row.target not in said(client.get(reverse("webhooks")))
    answer = client.get(reverse("webhook", args=[row.pk]))
    assert answer.status_code == 404 and row.target not in said(answer)
    for name in ("test", "change", "rotate", "delete", "replay"):
        answer = client.post(reverse(f"webhook_{name}", args=[row.pk]), {"version": 1, "hours": "1"}, follow=True)
        assert "There is no webhook" in said(answer), name
    assert Webhook.objects.get().version == 1 and not Delivery.objects.exists()
    assert Client().get(reverse("webhooks"))["Location"].startswith("/sign-in/")


def test_everybodys_is_for_administrators(receiver: Receiver) -> None:
    client = signed_in(make_user("root", is_admin=True))
    assert "every team's" in said(client.get(reverse("webhooks")))
    client.post(reverse("webhook_create"), {**FORM, "team": "", "target": receiver.url})
    made = Webhook.objects.get()
    assert made.team is None and made.may_be_private
    assert "of every team" in squeezed(said(client.get(reverse("webhook", args=[made.pk]))))


def test_events_are_ticked_by_group_and_stay_ticked(client: Client) -> None:
    """Boxes and text are taken alike; with none ticked it is refused, and what else was typed is kept."""
    client.force_login(make_user("root", is_admin=True))
    html = client.get("/webhooks/").content.decode()
    assert (
        html.count('name="verbs" value="rollout.*"\n') == 1 and "rolled back <code>rollout.rolled_back</code>" in html
    )
    form = {"kind": "webhook", "target": "https://example.com/hook", "team": "", "title": "kept"}
    answer = client.post("/webhooks/new/", {**form, "verbs": [""]})
    assert answer.status_code == 422 and 'value="kept"' in answer.content.decode()
    client.post("/webhooks/new/", {**form, "verbs": ["", "rollout.stuck", "model.*", "rollout.stuck"]})
    made = Webhook.objects.get()
    assert made.verbs == ["rollout.stuck", "model.*"]
    html = client.get(f"/webhooks/{made.pk}/").content.decode()
    assert 'value="rollout.stuck" checked' in html and 'value="*" checked' not in html
    client.post(
        f"/webhooks/{made.pk}/change/", {"version": 1, "target": made.target, "verbs": ["", "*"], "title": "kept"}
    )
    made.refresh_from_db()
    assert made.verbs == ["*"]


KEY = "0123456789abcdef0123456789ABCDEF"
FORMATS = {
    "slack": {"target": "https://hooks.slack.com/services/T0/B0/verysecret"},
    "teams": {"target": "https://x.logic.azure.com/workflows/a?sig=verysecret"},
    "pagerduty": {"target": "", "routing_key": KEY},
}


@pytest.mark.parametrize("form", FORMATS)
def test_a_service_s_secret_is_never_shown_and_the_page_shows_what_is_sent(
    form: str, member: User, settings: Any
) -> None:
    settings.PUBLIC_URL = "https://sluicegate.example.com"
    client = signed_in(member)
    page = said(client.post(reverse("webhook_create"), {**FORM, "kind": form, **FORMATS[form]}, follow=True))
    row = Webhook.objects.get()
    assert row.format == form and row.kind == "webhook" and "events go there from now on" in page
    page += said(client.get(reverse("webhooks"))) + said(client.get(f"/api/v1/webhooks/{row.pk}"))
    assert "verysecret" not in page and KEY not in page and row.fingerprint in page
    sign = {
        "slack": "&quot;mrkdwn&quot;",
        "teams": "AdaptiveCard",
        "pagerduty": "&quot;event_action&quot;: &quot;trigger&quot;",
    }
    assert sign[form] in page and "https://sluicegate.example.com/rollouts/17/" in page
    assert "New secret" not in page and "Notifications contain no links" not in page


def test_an_empty_field_leaves_the_secret_as_it_is(receiver: Receiver, member: User) -> None:
    make_team("search")
    made = create_webhook(
        actor=Actor.system("setup"), team="search", format="slack", target=receiver.url, verbs=["rollout.*"]
    )[0]
    client, url = signed_in(member), reverse("webhook_change", args=[made.pk])
    client.post(url, {"version": "1", "target": "", "verbs": ["", "rollout.stuck"], "title": "The channel"})
    made.refresh_from_db()
    assert (made.title, made.verbs) == ("The channel", ["rollout.stuck"])
    client.post(reverse("webhook_test", args=[made.pk]))
    assert receiver.got[-1].path == "/hook"


def test_a_refused_routing_key_is_not_sent_back(member: User) -> None:
    form = {**FORM, "kind": "pagerduty", "target": "", "routing_key": "almostsecret"}
    answer = signed_in(member).post(reverse("webhook_create"), form)
    assert answer.status_code == 422 and "32 letters and digits" in said(answer)
    assert "almostsecret" not in said(answer) and '<option value="pagerduty" selected>' in said(answer)


def test_without_a_public_address_the_pages_say_that_there_are_no_links(
    member: User, row: Webhook, settings: Any
) -> None:
    client = signed_in(member)
    pages = [reverse("webhooks"), reverse("webhook", args=[row.pk]), reverse("status")]
    for page in pages:
        assert "SLUICEGATE_PUBLIC_URL" in said(client.get(page))
    settings.PUBLIC_URL = "https://sluicegate.example.com"
    for page in pages:
        assert "SLUICEGATE_PUBLIC_URL" not in said(client.get(page))
    assert "begin with <code>https://sluicegate.example.com</code>" in squeezed(said(client.get(pages[2])))
