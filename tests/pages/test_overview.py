"""The overview: what needs one, what moves, what serves, and two clicks back."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.core.access import Actor, Role
from accounts.models import User
from registry.core.contract import read_settings
from rollouts import actions as rollback
from rollouts.core.latency import NOTHING
from rollouts.core.recent_traffic import RecentTraffic
from rollouts.models import Rollout, TrafficRecord
from rollouts.queries.places import places_of
from serving.models import Node, Route, Server, Sleep
from serving.traffic.actions.routes import set_route
from tests.pages.clients import signed_in
from tests.pages.markup import squeezed
from tests.support.worlds.factories import (
    make_admin,
    make_environment,
    make_model,
    make_release,
    make_replica,
    make_server,
    make_team,
    make_user,
)
from tests.support.worlds.rollout_setup import awaiting, production, promoted, put, serves, with_stable
from web.pages import overview

pytestmark = pytest.mark.django_db
#: Of one page, whatever there is to show.
MOST_QUERIES = 12


def manager() -> Client:
    return signed_in(make_user(team="search", role=Role.RELEASE_MANAGER))


def page_of(client: Client) -> str:
    return squeezed(client.get(reverse("overview")).content.decode())


def sheets(page: str) -> list[str]:
    """The confirmations that roll something back."""
    return re.findall(r'<form method="post" action="[^"]*/roll-back/">.*?</form>', page)


def test_two_clicks_roll_a_live_rollout_back() -> None:
    rollout, stable = with_stable()
    client = manager()
    page = page_of(client)
    (sheet,) = sheets(page)
    assert f"goes to {stable.name} at once" in sheet and '<button disabled hidden aria-hidden="true">' in sheet

    fields = [dict(re.findall(r'(\w+)="([^"]*)"', field)) for field in re.findall(r"<input[^>]*>", sheet)]
    form = {field["name"]: field["value"] for field in fields if "name" in field}
    assert form["reason"].startswith("Rolled back by ")
    address = re.findall(r'action="([^"]*)"', sheet)[0]
    assert client.post(address, form).status_code == 302
    rollout.refresh_from_db()
    assert rollout.state == "rolling_back" and form["reason"] in rollout.reason


def test_two_clicks_undo_a_promotion_while_its_window_is_open() -> None:
    rollout, stable = promoted()
    client = manager()
    (sheet,) = sheets(page_of(client))
    assert f"Roll back to {stable.name}" in sheet and "closes" in page_of(client)
    put(rollout, "promoted", undo_until=timezone.now() - timedelta(seconds=1))
    page = page_of(client)
    assert sheets(page) == [] and "closes" not in page and "by a new rollout" in page


def test_nothing_goes_back_to_what_is_not_warm() -> None:
    promoted(is_ready=False)
    assert sheets(page_of(manager())) == []


def test_the_way_back_is_that_of_the_rollout_s_own_rules() -> None:
    """The overview reads everything at once; `undo_window` asks for one rollout. They must not differ."""
    from rollouts.queries.undo_window import is_open

    rollout, stable = promoted()
    for change in ({}, {"undo_until": None}, {"undo_until": timezone.now()}, {"state": "reverted"}):
        Rollout.objects.filter(pk=rollout.pk).update(
            **{"state": "promoted", "undo_until": timezone.now() + timedelta(hours=1), **change}
        )
        rollout.refresh_from_db()
        (place,) = (one for rows in places_of([rollout.model]).values() for one in rows)
        assert (place.back_to is not None) == is_open(rollout), change
    put(rollout, "promoted", undo_until=timezone.now() + timedelta(hours=1))
    Route.objects.update(stable=stable, candidate=None, candidate_bp=0)
    (place,) = (one for rows in places_of([rollout.model]).values() for one in rows)
    assert place.back_to is None and not is_open(rollout)


def test_who_may_not_roll_back_is_not_offered_it() -> None:
    with_stable()
    viewer = make_user(team="elsewhere", role=Role.RELEASE_MANAGER)
    page = page_of(signed_in(viewer))
    assert sheets(page) == [] and "No model yet" in page


def test_nobody_is_told_what_is_not_true() -> None:
    """A person without a model learns neither that nothing is live nor where the gateway is."""
    rollout, _ = with_stable()
    page = page_of(signed_in(make_user("nobody")))
    assert "live here" not in page and rollout.model.slug not in page and "Gateway" not in page
    assert "No model yet</strong> that you may see" in page


def test_what_is_loaded_in_staging_is_shown() -> None:
    staging = make_environment("staging", title="Staging", is_routed=False)
    release = make_release(make_model("sentiment", team=make_team("search")))
    make_server(make_replica(release, staging, state="ready"))
    page = page_of(manager())
    assert "no gateway routes here" in page and "1 of 1 answer" in page and f">{release.name}</a>" in page


def test_what_waits_for_the_person_stands_first() -> None:
    rollout, requester, approver = awaiting()
    make_server(make_replica(Route.objects.get().stable, production(), state="ready"))
    client = signed_in(User.objects.get(pk=approver.user_id))
    page = page_of(client)
    assert "Needs you" in page and "needs your approval" in page and '<span class="badge">1</span>' in page
    assert page.index("Needs you") < page.index("Moving")
    assert "Needs you" not in page_of(signed_in(User.objects.get(pk=requester.user_id)))
    put(rollout, "stuck", reason="gateway-1 does not follow.")
    assert "the rollback is stuck" in page_of(client) and "gateway-1 does not follow." in page_of(client)


def test_servers_are_told_as_they_are() -> None:
    release = make_release(make_model("sentiment", team=make_team("search")))
    serves(release)
    assert "none is running" in page_of(manager())
    replica = make_replica(release, production(), state="ready")
    server = make_server(replica)
    assert "healthy</span>" in page_of(manager())
    type(server).objects.filter(pk=server.pk).update(is_serving=False)
    assert "lost</span>" in page_of(manager()) and "0 of 1 answer" in page_of(manager())
    type(server).objects.filter(pk=server.pk).update(
        is_serving=True, drift=[{"path": "a", "expected": "", "found": ""}]
    )
    assert "drifted</span>" in page_of(manager())


@pytest.mark.parametrize("count", [1, overview.MOST_ROWS])
def test_its_queries_do_not_grow(count: int, django_assert_max_num_queries: Any) -> None:
    team = make_team("search")
    for i in range(count):
        release = make_release(make_model(f"model-{i}", team=team))
        serves(release)
        make_replica(release, production(), state="ready")
    client = manager()
    with django_assert_max_num_queries(MOST_QUERIES):
        page = page_of(client)
    assert page.count('data-label="Serves"') == count


def test_a_model_that_sleeps_is_marked_and_not_taken_for_lost() -> None:
    release = make_release(make_model("sentiment"))
    serves(release)
    client = manager()
    assert "lost</span>" in page_of(client)
    row = Sleep.objects.create(model=release.model, environment=production(), state="asleep")
    page = page_of(client)
    assert "asleep</span>" in page and "lost</span>" not in page
    (place,) = places_of([release.model])[production()]
    assert place.sleep == "asleep" and overview._is_calm(place)
    Sleep.objects.filter(pk=row.pk).update(state="waking")
    assert "waking</span>" in page_of(client)
    Sleep.objects.filter(pk=row.pk).update(state="awake")
    assert "lost</span>" in page_of(client)


def test_of_more_rows_than_it_shows_the_calm_ones_are_left_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "MOST_ROWS", 2)
    team = make_team("search")
    for name in ("a-calm", "b-calm", "c-calm", "d-lost"):
        release = make_release(make_model(name, team=team))
        serves(release)
        if name != "d-lost":
            make_server(make_replica(release, production(), state="ready"))
    page = page_of(manager())
    shown = [name for name in ("a-calm", "b-calm", "c-calm", "d-lost") if f'">{name}</a></td>' in page]
    assert shown == ["a-calm", "d-lost"] and "And 2 more" in page


def test_of_many_rollouts_under_way_the_stuck_come_first_and_each_keeps_its_way_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overview, "MOST_MOVING", 1)
    shifting, stuck = (with_stable()[0] for _ in range(2))
    put(stuck, "stuck"), put(shifting, "shifting", weight_bp=500)
    page = page_of(signed_in(make_user("root", is_admin=True)))
    assert page.count('class="moving ') == 1 and f'aria-label="{stuck.model.slug} in Production"' in page
    assert "And 1 more" in page and f'id="back-row-production-{shifting.model.slug}"' in page


def test_the_last_hour_of_each_place_is_drawn() -> None:
    stable = make_release(make_model("sentiment", team=make_team("search"), objectives={"errors_max_frac": 0.01}))
    serves(stable)
    now = timezone.now().timestamp()
    traffic = RecentTraffic()
    for minute, errors in ((10, 0), (9, 0), (2, 30)):
        traffic = traffic.after(now - 60 * minute, 600, errors, NOTHING)
    TrafficRecord.objects.create(
        environment=production(), model=stable.model, traffic=traffic.to_json(), at=timezone.now(), state={}
    )
    page = page_of(manager())
    assert 'aria-label="unknown now, 10/s at most in the last hour"' in page and "10/s <" not in page
    assert 'aria-label="over the objective"' in page and "1.67 % failed</span>" in page


def test_an_hour_that_nobody_counted_is_said_to_be_unknown() -> None:
    serves(make_release(make_model("sentiment", team=make_team("search"))))
    assert "No traffic yet" in page_of(manager())


def test_a_change_of_weight_does_not_restart_how_long_stable_serves() -> None:
    rollout, stable = with_stable()
    began = timezone.now() - timedelta(minutes=8)
    Route.objects.update(stable_since=began)
    for weight in (5000, 9500, 0):
        set_route(
            actor=Actor.system("test"), environment=production(), model=rollout.model, stable=stable,
            candidate=rollout.candidate, candidate_bp=weight, fence=7, reason="Another step.",
        )  # fmt: skip
    assert "for 8 min" in page_of(manager())
    model_page = squeezed(manager().get(reverse("model", args=[rollout.model.slug])).content.decode())
    assert "for 8 min" in model_page
    serves(rollout.candidate)
    assert Route.objects.get().stable_since > began


def test_a_promotion_that_was_taken_back_tells_when_that_was() -> None:
    rollout, _ = promoted()
    put(rollout, "promoted", ended_at=timezone.now() - timedelta(minutes=9))
    rollback.roll_back_model(
        actor=make_admin(), model=rollout.model, environment=rollout.environment, reason="It answers nonsense."
    )
    page = page_of(manager())
    assert "reverted" in page and "9 min ago" not in page


def test_what_was_shed_is_no_failure_and_a_failing_model_without_objective_is_marked() -> None:
    stable = make_release(make_model("sentiment", team=make_team("search")))
    serves(stable)
    now = timezone.now().timestamp()
    traffic = RecentTraffic().after(now - 120, 100, 0, NOTHING, 50)
    row = TrafficRecord.objects.create(
        environment=production(), model=stable.model, traffic=traffic.to_json(), at=timezone.now(), state={}
    )
    page = page_of(manager())
    assert "0 % failed" in page and "50 % shed" in page and "over the objective" not in page
    row.traffic = traffic.after(now, 8, 8, NOTHING).to_json()
    row.save()
    assert "over the objective" in page_of(manager())


def served_and_counted(*, counted_s_ago: float, written_s_ago: float = 0.0, requests: int = 60) -> User:
    """A healthy model in production, whose gateways were last read so long ago."""
    release = make_release(make_model("sentiment", team=make_team("search")))
    serves(release)
    make_server(make_replica(release, production(), state="ready"))
    now = timezone.now()
    traffic = RecentTraffic().after(now.timestamp() - 180, 600, 0, NOTHING)
    traffic = traffic.after(now.timestamp() - counted_s_ago, requests, 0, NOTHING)
    TrafficRecord.objects.create(
        environment=production(), model=release.model, traffic=traffic.to_json(), at=now, state={}
    )
    TrafficRecord.objects.update(at=now - timedelta(seconds=written_s_ago))
    return make_user(team="search", role=Role.RELEASE_MANAGER)


@pytest.mark.parametrize(
    ("written_s_ago", "title"),
    [(1, "a gateway does not answer"), (14, "no gateway is read")],
    ids=["gateway", "engine"],
)
@pytest.mark.parametrize("address", ["overview", "model"])
def test_a_model_behind_gateways_that_nobody_reads_is_not_healthy(
    address: str, written_s_ago: float, title: str
) -> None:
    client = signed_in(served_and_counted(counted_s_ago=14, written_s_ago=written_s_ago))
    args = [] if address == "overview" else ["sentiment"]
    page = squeezed(client.get(reverse(address, args=args)).content.decode())
    assert "healthy" not in page and "word ok" not in page and title in page
    assert "unknown since" in page and "/s now" not in page and "no requests" not in page
    assert '<span class="badge bad"' in page
    if address == "overview":
        assert f"Production: {title}" in page and "it is unknown whether users of 1 model are served" in page


@pytest.mark.parametrize("requests", [0, 60])
def test_counts_of_the_present_are_shown_as_they_are(requests: int) -> None:
    page = page_of(signed_in(served_and_counted(counted_s_ago=6, written_s_ago=5, requests=requests)))
    assert "healthy</span>" in page and "unknown since" not in page and '<span class="badge bad"' not in page
    assert ("no requests" in page) == (requests == 0)
    assert ("4/s now" if requests else "0/s now") in page


@pytest.mark.parametrize(
    ("threshold_ms", "right_s_ago", "is_proven"),
    [(50, None, True), (50, 2, True), (50, 17, False), (None, 17, False), (2000, 17, True), (2000, 40, False)],
)
def test_a_server_is_healthy_only_with_a_right_answer_of_late(
    threshold_ms: int | None, right_s_ago: float | None, is_proven: bool
) -> None:
    """A frozen server keeps its last state until its deadlines are over. A slow model's server is asked rarely."""
    objectives = {} if threshold_ms is None else {"slow": {"threshold_ms": threshold_ms, "max_frac": 0.1}}
    settings, problems = read_settings({"objectives": objectives})
    assert problems == [] and settings["objectives"] == objectives  # as the product stores them
    release = make_release(make_model("sentiment", team=make_team("search"), objectives=objectives))
    serves(release)
    at = None if right_s_ago is None else timezone.now() - timedelta(seconds=right_s_ago)
    make_server(make_replica(release, production(), state="ready"), probed_at=at)
    client = manager()
    pages = {name: squeezed(client.get(reverse(name)).content.decode()) for name in ("overview", "fleet", "models")}
    pages["model"] = squeezed(client.get(reverse("model", args=["sentiment"])).content.decode())
    for name in ("overview", "model"):
        assert ("healthy</span>" in pages[name]) == is_proven, name
        assert ("gave no right answer since" in pages[name]) == ("unproven" in pages[name]) == (not is_proven), name
        assert is_proven or "word ok" not in pages[name], name
        assert f"{is_proven:d} of 1 answer" in pages[name], name
        assert '<span class="badge bad"' not in pages[name]  # a doubt is no outage
    answers = pages["fleet"].split('<td data-label="Answers">')[1].split("</td>")[0]
    assert ("unproven" in answers) == (not is_proven) and ("yes" in answers) == is_proven


@pytest.mark.parametrize("how", ["silent", "unproven", "unread"])
def test_no_page_about_a_model_in_trouble_states_that_it_is_well(how: str) -> None:
    rollout, _ = promoted(is_ready=False, warm_s=None)
    release, slug = rollout.candidate, rollout.model.slug
    make_server(make_replica(release, production(), state="ready"), memory_bytes=91 * 2**20, probed_at=timezone.now())
    client, number = manager(), release.number
    addresses = {
        "models": reverse("models"),
        "sleep": reverse("model_sleep", args=[slug]),
        "release": reverse("release", args=[slug, number]),
        "fleet": reverse("fleet"),
    }

    def shown() -> dict[str, str]:
        return {name: squeezed(client.get(address).content.decode()) for name, address in addresses.items()}

    before = shown()
    assert 'class="word ok"' in before["models"] and "91 MiB" in before["sleep"] and "91 MiB" in before["fleet"]
    if how == "silent":
        Node.objects.update(seen_at=timezone.now() - timedelta(minutes=1))
    elif how == "unproven":
        Server.objects.update(probed_at=timezone.now() - timedelta(minutes=1))
    else:
        traffic = RecentTraffic().after(timezone.now().timestamp() - 60, 1, 0, NOTHING).to_json()
        TrafficRecord.objects.create(
            environment=production(), model=release.model, traffic=traffic, at=timezone.now(), state={}
        )
    after = shown()
    for name in ("models", "sleep"):
        assert 'class="word ok"' not in after[name], name
    assert not re.search('word ok">[^<]*<svg[^>]*>.*?</svg> serves', after["release"])
    assert {"silent": "lost", "unproven": "unproven", "unread": "unknown"}[how] + "</span>" in after["models"]
    assert "is in doubt" in after["sleep"] and "is in doubt" not in before["sleep"]
    if how == "silent":
        assert "91 MiB" not in after["sleep"]


def test_a_lost_model_stands_first_and_no_word_is_green() -> None:
    team = make_team("search")
    for name in ("a-healthy", "b-lost"):
        release = make_release(make_model(name, team=team))
        serves(release)
        if name == "a-healthy":
            make_server(make_replica(release, production(), state="ready"))
    page = page_of(manager())
    table = page[page.index("<tbody>") :]
    assert table.index("b-lost") < table.index("a-healthy")
    row = table[table.index('class="bad"') : table.index("a-healthy")]
    assert "word ok" not in row and "b-lost in Production: no server is known to answer" in page
    assert '<span class="badge bad"' in page and page.count("healthy</span>") == 1
