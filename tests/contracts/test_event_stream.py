"""The event stream against a real PostgreSQL: who may read it, what it says, where it goes on, whom it ends, what it costs."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from django.contrib.sessions.models import Session
from django.db import OperationalError, connection, transaction
from django.utils import timezone
from psycopg.errors import LockNotAvailable

from accounts import actions
from accounts.core.access import Actor, Role
from accounts.models import User
from ledger.actions import append_event
from ledger.queries import head_seq
from rollouts.models import Rollout
from sluicegate.front import streams
from sluicegate.live import hub, stream, watcher
from tests.support.rigs.stream_rig import Rig, cookie_of, streaming, until
from tests.support.rigs.web_rig import serving
from tests.support.worlds.factories import make_admin, make_model, make_team, make_user
from tests.support.worlds.rollout_setup import with_stable

pytestmark = [pytest.mark.real("postgres"), pytest.mark.slow, pytest.mark.django_db(transaction=True)]
SYSTEM = Actor.system("engine")


@pytest.fixture
def rig() -> Iterator[Rig]:
    with streaming() as made:
        yield made


def happens(verb: str = "rollout.held", subject: Any = 7, model: str = "m", kind: str = "rollout", **facts: Any) -> int:
    """The number of a new event."""
    with transaction.atomic():
        facts = {"model": model, **facts} if model else facts
        return append_event(verb=verb, subject_type=kind, subject_id=subject, actor=SYSTEM, facts=facts).seq


def member(name: str = "", team: str = "search") -> User:
    return make_user(name, team=team)


def test_a_hint_says_what_changed_and_nothing_of_it(rig: Rig) -> None:
    make_model("m", team=make_team("search"))
    reading = rig.open_live(cookie_of(member()))
    assert reading.headers["content-type"].startswith("text/event-stream")
    assert "no-store" in reading.headers["cache-control"]
    assert [one["event"] for one in reading.messages] == ["reset"]
    seq = happens(candidate="r2", reason="a secret")
    until(lambda: reading.topics)
    assert reading.topics == ["rollout:7", "rollouts", "approvals", "release:m/r2", "model:m", "audit"]
    assert reading.messages[-1]["id"] == str(seq) and "secret" not in reading.body.decode()


def test_other_teams_things_are_not_named(rig: Rig) -> None:
    make_model("mine", team=make_team("search"))
    make_model("theirs", team=make_team("ads"))
    mine, theirs = rig.open_live(cookie_of(member())), rig.open_live(cookie_of(member(team="ads")))
    everything = rig.open_live(cookie_of(make_user(is_admin=True)))
    happens(model="theirs", subject=8)
    happens("deployment.ready", 5, "theirs", "deployment", release="r1")
    happens(model="mine", subject=7)
    until(lambda: "rollout:7" in mine.topics and "rollout:8" in theirs.topics and "rollout:7" in everything.topics)
    assert (
        "8" not in mine.body.decode().replace("id: ", "").replace(str(head_seq()), "")
        and "theirs" not in mine.body.decode()
    )
    assert "nodes" in mine.topics, "that something about a machine changed is for everybody"
    assert "mine" not in theirs.body.decode() and "rollout:7" not in theirs.topics


@pytest.mark.parametrize("cookie", [b"", b"sessionid=garbage", b"sessionid=%00\xff", b"sessionid=" + b"x" * 9000])
def test_nobody_gets_401_and_no_stream(rig: Rig, cookie: bytes) -> None:
    reading = rig.open(cookie)
    until(lambda: reading.is_over)
    assert reading.status == 401 and len(rig.hub) == 0


def test_only_our_own_pages_get_and_read(rig: Rig) -> None:
    cookie = cookie_of(member())
    assert rig.open(cookie, sec_fetch_site="cross-site").status == 403
    rig.leave(rig.open(cookie, sec_fetch_site="same-origin"))


@pytest.mark.parametrize("how", ["query", "header"])
def test_it_goes_on_exactly_where_it_was_broken_off(rig: Rig, how: str) -> None:
    make_model("m", team=make_team("search"))
    cookie = cookie_of(member())
    first = rig.open_live(cookie)
    before = happens(subject=1)
    until(lambda: "rollout:1" in first.topics)
    rig.leave(first)
    happens(subject=2)
    last = happens(subject=3)
    second = rig.open(cookie, after=before) if how == "query" else rig.open(cookie, after=1, last_event_id=str(before))
    until(lambda: "rollout:3" in second.topics)
    assert not second.events("reset")
    assert "rollout:2" in second.topics and "rollout:1" not in second.topics
    assert second.messages[-1]["id"] == str(last)


def test_nothing_is_lost_between_what_was_missed_and_what_comes(rig: Rig) -> None:
    make_model("m", team=make_team("search"))
    cookie, start = cookie_of(member()), head_seq()
    writer = threading.Thread(target=_write_each, args=(range(1, 121),))
    writer.start()
    readings = [rig.open(cookie, after=start) for _ in range(5)]
    writer.join()
    every = {f"rollout:{number}" for number in range(1, 121)}
    for reading in readings:
        until(lambda reading=reading: every <= set(reading.topics), "an event was lost")
        assert not reading.events("reset")


def _write_each(numbers: range) -> None:
    try:
        for number in numbers:
            happens(subject=number)
    finally:
        connection.close()


@pytest.mark.parametrize("after", ["0", "99999999", "garbage", "-3", "9" * 40, "1"])
def test_who_cannot_go_on_begins_anew(rig: Rig, monkeypatch: pytest.MonkeyPatch, after: str) -> None:
    monkeypatch.setattr(hub, "MOST_MISSED", 5)
    for _ in range(8):
        happens(model="")
    reading = rig.open(cookie_of(member()), after=after)
    until(lambda: reading.messages)
    assert [(one["event"], one["id"]) for one in reading.messages] == [("reset", str(head_seq()))]


def shuts_out(user: User, admin: Actor) -> dict[str, Any]:
    membership = user.memberships.select_related("team").first()
    assert membership is not None
    return {
        "deactivated": lambda: actions.deactivate_user(actor=admin, username=user.username),
        "credentials": lambda: actions.change_password(actor=admin, user=user, password="a long new password 17"),
        "roles": lambda: actions.revoke_role(
            actor=admin, username=user.username, team=membership.team.slug, role=Role(membership.role)
        ),
    }


@pytest.mark.parametrize("why", ["deactivated", "credentials", "roles"])
def test_who_is_shut_out_hears_bye_at_once_and_nothing_more(rig: Rig, why: str) -> None:
    make_model("m", team=make_team("search"))
    user, other = member(), member()
    reading, stays = rig.open_live(cookie_of(user)), rig.open_live(cookie_of(other))
    shuts_out(user, make_admin())[why]()
    until(lambda: reading.is_over)
    assert [one["data"] for one in reading.events("bye")] == [why]
    happens()
    until(lambda: "rollout:7" in stays.topics)
    assert not reading.topics and not stays.events("bye")
    again = rig.open(cookie_of(user) if why == "roles" else reading.scope["headers"][-1][1])
    assert again.status == (200 if why == "roles" else 401)


def test_a_new_role_is_heard_of_at_once(rig: Rig) -> None:
    make_model("theirs", team=make_team("ads"))
    user = member()
    reading = rig.open_live(cookie_of(user))
    happens(model="theirs")
    actions.grant_role(actor=make_admin(), username=user.username, team="ads", role=Role.CI)
    until(lambda: len(reading.events("reset")) == 2)
    assert reading.topics == []
    happens(model="theirs")
    until(lambda: "rollout:7" in reading.topics)


def test_a_new_model_of_the_team_is_heard_of(rig: Rig) -> None:
    reading = rig.open_live(cookie_of(member()))
    make_model("new", team=make_team("search"))
    happens("model.created", "new", "", "model", team="search")
    happens(model="new")
    until(lambda: "rollout:7" in reading.topics)
    assert "model:new" in reading.topics


@pytest.mark.parametrize("how", ["ended", "expired"])
def test_a_session_that_is_gone_is_found_though_no_event_tells(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(watcher, "CHECK_S", 0.0)
    if how == "expired":
        later = SimpleNamespace(now=lambda: timezone.now() + timedelta(days=30))
        monkeypatch.setattr("sluicegate.live.readers.timezone", later)
    reading = rig.open(cookie_of(member()))
    if how == "ended":
        until(lambda: reading.messages)
        Session.objects.all().delete()
    until(lambda: reading.is_over)
    assert [one["data"] for one in reading.events("bye")] == [how]


def test_a_tick_that_writes_no_event_is_a_hint_without_a_number(rig: Rig) -> None:
    rollout, _ = with_stable()
    mine, outsider = rig.open_live(cookie_of(member())), rig.open_live(cookie_of(member(team="ads")))
    Rollout.objects.filter(pk=rollout.pk).update(tick=rollout.tick + 1)
    until(lambda: mine.topics)
    assert mine.topics == [f"rollout:{rollout.pk}"] and "id" not in mine.messages[-1]
    assert not outsider.topics


def test_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "MOST_OF_ONE", 2)
    with streaming(most=3) as rig:
        cookie = cookie_of(member())
        two = [rig.open_live(cookie) for _ in range(2)]
        third = rig.open(cookie)
        assert (third.status, third.headers["retry-after"]) == (503, "15")
        rig.open_live(cookie_of(member()))
        assert rig.open(cookie_of(member())).status == 503
        rig.leave(two[0])
        assert rig.open(cookie_of(member())).status == 200


@pytest.mark.parametrize(("cause", "code"), [(None, "database_unavailable"), (LockNotAvailable, "locked")])
def test_a_database_that_does_nothing_is_told_as_everywhere(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, cause: type[Exception] | None, code: str
) -> None:
    def fails(*_: Any) -> Any:
        raise OperationalError("ended") from (cause("ended") if cause else None)

    monkeypatch.setattr(streams, "reader_of", fails)
    told = rig.open(b"")
    until(lambda: told.is_over)
    problem = json.loads(told.body)
    assert (told.status, told.headers["retry-after"], problem["code"]) == (503, "15", code)
    assert "Nothing was changed; try again soon." in problem["detail"]


def test_a_slow_reader_is_cut_off_and_delays_nobody(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MOST_WAITING", 5)
    monkeypatch.setattr(streams, "LAST_WORD_S", 0.1)
    make_model("m", team=make_team("search"))
    slow, quick = rig.open(cookie_of(member()), stalls=True), rig.open_live(cookie_of(member()))
    for number in range(40):
        happens(subject=number)
        until(lambda number=number: f"rollout:{number}" in quick.topics)
        if slow.is_over:
            break
    until(lambda: slow.is_over)
    assert slow.was_cut and len(rig.hub) == 1


def test_without_the_log_there_is_no_sign_of_life(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "BEAT_S", 0.05)
    monkeypatch.setattr(hub, "FRESH_S", 2.0)
    make_model("m", team=make_team("search"))
    reading = rig.open_live(cookie_of(member()))
    until(lambda: reading.events("beat"))
    works = watcher.happening_rows

    def fails(*args: Any) -> Any:
        raise OSError("the database is away")

    monkeypatch.setattr(watcher, "happening_rows", fails)
    until(lambda: not rig.call(lambda: rig.hub.is_fresh))
    heard = len(reading.messages)
    happens(subject=3)
    assert len(reading.messages) <= heard + 1
    monkeypatch.setattr(watcher, "happening_rows", works)
    until(lambda: "rollout:3" in reading.topics)


def test_the_end_of_the_process_ends_every_stream_at_once(rig: Rig) -> None:
    reading = rig.open_live(cookie_of(member()))
    rig.call(rig.hub.stop)
    until(lambda: reading.is_over)
    assert not reading.events("bye"), "it comes back to the next process"


def test_five_hundred_streams_keep_no_thread_and_no_connection_each(rig: Rig) -> None:
    make_model("m", team=make_team("search"))
    cookies = [cookie_of(member()) for _ in range(50)]
    readings = [rig.open(cookie) for cookie in cookies for _ in range(10)]
    for reading in readings:
        until(lambda reading=reading: reading.messages)
    assert len(rig.hub) == 500 and rig.hub.is_full_for(int(User.objects.latest("pk").pk))
    happens()
    for reading in readings:
        until(lambda reading=reading: "rollout:7" in reading.topics)
    names = [one.name for one in threading.enumerate()]
    assert sum(name.startswith(("streams", "log-watcher")) for name in names) <= 5
    assert _connections() <= 2 + 4, "one for the watcher, this test's own, and those of questions under way"


def test_who_leaves_before_a_thread_takes_up_the_question_is_not_waited_for(rig: Rig) -> None:
    """The last question closes a thread's connection; one that is counted for ever would leave each open."""
    go = threading.Event()

    async def ask() -> int:
        taken = [asyncio.create_task(rig.hub.in_thread(go.wait)) for _ in range(4)]
        left = [asyncio.create_task(rig.hub.in_thread(go.wait)) for _ in range(3)]
        while rig.hub._queued != 3:
            await asyncio.sleep(0.01)
        for one in left:
            one.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        go.set()
        await asyncio.gather(*taken)
        return rig.hub._queued

    assert asyncio.run_coroutine_threadsafe(ask(), rig.loop).result(60) == 0


def _connections() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


def test_a_page_learns_how_far_the_log_was_read_when_its_request_came(rig: Rig) -> None:
    page = {"type": "http", "method": "GET", "path": "/", "headers": []}
    rig.call(lambda: rig.hub)
    _ask(rig, dict(page))
    assert "seq" not in rig.seen[0].get("state", {})
    rig.open_live(cookie_of(member()))
    last = happens(model="")
    until(lambda: rig.hub.seq >= last)
    _ask(rig, dict(page))
    assert rig.seen[1]["state"]["seq"] == last


def _ask(rig: Rig, scope: dict[str, Any]) -> None:
    import asyncio

    asyncio.run_coroutine_threadsafe(rig.app(scope, None, None), rig.loop).result(60)  # type: ignore[arg-type]


def test_a_real_server_streams_and_stops_at_once() -> None:
    with serving() as server:
        cookie = cookie_of(make_user(is_admin=True)).decode()
        with (
            httpx.Client(base_url=server.url, timeout=60, headers={"cookie": cookie}) as client,
            client.stream("GET", "/_stream") as answer,
        ):
            assert (answer.status_code, answer.http_version) == (200, "HTTP/1.1")
            lines = answer.iter_lines()
            assert next(lines).startswith("id: ") and next(lines) == "event: reset"
            seq = happens(model="")
            assert next(line for line in lines if line.startswith("id: ") and line != "id: 0") == f"id: {seq}"
            ending = threading.Thread(target=server.stop)
            ending.start()
            assert [line for line in lines if "bye" in line] == [], "it ends whole: the browser comes back by itself"
            ending.join(60)
        assert not ending.is_alive()
        assert len(server.streams.hub) == 0
