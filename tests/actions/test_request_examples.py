"""Examples of requests that failed or were slow: which are kept, how many, with which server, and what pages and files say of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from django.urls import reverse
from django.utils import timezone

from rollouts.models import Rollout
from rollouts.queries.first_broken import first_asked
from rollouts.queries.request_examples import MOST_SHOWN, examples_by_arm
from serving.models import Replica, RequestExample, Server
from serving.traffic.control_plane import plane as plane_module
from serving.traffic.control_plane import store
from serving.traffic.control_plane.model_settings import slow_ms_of
from serving.traffic.control_plane.plane import MOST_EXAMPLES
from serving.traffic.control_plane.request_log import FAILED, SLOW, LoggedRequest
from serving.traffic.control_plane.server import GatewayIdentity
from tests.pages.markup import squeezed
from tests.pages.test_model_tabs import signed_in
from tests.support.worlds.factories import make_replica, make_server, make_user
from tests.support.worlds.rollout_setup import put, with_stable
from web.post_mortem import markdown_of, post_mortem_of

pytestmark = pytest.mark.django_db
GATEWAY = GatewayIdentity(1, "gateway-1", "production", (("127.0.0.1", 1),))


@pytest.fixture
def rollout() -> Rollout:
    return with_stable()[0]


def logged(rollout: Rollout, number: int = 0, **over: Any) -> LoggedRequest:
    about = {
        "kind": FAILED, "digest": rollout.candidate.digest, "at": timezone.now() + timedelta(milliseconds=number),
        "request_id": f"request-{number}", "took_ms": 12.34, "http_status": 500, "grpc_status": None, "tries": 1,
        "flags": "", "server": "",
    }  # fmt: skip
    return LoggedRequest(**{**about, **over})


def write(*requests: LoggedRequest) -> None:
    store.write_examples(GATEWAY, requests)


def test_the_first_and_the_latest_of_each_kind_are_kept(rollout: Rollout) -> None:
    write(*(logged(rollout, number) for number in range(60)))
    write(logged(rollout, 60), logged(rollout, 5, kind=SLOW, http_status=200))
    kept = RequestExample.objects.filter(kind=FAILED).order_by("at").values_list("request_id", flat=True)
    assert list(kept) == [f"request-{number}" for number in (*range(20), *range(41, 61))]
    assert RequestExample.objects.filter(kind=SLOW).count() == 1


def test_only_arms_that_stand_beside_each_other_are_kept(rollout: Rollout) -> None:
    stable = rollout.stable
    assert stable is not None
    write(logged(rollout, digest=stable.digest), logged(rollout, digest=f"sha256:{'0' * 64}"))
    (one,) = RequestExample.objects.all()
    assert (one.release, one.candidate, one.server) == (stable, rollout.candidate, None)


def test_the_server_is_found_by_either_port_and_its_release(rollout: Rollout) -> None:
    ours = make_server(make_replica(rollout.candidate, rollout.environment), http_port=81, grpc_port=82)
    make_server(make_replica(rollout.stable, rollout.environment), http_port=83, grpc_port=84)
    for number, port in enumerate((81, 82, 83)):
        write(logged(rollout, number, server=f"127.0.0.1:{port}"))
    found = RequestExample.objects.order_by("at").values_list("server", flat=True)
    assert list(found) == [ours.pk, ours.pk, None]  # another release's server did not fail here
    Replica.objects.all().update(state="gone")
    Server.objects.filter(pk=ours.pk).delete()
    assert RequestExample.objects.filter(address="127.0.0.1:81", server=None).exists()


def test_some_of_thousands_are_written_and_what_is_lost_is_not_tried_again(
    rollout: Rollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane, written = plane_module.ControlPlane(), list[list[LoggedRequest]]()
    monkeypatch.setattr(store, "write_examples", lambda _, requests: written.append(list(requests)))
    plane.record_requests(GATEWAY, [logged(rollout)])  # no table is published yet: nobody knows what is watched
    loaded = store.load()
    plane._publish("production", loaded.tables["production"], loaded)
    plane.record_requests(GATEWAY, (logged(rollout, number) for number in range(5000)))
    plane.record_requests(GATEWAY, [logged(rollout, kind=SLOW), logged(rollout, digest=f"sha256:{'0' * 64}")])

    async def beat() -> None:
        await plane._write_examples()
        await plane._write_examples()

    asyncio.run(beat())
    ((*found,),) = written
    assert [one.kind for one in found] == [FAILED] * MOST_EXAMPLES + [SLOW]


def test_slow_requests_are_told_while_a_candidate_stands_there(rollout: Rollout) -> None:
    rollout.model.objectives = {"slow": {"threshold_ms": 250, "max_frac": 0.01}}
    rollout.model.save()
    (route,) = store.load().tables["production"].models
    assert route.slow_ms == 250
    for objectives in ({}, {"slow": None}, {"slow": {"threshold_ms": True}}, []):
        rollout.model.objectives = objectives
        assert slow_ms_of(rollout.model) is None


def test_the_view_shows_ten_of_an_arm_half_of_each_kind(rollout: Rollout) -> None:
    assert examples_by_arm(rollout) == []
    write(*(logged(rollout, number) for number in range(12)))
    (arm,) = examples_by_arm(rollout)
    assert ids(arm["requests"]) == [0, *range(3, 12)] and len(arm["requests"]) == MOST_SHOWN
    assert arm["since"] == arm["requests"][0]["at"] and arm["role"] == "candidate"
    write(*(logged(rollout, number, kind=SLOW, http_status=200) for number in range(20, 28)))
    (arm,) = examples_by_arm(rollout)
    assert ids(arm["requests"]) == [0, 8, 9, 10, 11, 20, 24, 25, 26, 27]
    over = put(rollout, "rolled_back", ended_at=timezone.now() - timedelta(hours=1))
    assert examples_by_arm(over) == []  # those of a later rollout of the same release are not this one's


def ids(requests: Iterable[dict[str, Any]]) -> list[int]:
    return [int(one["request_id"].removeprefix("request-")) for one in requests]


def test_pages_and_files_say_what_where_and_how_long(rollout: Rollout) -> None:
    make_server(make_replica(rollout.candidate, rollout.environment), http_port=81)
    hostile = '"><script>x</script>'
    write(
        logged(rollout, 1, server="127.0.0.1:81"),
        logged(rollout, 2, http_status=0, flags="UF"),
        logged(rollout, 3, http_status=200, grpc_status=13),
        logged(rollout, 4, kind=SLOW, http_status=200, took_ms=912.0, request_id=hostile),
        logged(rollout, 5, kind=SLOW, http_status=200, tries=2),
    )
    person = make_user(team="search")
    for name in ("rollout", "rollout_live"):
        page = squeezed(signed_in(person).get(reverse(name, args=[rollout.pk])).content.decode())
        for words in ("HTTP 500", "no connection", "gRPC status 13", "late, tried again beside it", "912 ms"):
            assert words in page, words
        assert "local, 127.0.0.1:81" in page and 'data-copy="request-1"' in page
        assert "<script>x" not in page
    put(rollout, "rolled_back", ended_at=timezone.now())
    found = post_mortem_of(rollout)
    text = markdown_of(found)
    assert "local 127.0.0.1:81" in text and "request-1" in text and "<script>" not in text
    assert signed_in(person).get(f"/api/v1/rollouts/{rollout.pk}/post-mortem").json()["examples"] == found["examples"]
    for more in ({}, {"format": "html"}):
        page = signed_in(person).get(reverse("post_mortem", args=[rollout.pk]), more).content.decode()
        assert "request-1" in page and "<script>x" not in page
        assert bool(re.search("data-copy", page)) is not bool(more)


@pytest.mark.parametrize(
    ("began_s", "took_s", "is_first"),
    [
        (-2.1, 2.0, True),  # it hung, and was counted when its time was up
        (-2.1, 1.0, False),  # it had ended long before the reading that shows no failure
        (-200.0, 200.0, False),  # longer than any request may take
    ],
)
def test_a_rollbacks_clock_starts_when_the_first_broken_request_was_asked(
    rollout: Rollout, began_s: float, took_s: float, is_first: bool
) -> None:
    counted_after = timezone.now()
    Rollout.objects.filter(pk=rollout.pk).update(created_at=counted_after - timedelta(hours=1))
    rollout.refresh_from_db()
    rollout.first_bad_at = counted_after
    asked_at = counted_after + timedelta(seconds=began_s)
    write(logged(rollout, at=asked_at, took_ms=1000 * took_s), logged(rollout, at=counted_after + timedelta(seconds=1)))
    write(logged(rollout, at=asked_at - timedelta(seconds=5), took_ms=1e5, digest=rollout.stable.digest))
    assert first_asked(rollout) == (asked_at if is_first else counted_after)


def test_without_a_bad_request_the_clock_has_no_start(rollout: Rollout) -> None:
    write(logged(rollout))
    assert first_asked(rollout) is None
