"""Settings: keys, storage and the status of our own processes; for administrators, others, empty and filled."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

import registry.tasks  # noqa: F401 - registers the handler, as Celery does
from audit.adapters.reachability import Answer, Latest, ask_all
from audit.queries import process_status as status
from audit.queries.process_status import Health, overall, process_status
from ledger.models import Event, Job, Lease
from registry.models import Attestation, Blob, StoragePlan
from registry.signing import installation_keys
from registry.storage import adapter
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


@pytest.fixture(autouse=True)
def _own_folders(settings: Any, tmp_path: Any) -> None:
    settings.BLOB_STORE = str(tmp_path / "blobs")
    settings.SIGNING_KEY_FILE = str(tmp_path / "signing.pem")
    settings.RELEASE_KEY_FILE = str(tmp_path / "release.pem")
    settings.FORMER_KEYS_FILE = str(tmp_path / "former.pem")


def text(client: Client, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200, answer.content
    return answer.content.decode()


def test_the_index_says_what_each_page_holds_and_what_the_reader_may_do_there(root: Client, ann: Client) -> None:
    assert Client().get("/settings/").status_code == 302
    pages = [f"/settings/{name}/" for name in ("people", "tokens", "storage")]
    every, own = text(root, "/settings/"), text(ann, "/settings/")
    assert all(f'<dt><a href="{page}">' in every and f'href="{page}"' not in own for page in pages)
    assert own.count("Only an administrator may open it.") == len(pages) and "Only an administrator" not in every
    assert "You may make environments and change their rules." in every
    assert "You may read them; only an administrator may make environments" in own
    assert "those of every team" in every and "those of team search" in own
    assert every.count("<dt>") == own.count("<dt>") == 8 and 'aria-current="page">All</a>' in own


def test_only_what_one_may_open_is_among_the_tabs(root: Client, ann: Client) -> None:
    html = text(ann, "/status/")
    assert "/settings/storage/" not in html and "/settings/keys/" in html
    assert "/settings/storage/" in text(root, "/status/")


class TestKeys:
    def test_none_yet(self, ann: Client) -> None:
        html = text(ann, "/settings/keys/")
        assert "No key yet" in html and "takes an administrator" in html and "New key for" not in html

    def test_what_each_has_signed_and_a_new_one(self, root: Client) -> None:
        release = make_release(make_model("ranker", team=make_team("search")))
        before = installation_keys.present_key(installation_keys.Use.RELEASES)
        Attestation.objects.create(
            release=release, predicate_type="x", about=release.digest, key_id=before.key_id, bundle="{}"
        )
        html = text(root, "/settings/keys/")
        assert before.key_id in html and "BEGIN PUBLIC KEY" in html and "before <time" in html
        question = root.post("/settings/keys/rotate/", {"use": "releases"})
        assert b"stays valid" in question.content and not Event.objects.filter(verb="key.rotated").exists()
        answer = root.post("/settings/keys/rotate/", {"use": "releases", "confirmed": "yes"}, follow=True)
        after = installation_keys.present_key(installation_keys.Use.RELEASES)
        html = answer.content.decode()
        assert after.key_id != before.key_id and after.key_id in html and before.key_id in html
        assert "retired" in html and "private" not in html.lower().split("<main")[1].split("a new key")[0]

    def test_others_make_none(self, ann: Client, root: Client) -> None:
        assert ann.post("/settings/keys/rotate/", {"use": "reports", "confirmed": "yes"}).status_code == 403
        assert root.post("/settings/keys/rotate/", {"use": "<b>"}).status_code == 404
        assert not Event.objects.filter(verb="key.rotated").exists()

    @pytest.mark.parametrize("asked", ["nothing", "other/r1", "ranker/r9", "<b>/r1", "\u202e/r1", "a" * 5000, "\0"])
    def test_a_release_that_is_not_there_or_not_ones_own(self, ann: Client, asked: str) -> None:
        make_release(make_model("other", team=make_team("ads")))
        answer = ann.get("/settings/keys/", {"release": asked})
        html = answer.content.decode()
        assert answer.status_code in (200, 422) and 'class="notice bad"' in html + 'class="notice bad"' * (
            asked == "\0"
        )
        assert "<b>/r1" not in html

    def test_a_release_is_verified_now(self, ann: Client) -> None:
        make_release(make_model("ranker", team=make_team("search")))
        assert "without a signature" in text(ann, "/settings/keys/?release=ranker/r1")


class TestStorage:
    def blob(self, data: bytes, *, is_old: bool = True) -> Blob:
        sha256, size = adapter().put_stream(io.BytesIO(data))
        row = Blob.objects.create(sha256=sha256, size_bytes=size, store_key=f"{sha256}/whole")
        if is_old:
            Blob.objects.filter(pk=row.pk).update(created_at=timezone.now() - timedelta(days=3))
        return row

    def test_others(self, ann: Client) -> None:
        assert ann.get("/settings/storage/").status_code == 403
        assert ann.post("/settings/storage/run/", {"confirmed": "yes"}).status_code == 403

    def test_empty(self, root: Client) -> None:
        assert "No worker has planned a collection yet." in text(root, "/settings/storage/")
        assert b"there is nothing to delete" in root.post("/settings/storage/run/").content

    def test_a_worker_plans_and_the_page_shows_what_it_planned_and_when(
        self, root: Client, ann: Client, run_jobs: Callable[[], int]
    ) -> None:
        make_release(make_model("ranker", team=make_team("search")))
        assert ann.post("/settings/storage/plan/").status_code == 403 and not Job.objects.exists()
        assert "A plan is being made since" in root.post("/settings/storage/plan/", follow=True).content.decode()
        assert run_jobs() == 1
        kept = StoragePlan.objects.get()
        html = text(root, "/settings/storage/")
        assert kept.planned_at.isoformat(timespec="seconds")[:16] in html and "There was nothing to delete" in html
        stray = self.blob(b"nobody needs this")
        assert {one: total["blobs"] for one, _, total in root.get("/settings/storage/").context["fates"]}[
            "mark"
        ] == 0  # as it was planned
        html = text(root, f"/settings/storage/?why={stray.pk[:12]}")
        assert stray.pk in html and "There was nothing to delete" not in html  # what is asked is planned at once
        root.post("/settings/storage/run/", {"confirmed": "yes"})
        assert run_jobs() == 1  # what was collected is planned anew
        assert StoragePlan.objects.get().totals["wait"]["blobs"] == 1

    def test_why_and_a_run(self, root: Client) -> None:
        release = make_release(make_model("ranker", team=make_team("search")))
        stray = self.blob(b"nobody needs this")
        html = text(root, f"/settings/storage/?why={stray.pk[:12]}")
        assert stray.pk in html and "mark" in html
        html = text(root, f"/settings/storage/?why=ranker/r{release.number}")
        assert "ranker/r1" in html and "keep" in html
        assert "four characters" in text(root, "/settings/storage/?why=ab")
        assert "Nothing of that name" in root.get("/settings/storage/", {"why": "<b>nothing</b>"}).content.decode()
        question = root.post("/settings/storage/run/")
        assert (
            b"Marked, and to be had back" in question.content
            and not Event.objects.filter(verb="registry.collected").exists()
        )
        answer = root.post("/settings/storage/run/", {"confirmed": "yes"}, follow=True)
        assert "marked " in answer.content.decode()
        assert "wait" in text(root, f"/settings/storage/?why={stray.pk[:12]}")

    @pytest.mark.parametrize("count", [1, 200])
    def test_few_queries(self, root: Client, count: int) -> None:
        model = make_model("ranker", team=make_team("search"))
        for _ in range(count):
            make_release(model)
        with CaptureQueriesContext(connection) as seen:
            text(root, "/settings/storage/?fate=keep")
        assert len(seen) <= 20, [one["sql"][:100] for one in seen]  # the plan asks every room what it uses


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
