"""Settings: the tabs and the status of our own processes; for administrators, others, empty and filled."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from audit.adapters.reachability import Answer, Latest, ask_all
from audit.queries import process_status as status
from audit.queries.process_status import Health, overall, process_status
from ledger.models import Job, Lease
from serving.models import Gateway, Node, Route, RouteAck
from tests.support.worlds.factories import make_environment, make_model, make_node, make_release, make_team, make_user
from tests.support.worlds.rollout_setup import OBJECTIVES, put, serves, started

pytestmark = pytest.mark.django_db
WELL = {"broker": Answer(True, "answers"), "prometheus": Answer(None, "none is configured")}


@pytest.fixture
def root() -> Client:
    client = Client()
    client.force_login(make_user("root", is_admin=True))
    return client


@pytest.fixture
def ann() -> Client:
    client = Client()
    client.force_login(make_user("ann", team="search"))
    return client


def text(client: Client, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200, answer.content
    return answer.content.decode()


def test_only_what_one_may_open_is_among_the_tabs(root: Client, ann: Client) -> None:
    html = text(ann, "/status/")
    assert "/settings/tokens/" not in html and "/settings/environments/" in html
    assert "/settings/tokens/" in text(root, "/status/")


def part(parts: list[status.PartStatus], name: str) -> status.PartStatus:
    return next(one for one in parts if one.name == name)


class TestStatus:
    def test_nothing_is_known_of_what_was_never_there(self) -> None:
        parts = process_status(WELL)
        assert part(parts, "PostgreSQL").health is Health.HEALTHY
        for name in ("engine", "scheduler", "last tick", "Prometheus"):
            assert part(parts, name).health is Health.UNKNOWN
        assert [one.health for one in parts if one.group in ("Agents", "Gateways")] == [Health.UNKNOWN] * 2
        assert overall(parts) is Health.HEALTHY

    def test_a_leader_that_leads_and_one_that_is_gone(self) -> None:
        now = timezone.now()
        Lease.objects.create(name="engine", owner="host:1", token=7, expires_at=now + timedelta(minutes=5))
        Lease.objects.create(name="scheduler", owner="host:2", token=1, expires_at=now - timedelta(minutes=5))
        parts = process_status(WELL)
        assert part(parts, "engine").health is Health.HEALTHY and "token 7" in part(parts, "engine").detail
        assert part(parts, "scheduler").health is Health.SILENT and overall(parts) is Health.UNHEALTHY

    def test_a_rollout_that_nobody_looks_at(self) -> None:
        model = make_model("ranker", team=make_team("search"), objectives=OBJECTIVES)
        stable, candidate = make_release(model), make_release(model)
        serves(stable)
        put(started(candidate=candidate), "shifting", step_index=0, weight_bp=500)
        assert "none yet" in part(process_status(WELL), "last tick").detail

    def test_jobs_that_nobody_takes(self) -> None:
        old = timezone.now() - timedelta(minutes=10)
        Job.objects.create(kind="gate_run", key="1", due_at=old)
        found = part(process_status(WELL), "jobs")
        assert found.health is Health.UNHEALTHY and found.detail.startswith("1 due")
        Job.objects.update(state="running", lease_until=old)
        assert "1 of them with a lease that ran out" in part(process_status(WELL), "jobs").detail

    def test_agents_and_gateways(self) -> None:
        make_node("quiet")
        Node.objects.filter(name="quiet").update(seen_at=timezone.now() - timedelta(hours=1))
        make_node("loud")
        Node.objects.filter(name="loud").update(seen_at=timezone.now())
        model = make_model("ranker", team=make_team("search"))
        serves(make_release(model))
        route = Route.objects.get()
        RouteAck.objects.all().delete()
        Gateway.objects.all().delete()
        gateway = Gateway.objects.create(environment=route.environment, name="gw", seen_at=timezone.now())
        parts = process_status(WELL)
        assert part(parts, "quiet").health is Health.SILENT and part(parts, "loud").health is Health.HEALTHY
        assert "0 of 1 routes" in part(parts, "gw").detail
        ack = RouteAck.objects.create(
            gateway=gateway, route=route, generation=route.generation, taken=route.generation, acked_at=timezone.now()
        )
        assert "1 of 1 routes" in part(process_status(WELL), "gw").detail
        RouteAck.objects.filter(pk=ack.pk).update(error="no such cluster")
        assert part(process_status(WELL), "gw").health is Health.UNHEALTHY

    def test_what_does_not_answer_is_unknown_and_what_refuses_is_not_well(self, settings: Any) -> None:
        never = threading.Event()

        def silent() -> Answer:
            never.wait(60)
            return Answer(True, "late")

        def refuses() -> Answer:
            raise ConnectionRefusedError("nobody listens")

        found = ask_all({"silent": silent, "refuses": refuses}, within_s=0.2)
        never.set()
        assert found["silent"].is_well is None and "no answer" in found["silent"].detail
        assert found["refuses"].is_well is False and "nobody listens" in found["refuses"].detail
        settings.REDIS_URL = "redis://127.0.0.1:1/0"
        settings.PROMETHEUS_URL = "http://127.0.0.1:1"
        real = ask_all(within_s=60)
        assert real["broker"].is_well is False and real["prometheus"].is_well is False
        assert real["store"].is_well is None and "first upload" in real["store"].detail

    def test_one_answer_is_that_of_all_who_ask_within_a_moment(self) -> None:
        now, asked = [0.0], []

        def ask() -> dict[str, Answer]:
            asked.append(now[0])
            return dict(WELL)

        latest = Latest(ask, for_s=3, clock=lambda: now[0])
        threads = [threading.Thread(target=latest) for _ in range(5)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(60)
        for now[0] in (0.0, 2.9, 3.0, 5.9):
            assert latest() == WELL
        assert asked == [0.0, 3.0] and isinstance(status.outside, Latest)

    def test_what_names_hosts_and_errors_is_for_administrators(
        self, ann: Client, root: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(status, "outside", lambda: {**WELL, "workers": Answer(True, "celery@inner-host")})
        until = timezone.now() + timedelta(minutes=5)
        Lease.objects.create(name="engine", owner="inner-host:1", token=7, expires_at=until)
        for path in ("/status/", "/api/v1/status"):
            assert text(root, path).count("inner-host") == 2
            told = text(ann, path)
            assert "inner-host" not in told and "healthy" in told and "administrators see more" in told

    def test_page_and_api_say_the_same(self, root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(status, "outside", lambda: {**WELL, "store": Answer(False, "<b>gone</b>")})
        make_environment("production")
        told = root.get("/api/v1/status").json()
        assert told["health"] == "unhealthy" and {one["name"] for one in told["parts"]} >= {"Blob store", "engine"}
        with CaptureQueriesContext(connection) as seen:
            html = text(root, "/status/")
        assert "&lt;b&gt;gone" in html and "unknown" in html and len(seen) <= 12, len(seen)
        assert Client().get("/api/v1/status").status_code == 401 and Client().get("/status/").status_code == 302
