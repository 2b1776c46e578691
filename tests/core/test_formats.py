"""The forms of webhooks: what each service takes, whatever stands in an event; and whom it wakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.verbs import EventVerb
from notifications.core import formats
from notifications.core.formats import RESOLVES, WAKES, WebhookFormat, body_in, mrkdwn, verbs_for
from notifications.core.note import EXAMPLE, note_of, note_of_test
from notifications.core.webhook import body_of
from tests.support.house.notification_schemas import TEAMS_BYTES, problems

KEY = "0123456789abcdef0123456789ABCDEF"
ROOT = Path(__file__).resolve().parents[2]
AT = "https://sluicegate.example.com"
SERVICES = [form for form in WebhookFormat if form is not WebhookFormat.SIGNED]
#: Facts that a JSON document can hold, and characters that mean something to Slack, Teams or a browser.
NASTY = st.text(
    st.sampled_from("<>&|!@#*_~`[]()\\\"'\n\r\x00 aé漢🙂") | st.characters(exclude_categories=["Cs"]), max_size=4000
)


def sent(form: WebhookFormat, *, url: str = AT, **over: Any) -> Any:
    note = note_of(replace(EXAMPLE, **over), public_url=url)
    read: Any = json.loads(body_in(form, note, routing_key=KEY, source="sluicegate.example.com"))
    return read


@pytest.mark.parametrize("form", SERVICES)
@pytest.mark.parametrize("verb", EventVerb)
def test_the_service_takes_every_event(form: WebhookFormat, verb: EventVerb) -> None:
    assert problems(form, sent(form, verb=verb.value)) == []
    assert problems(form, sent(form, verb=verb.value, url="", reason="", facts={})) == []


@pytest.mark.parametrize("form", SERVICES)
def test_the_schemas_refuse_what_is_not_so(form: WebhookFormat) -> None:
    """They were written for this: one that takes anything would prove nothing."""
    good = sent(form)
    if form is WebhookFormat.ALERTMANAGER:
        (alert,) = good
        assert problems(form, []) and problems(form, [{**alert, "more": 1}]) and problems(form, alert)
        assert problems(form, [{**alert, "labels": {"model": "m"}}]) and problems(form, [{**alert, "endsAt": "soon"}])
        return
    assert problems(form, {}) and problems(form, {**good, "more": 1})
    if form is WebhookFormat.SLACK:
        assert problems(form, {**good, "text": "<!channel>"}) and problems(form, {**good, "blocks": []})
    elif form is WebhookFormat.PAGERDUTY:
        assert problems(form, {**good, "event_action": "wake"}) and problems(form, {**good, "routing_key": "short"})
    else:
        assert problems(form, {**good, "attachments": []}) and problems(form, {**good, "type": "MessageCard"})


@pytest.mark.parametrize("form", SERVICES)
@given(reason=NASTY, actor=NASTY, model=NASTY)
def test_no_text_of_others_breaks_it_or_is_markup(form: WebhookFormat, reason: str, actor: str, model: str) -> None:
    facts = {"model": model, "candidate": "r2", "environment": "production", "escalation": reason}
    body = sent(form, reason=reason, actor=actor, facts=facts)
    assert problems(form, body) == []
    if form is WebhookFormat.TEAMS:
        assert len(json.dumps(body).encode()) < TEAMS_BYTES


def test_slack_mentions_nobody_and_shows_what_was_written() -> None:
    body = sent(WebhookFormat.SLACK, reason="p99 < 3 & <!channel> <https://evil.example|a link> > 2")
    text = body["blocks"][1]["text"]
    assert text["verbatim"] is True
    assert text["text"] == "p99 &lt; 3 &amp; &lt;!channel&gt; &lt;https://evil.example|a link&gt; &gt; 2"
    assert body["text"] == "sentiment r2 in production is stuck: the way back did not work"


@given(NASTY, st.integers(1, 50))
def test_an_escaped_text_is_never_cut_within_an_entity(text: str, most: int) -> None:
    cut = mrkdwn(text, most)
    assert len(cut) <= most
    assert cut.replace("&amp;", "").replace("&lt;", "").replace("&gt;", "").count("&") == 0


@pytest.mark.parametrize("form", SERVICES)
def test_the_link_leads_to_the_rollout_and_is_left_out_where_no_address_is_known(form: WebhookFormat) -> None:
    assert json.dumps(sent(form)).count(f"{AT}/rollouts/17/") == (2 if form is WebhookFormat.PAGERDUTY else 1)
    assert "http://127" not in json.dumps(sent(form, url="")) and "/rollouts/" not in json.dumps(sent(form, url=""))


def test_the_signed_form_tells_the_link_beside_the_event() -> None:
    with_link = json.loads(body_of(EXAMPLE, url=f"{AT}/rollouts/17/"))
    assert with_link["data"].pop("url") == f"{AT}/rollouts/17/"
    assert with_link == json.loads(body_of(EXAMPLE))


class TestPagerDuty:
    def test_what_people_alone_can_mend_triggers_and_the_end_resolves_the_same_alert(self) -> None:
        trigger = sent(WebhookFormat.PAGERDUTY)
        assert (trigger["event_action"], trigger["dedup_key"]) == ("trigger", "sluicegate:rollout:17")
        assert trigger["payload"]["severity"] == "critical" and trigger["payload"]["component"] == "sentiment"
        assert trigger["payload"]["summary"].startswith("sentiment r2 in production is stuck")
        resolve = sent(WebhookFormat.PAGERDUTY, verb="rollout.rolled_back")
        assert resolve == {"routing_key": KEY, "event_action": "resolve", "dedup_key": "sluicegate:rollout:17"}

    def test_nothing_else_is_sent(self) -> None:
        every = [verb.value for verb in EventVerb]
        assert set(verbs_for(WebhookFormat.PAGERDUTY, every)) == set(WAKES) | RESOLVES
        assert verbs_for(WebhookFormat.PAGERDUTY, ["rollout.rolled_back", "rollout.approval_requested"]) == []
        assert set(verbs_for(WebhookFormat.PAGERDUTY, ["rollout.stuck"])) == {"rollout.stuck", *RESOLVES}
        assert verbs_for(WebhookFormat.SLACK, every) == every
        assert not set(WAKES) & RESOLVES and set(WAKES) | RESOLVES <= set(every)

    def test_an_alarm_that_pages_triggers_and_the_next_one_of_its_objective_has_the_same_key(self) -> None:
        facts = {
            "model": "sentiment",
            "environment": "production",
            "objective": "errors",
            "tier": "page",
            "release": "r2",
        }
        alarm = {"subject_type": "alarm", "subject_id": "7", "facts": facts}
        trigger = sent(WebhookFormat.PAGERDUTY, verb="alarm.opened", **alarm)
        key = "sluicegate:alarm:production/sentiment/errors/page"
        assert (trigger["event_action"], trigger["dedup_key"], trigger["payload"]["severity"]) == (
            "trigger",
            key,
            "critical",
        )
        assert trigger["client_url"] == f"{AT}/alarms/7/" and problems("pagerduty", trigger) == []
        later = {**alarm, "subject_id": "8", "facts": {**facts, "release": "r1"}}
        resolve = sent(WebhookFormat.PAGERDUTY, verb="alarm.closed", **later)
        assert resolve == {"routing_key": KEY, "event_action": "resolve", "dedup_key": key}

    def test_a_ticket_is_a_warning(self) -> None:
        facts = {"model": "sentiment", "environment": "production", "objective": "errors", "tier": "ticket"}
        alarm = {"subject_type": "alarm", "subject_id": "7", "facts": facts}
        assert sent(WebhookFormat.PAGERDUTY, verb="alarm.opened", **alarm)["payload"]["severity"] == "warning"
        assert sent(WebhookFormat.PAGERDUTY, verb="alarm.closed", **alarm)["event_action"] == "resolve"

    def test_a_test_resolves_what_never_was(self) -> None:
        note = note_of_test(3, at=EXAMPLE.at, asked_by="ana", public_url=AT)
        body = json.loads(body_in(WebhookFormat.PAGERDUTY, note, routing_key=KEY))
        assert (body["event_action"], body["dedup_key"]) == ("resolve", "sluicegate:webhook:3")
        assert problems("pagerduty", body) == []


@pytest.mark.parametrize(
    ("form", "url", "says"),
    [
        ("slack", "https://hooks.slack.com/services/T0/B0/abc123", ""),
        ("slack", "https://hooks.slack.com/triggers/T0/1/abc", "no incoming webhook of Slack"),
        ("slack", "http://hooks.slack.com/services/T0/B0/abc123", "no incoming webhook of Slack"),
        ("slack", "https://mattermost.example.com/hooks/abc", ""),
        ("slack", "https://mattermost.example.com/", "has no path"),
        ("teams", "https://prod-1.westeurope.logic.azure.com:443/workflows/a/triggers/manual/paths/invoke?sig=s", ""),
        ("teams", "https://prod-1.westeurope.logic.azure.com", "has no path"),
        ("pagerduty", formats.PAGERDUTY_URL, ""),
        ("signed", "https://example.com", ""),
    ],
)
def test_addresses(form: str, url: str, says: str) -> None:
    found = formats.address_problem_of(WebhookFormat(form), url)
    assert says in found and bool(says) == bool(found)


@pytest.mark.parametrize("key", ["", "short", KEY + "0", KEY[:-1] + "-", KEY[:-1] + "\n"])
def test_what_is_no_routing_key(key: str) -> None:
    assert "32 letters and digits" in formats.routing_key_problem(key) and not formats.routing_key_problem(KEY)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://hooks.slack.com/services/T0/B0/abc?x=1", "https://hooks.slack.com/…"),
        ("http://127.0.0.1:8080/a", "http://127.0.0.1:8080/…"),
        ("https://[2001:db8::1]/a", "https://[2001:db8::1]/…"),
    ],
)
def test_a_secret_address_is_shown_as_far_as_its_host(url: str, shown: str) -> None:
    assert formats.shown_address(url) == shown


def settings_with(url: str) -> tuple[int, str]:
    program = "from sluicegate import settings as s; print(s.PUBLIC_URL)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env={**os.environ, "SLUICEGATE_PUBLIC_URL": url}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.strip() or done.stderr


@pytest.mark.parametrize(
    ("url", "kept"),
    [("", ""), ("https://a.example.com", "https://a.example.com"), ("http://[::1]:8700/", "http://[::1]:8700")],
)
def test_the_public_address(url: str, kept: str) -> None:
    assert settings_with(url) == (0, kept)


@pytest.mark.parametrize(
    "url",
    [
        "a.example.com",
        "ftp://a.example.com",
        "https://a/x",
        "https://a?x",
        "https://u@a",
        "https://a:b",
        "https:///",
        "https://ä",
    ],
)
def test_a_public_address_that_makes_no_sense_stops_the_start(url: str) -> None:
    code, printed = settings_with(url)
    assert code != 0 and "SLUICEGATE_PUBLIC_URL" in printed and "such as https://sluicegate.example.com" in printed
