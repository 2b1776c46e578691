"""The audit: found by what a page shows, by every filter, opened, checked, taken away; for an outsider; and its cost."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import threading
from collections.abc import Callable, Generator
from datetime import timedelta

import pytest
from django.db import connection
from django.urls import reverse
from django.utils import timezone

import audit.tasks  # noqa: F401 - registers the handler, as Celery does
from accounts.core.access import Actor, Role
from accounts.models import User
from audit.actions import check_log
from ledger.actions import append_event
from ledger.models import Event, Job
from ledger.queries.chain_verification import link_of
from registry.models import Release
from tests.pages.markup import squeezed
from tests.pages.test_model_tabs import HOSTILE, MOST_QUERIES, queries_of, signed_in
from tests.support.worlds.factories import make_model, make_release, make_team, make_user
from web.streams import in_threads

pytestmark = pytest.mark.django_db
ADA = Actor("ada")


@pytest.fixture
def admin() -> User:
    return make_user("root", is_admin=True)


@pytest.fixture
def release() -> Release:
    """sentiment/r4, with everything that may happen to a release."""
    model = make_model("sentiment", team=make_team("search"))
    found = make_release(model, number=4)
    say("release.sealed", "release", found.pk, number=4, digest=found.digest)
    say("gate_run.finished", "gate_run", 7, release="r4", digest=found.digest)
    say("deployment.ready", "deployment", 9, release="r4")
    say("rollout.started", "rollout", 3, candidate="r4", environment="production")
    say("webhook.changed", "webhook", 3)
    say("rollout.started", "rollout", 33, candidate="r40", environment="staging")
    say("rollout.paused", "rollout", 3, actor=ADA, reason="Ada looks at a spike.", environment="production")
    say("user.created", "user", "ada", model="")
    return found


def say(
    verb: str, kind: str, subject: object, *, actor: Actor | None = None, reason: str = "", **facts: object
) -> Event:
    told = {"model": "sentiment", **facts}
    by = actor or Actor.system("test")
    return append_event(verb=verb, subject_type=kind, subject_id=str(subject), actor=by, reason=reason, facts=told)


def found_by(user: User, **query: str) -> list[str]:
    """The verbs and subjects of the rows, the newest first."""
    lines = b"".join(signed_in(user).get(reverse("audit_jsonl"), query)).decode().splitlines()  # type: ignore[arg-type]
    page = signed_in(user).get(reverse("audit"), query)
    rows = [json.loads(line) for line in lines]
    assert [row["seq"] for row in rows] == [event.seq for event, *_ in page.context["rows"]]
    return [f"{row['verb']} {row['subject_id']}" for row in rows]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({"q": "rollout 3"}, {"rollout.paused 3", "rollout.started 3"}),
        ({"q": "Rollout #3"}, {"rollout.paused 3", "rollout.started 3"}),
        ({"q": "gate run 7"}, {"gate_run.finished 7"}),
        ({"q": "ada"}, {"rollout.paused 3", "user.created ada"}),
        ({"q": "spike looks"}, {"rollout.paused 3"}),
        ({"q": '"spik"'}, {"rollout.paused 3"}),
        ({"q": "nothing like this"}, set()),
        ({"q": "  "}, None),
        ({"q": "'); drop table"}, set()),
        ({"q": "\x00"}, None),
        ({"q": "&|!()"}, set()),
        ({"actor": "ada"}, {"rollout.paused 3"}),
        ({"verb": "gate_run.finished"}, {"gate_run.finished 7"}),
        ({"verb": "rollout.*"}, {"rollout.paused 3", "rollout.started 3", "rollout.started 33"}),
        ({"subject_type": "webhook"}, {"webhook.changed 3"}),
        ({"environment": "production"}, {"rollout.paused 3", "rollout.started 3"}),
        ({"environment": "production", "actor": "ada"}, {"rollout.paused 3"}),
        ({"model": "other"}, set()),
        ({"since": "1h"}, None),
        ({"until": "1h"}, set()),
        ({"since": "2020-01-01", "until": "2020-01-02T00:00:00Z"}, set()),
    ],
)
def test_what_a_page_shows_can_be_looked_for(
    admin: User, release: Release, query: dict[str, str], wanted: set[str] | None
) -> None:
    from tests.support.worlds.factories import make_environment

    make_environment("production")
    found = found_by(admin, **query)
    assert len(found) == Event.objects.count() if wanted is None else set(found) == wanted


def test_a_release_brings_all_that_happened_to_it(admin: User, release: Release) -> None:
    mine = {f"release.sealed {release.pk}", "gate_run.finished 7", "deployment.ready 9", "rollout.started 3"}
    assert set(found_by(admin, q="sentiment/r4")) == mine
    assert set(found_by(admin, q="release sentiment/r4")) == mine
    assert set(found_by(admin, q="r4")) == mine  # by its name: in the words, and as the subject
    digest = (release.digest or "").removeprefix("sha256:")
    assert set(found_by(admin, q=digest[:12])) == {f"release.sealed {release.pk}", "gate_run.finished 7"}
    assert set(found_by(admin, q=f"sha256:{digest}")) == {f"release.sealed {release.pk}", "gate_run.finished 7"}
    page = signed_in(admin).get(reverse("audit"), {"q": "sentiment/r4"}).content.decode()
    assert "everything about release sentiment/r4" in page


def test_by_hash_one_event_is_found(admin: User, release: Release) -> None:
    event = Event.objects.order_by("seq").last()
    assert event is not None and found_by(admin, q=event.hash) == ["user.created ada"]


def test_who_may_not_read_it_neither_finds_nor_opens_nor_exports_it(release: Release) -> None:
    outsider = make_user("otto", team="other", role=Role.RELEASE_MANAGER)
    for query in ({}, {"q": "sentiment/r4"}, {"q": "r4"}, {"model": "sentiment"}, {"q": "rollout 3"}):
        assert found_by(outsider, **query) == []
    answer = signed_in(outsider).get(reverse("audit_event", args=[1]))
    assert answer.status_code == 404 and "sentiment" not in answer.content.decode()
    member = make_user("ana", team="search", role=Role.VIEWER)
    assert "user.created ada" not in found_by(member) and "rollout.paused 3" in found_by(member)


def test_a_row_opens_facts_number_and_hash_and_tells_a_change(admin: User, release: Release) -> None:
    event = say("rollout.paused", "rollout", 3, reason=HOSTILE, deep={"list": [1]})
    address = reverse("audit_event", args=[event.seq])
    page = signed_in(admin).get(address).content.decode()
    assert event.hash in page and event.prev_hash in page and "the content matches its hash" in page
    assert "&quot;list&quot;" in page and "<script>alert" not in page
    _edit(event.seq)
    page = signed_in(admin).get(address).content.decode()
    assert "the content does not match its hash" in page
    assert signed_in(admin).get(reverse("audit_event", args=[2**62])).status_code == 404


def _edit(seq: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE ledger_event DISABLE TRIGGER USER")
        cursor.execute("UPDATE ledger_event SET reason = 'other' WHERE seq = %s", [seq])
        cursor.execute("ALTER TABLE ledger_event ENABLE TRIGGER USER")


def test_a_stretch_is_checked_and_what_was_checked_is_said(admin: User, release: Release) -> None:
    client, count = signed_in(admin), Event.objects.count()
    page = squeezed(client.get(reverse("audit_verify"), {"from": "3"}).content.decode())
    assert f"{count - 2} events, 3 to {count}" in page and "Whole" in page
    _edit(5)
    page = client.get(reverse("audit_verify"), {"from": "3"}).content.decode()
    assert "Broken" in page and "Event 5 was changed after it was written." in page
    assert (
        "Whole" in client.get(reverse("audit_verify"), {"from": "6"}).content.decode()
    )  # says nothing of what is before
    for odd in ("-1", "x", "99999999999999999999", "²"):
        assert client.get(reverse("audit_verify"), {"from": odd}).status_code == 200
    assert "Nothing to check" in client.get(reverse("audit_verify"), {"from": str(count + 1)}).content.decode()


def test_the_whole_is_checked_by_a_worker_and_the_page_goes_on_from_there(
    admin: User, release: Release, run_jobs: Callable[[], int]
) -> None:
    client, count = signed_in(admin), Event.objects.count()
    page = client.get(reverse("audit_verify")).content.decode()
    assert "No worker has checked it yet." in page
    assert "being checked" in client.post(reverse("audit_check"), follow=True).content.decode()
    client.post(reverse("audit_check"))  # while it waits, it is the same
    assert run_jobs() == 1 and not Event.objects.filter(seq__gt=count + 1).exists()
    event = Event.objects.get(seq=count + 1)
    noted = Event.objects.get(seq=count)
    assert (event.verb, event.actor) == ("log.checked", "root")
    assert event.facts == {"events": count, "head_seq": count, "head": noted.hash, "breaks": []}
    page = squeezed(client.get(reverse("audit_verify")).content.decode())
    assert (
        f"1 event, {count + 1} to {count + 1}" in page
        and f"This check continues from event {count} with the hash" in page
    )
    assert f"Events 1 to {count}, the recorded end of the log," in page and f"{count}:{noted.hash}" in page


def test_what_was_checked_and_then_rewritten_is_found_by_what_was_noted(
    admin: User, release: Release, run_jobs: Callable[[], int]
) -> None:
    client, count = signed_in(admin), Event.objects.count()
    check_log(asked_by="root")
    _rewrite(count)  # in itself right: its own hash is that of what it says
    page = client.get(reverse("audit_verify")).content.decode()
    assert "Broken" in page and f"Event {count} is not what an earlier check noted" in page
    told = [one["kind"] for one in check_log(asked_by="root").facts["breaks"]]
    assert told == ["rewritten", "reordered"]
    page = client.get(reverse("audit_verify")).content.decode()
    assert "another hash than was noted" in page.partition("The whole log")[2] and "goes on from" not in page


def test_only_administrators_have_the_whole_checked(release: Release) -> None:
    manager = make_user("mia", team="search", role=Role.RELEASE_MANAGER)
    assert signed_in(manager).post(reverse("audit_check")).status_code == 403
    assert not Job.objects.exists()


def _rewrite(seq: int) -> None:
    event = Event.objects.get(seq=seq)
    event.reason = "other"
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE ledger_event DISABLE TRIGGER USER")
        cursor.execute(
            "UPDATE ledger_event SET reason = %s, hash = %s WHERE seq = %s",
            [event.reason, link_of(event).expected_hash(), seq],
        )
        cursor.execute("ALTER TABLE ledger_event ENABLE TRIGGER USER")


def test_checking_is_for_administrators_as_it_is_over_rest(admin: User, release: Release) -> None:
    manager = make_user("mia", team="search", role=Role.RELEASE_MANAGER)
    assert signed_in(manager).get(reverse("audit_verify")).status_code == 403
    for address in (reverse("audit"), reverse("audit_event", args=[1])):
        for user, is_linked in ((admin, True), (manager, False)):
            page = signed_in(user).get(address)
            assert page.status_code == 200 and (reverse("audit_verify") in page.content.decode()) is is_linked


def test_lines_are_made_off_the_event_loop_and_closed_with_the_caller() -> None:
    seen: list[object] = []

    def lines() -> Generator[bytes]:
        try:
            for number in range(1000):
                seen.append(threading.current_thread())
                yield b"%d," % number
        finally:
            seen.append("closed")

    async def run() -> bytes:
        pieces = in_threads(lines())
        first = await anext(pieces)
        await pieces.aclose()  # type: ignore[attr-defined]
        assert threading.current_thread() not in seen and seen[-1] == "closed" and len(seen) == 201
        return first + b"".join([piece async for piece in in_threads(lines())])

    told = asyncio.run(run())
    assert told == b"".join(b"%d," % number for number in [*range(200), *range(1000)])


def test_csv_is_whole_and_no_cell_is_a_formula(admin: User, release: Release) -> None:
    say("rollout.paused", "rollout", 3, reason='=cmd|"/c calc"!A0')
    text = b"".join(signed_in(admin).get(reverse("audit_csv"))).decode()  # type: ignore[arg-type]
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == Event.objects.count() and rows[0]["reason"].startswith("'=cmd")
    assert json.loads(rows[0]["facts"]) == {"model": "sentiment"} and len(rows[0]["hash"]) == 64


def test_a_time_that_is_none_is_refused_with_what_was_typed_kept(admin: User) -> None:
    for name in ("since", "until"):
        for odd in ("yesterday", "2026-13-01", "99999999d", "0001-01-01"):
            answer = signed_in(admin).get(reverse("audit"), {name: odd})
            assert answer.status_code == 422 and "is no instant" in answer.content.decode()
            assert f'value="{odd}"' in answer.content.decode()
    assert signed_in(admin).get(reverse("audit_csv"), {"since": "yesterday"}).status_code == 422


def test_old_addresses_lead_here(admin: User) -> None:
    answer = signed_in(admin).get("/events/", {"subject": "rollout 3"})
    assert answer.status_code == 301 and answer["Location"] == "/audit/?q=rollout+3"


def test_pages_go_both_ways_and_lose_no_event(admin: User) -> None:
    for number in range(120):
        say("rollout.paused", "rollout", number)
    client, seen, address = signed_in(admin), [], reverse("audit")
    for before in (None, 71, 21):
        page = client.get(address, {"before": before} if before else {}).context["page"]
        seen += [row.seq for row in page.rows]
    assert seen == list(range(120, 0, -1)) and page.older is None
    back = client.get(address, {"after": page.newer}).context["page"]
    assert [row.seq for row in back.rows] == list(range(70, 20, -1))


def test_each_page_asks_few_questions_however_long_the_log(admin: User, release: Release) -> None:
    member = make_user("ana", team="search", role=Role.MODEL_TEAM)
    addresses = [
        reverse("audit"),
        f"{reverse('audit')}?q=r4&since=2h",
        reverse("audit_event", args=[1]),
        reverse("audit_verify"),
    ]
    for number in (0, 200):
        for one in range(number):
            say("release.sealed", "release", release.pk, number=one)
        for user, asked in ((admin, addresses), (member, addresses[:2])):
            for address in asked:
                assert queries_of(signed_in(user), address) <= MOST_QUERIES, address


def test_since_is_by_the_events_own_time(admin: User, release: Release) -> None:
    now = timezone.now()
    assert found_by(admin, since=(now + timedelta(hours=1)).isoformat()) == []
    assert len(found_by(admin, since=(now - timedelta(hours=1)).isoformat(), until=now.isoformat())) == 8
