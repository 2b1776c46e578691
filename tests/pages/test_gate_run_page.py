"""A gate run's page: live while its gates run, its log, its plots, and the way to cancel it."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.core.access import Actor, Role
from registry.models import Release
from serving.models import ServerLog
from serving.targets.actions import keep_log
from tests.pages.markup import squeezed
from tests.support.worlds.factories import (
    make_environment,
    make_model,
    make_release,
    make_replica,
    make_server,
    make_team,
    make_user,
)
from validators.core.load import LATENCY_EDGES_MS
from validators.models import GateResult, GateRun
from web.pages.gate_plots import capacity_plot, latency_plot, stage_plot
from web.progress import left_of

pytestmark = pytest.mark.django_db
LOAD = {
    "requests": 200, "errors": 0, "over": 3, "offered_per_s": 20.0, "achieved_per_s": 20.0, "slo_ms": 250.0, "slo_quantile": 0.99,
    "latency_ms": {"p50": 12.0, "p95": 80.0, "p99": 300.0}, "full_per_s": 85.0, "phi": 1.0, "goodput_per_s": 19.7,
    "stages": {
        "total_ms": 12.5, "queue_ms": 2.25, "input_ms": 0.01, "infer_ms": 10.0, "output_ms": 0.01, "overhead_ms": 0.23,
        "mean_batch": 1.5, "busy_frac": 0.312,
    },
    "classes": [
        {
            "name": "longest", "requests": 25, "errors": 0, "over": 3, "goodput_per_s": 2.2, "over_frac_at_most": 0.3125,
            "latency_ms": {"p50": 70.0, "p95": 280.5, "p99": 300.0},
        },
    ],
    "latency_edges_ms": list(LATENCY_EDGES_MS), "latency_counts": [0] * 9 + [150, 40, 5, 0, 2, 0, 0, 0, 0, 3] + [0] * 9,
}  # fmt: skip
GOLDEN = {
    "accuracy": {"value": 0.9, "low": 0.88, "high": 0.92, "n": 800}, "baseline": "r1", "predictions": list(range(300)),
    "paired": {"n": 800, "both_right": 700, "lost": 30, "won": 20, "drop": 0.0125},
    "slices": {
        "long": {"items": 200, "lost": 20, "won": 2, "is_judged": True},
        "<b>": {"items": 9, "lost": 0, "won": 1, "is_judged": False},
    },
    "checks": [{"verdict": "failed", "sentence": "The accuracy drop is 1.2 points."}],
}  # fmt: skip


@pytest.fixture
def running() -> GateRun:
    """A run of r2 with golden running at 30 of 90, and load waiting."""
    model = make_model("sentiment", team=make_team("search"))
    stable, candidate = make_release(model), make_release(model)
    run = GateRun.objects.create(
        release=candidate, environment=make_environment("staging", is_routed=False), baseline=stable, state="running",
        policy={"golden": {"max_accuracy_drop": 0.01}}, policy_digest="sha256:" + "0" * 64, requested_by="ana",
    )  # fmt: skip
    began = timezone.now() - timedelta(seconds=10)
    GateResult.objects.create(
        gate_run=run, gate="golden", position=0, started_at=began, progress_done=30, progress_total=90
    )
    GateResult.objects.create(gate_run=run, gate="load", position=1)
    return run


def test_evidence_says_where_it_was_measured(member: Client, running: GateRun) -> None:
    judge(running, "load", LOAD)
    assert "Measured" not in shown(member, "gate_run", running)
    place = {"node": "n1", "image": "x", "cpu_model": "EPYC", "gpu": None}
    running.results.filter(gate="golden").update(
        verdict="passed", evidence=GOLDEN, measured=place, ended_at=timezone.now()
    )
    page = shown(member, "gate_run", running)
    assert "on node n1: architecture unknown, GPU unknown" in page and "CPU EPYC, CPU count unknown" in page


def judge(run: GateRun, gate: str, evidence: dict[str, Any], verdict: str = "passed") -> None:
    run.results.filter(gate=gate).update(verdict=verdict, evidence=evidence, ended_at=timezone.now())


@pytest.fixture
def member(client: Client, running: GateRun) -> Client:
    client.force_login(make_user("mia", team="search", role=Role.MODEL_TEAM))
    return client


def shown(client: Client, name: str, run: GateRun, query: str = "") -> str:
    answer = client.get(reverse(name, args=[run.pk]) + query)
    assert answer.status_code == 200
    return squeezed(answer.content.decode())


def test_a_running_gate_says_how_far_it_is_and_how_long_it_will_take(member: Client, running: GateRun) -> None:
    page = shown(member, "gate_run", running)
    assert (
        "30 of 90" in page
        and re.search(r", about [0-9.]+ (s|min) left", page)
        and f'data-live="gate-run:{running.pk}"' in page
    )
    assert "it appears here by itself" in page
    result = running.results.get(gate="golden")
    began = result.started_at
    assert began is not None and left_of(result, began + timedelta(seconds=1)) == ""
    assert left_of(result, began + timedelta(seconds=10)) == "about 20 s left"


def test_answers_that_are_no_labels_tell_how_far_off_they_are(member: Client, running: GateRun) -> None:
    far = {"p50": 0.02, "p90": 0.021, "p99": 0.5, "largest": "inf"}
    own = {name: value for name, value in GOLDEN.items() if name != "predictions"}
    kind = {"compare": "cosine", "right_within": 0.01, "same_within": 0.0001, "same_source": "stable's own spread"}
    worst = [{"id": "<i>7", "slice": "long", "off_by": 0.5}]
    judge(running, "golden", {**own, **kind, "off_by": far, "apart": {**far, "p50": 0.003}, "worst": worst}, "failed")
    page = shown(member, "gate_run", running)
    assert "by <code>cosine</code>; right within 0.01, the same within 0.0001 (from stable&#x27;s own spread)" in page
    assert "no answer, or another shape" in page and ">0.003<" in page and "&lt;i&gt;7" in page
    assert "against=r1#golden" not in page, "there are no labels to compare item by item"


def test_evidence_appears_by_itself_and_only_when_there_is_more(member: Client, running: GateRun) -> None:
    address = reverse("gate_run_evidence", args=[running.pk])
    assert member.get(address, {"judged": "0"}).status_code == 204
    judge(running, "golden", GOLDEN, "failed")
    fragment = squeezed(member.get(address, {"judged": "0"}).content.decode())
    assert "Accuracy drop by slice" in fragment and "30 lost, 20 won of 800" in fragment and "?judged=1" in fragment
    assert "&lt;b&gt;" in fragment and "too few items to be judged" in fragment
    assert "20 won" in fragment and ">50<" in fragment  # 800 - 700 - 30 - 20: nobody was right
    assert "and 250 more" in fragment and "against=r1#golden" in fragment
    assert member.get(address, {"judged": "1"}).status_code == 204


def test_the_load_gate_is_drawn_with_its_objective_and_capacity(member: Client, running: GateRun) -> None:
    judge(running, "golden", GOLDEN)
    judge(running, "load", LOAD)
    page = shown(member, "gate_run", running)
    assert "objective 250 ms" in page and "capacity 85/s" in page and "One run, so one rate." in page
    assert "Of 200 answers" in page and "not within it" in page  # p99 is over the objective
    other = GateRun.objects.create(
        release=running.release, environment=running.environment, policy={}, policy_digest="x", requested_by="ana",
        state="finished", verdict="passed",
    )  # fmt: skip
    slow = {**LOAD, "offered_per_s": 60.0}
    GateResult.objects.create(gate_run=other, gate="load", position=0, verdict="passed", evidence=slow)
    assert "Of 2 runs of this release." in shown(member, "gate_run", running)
    before = {name: value for name, value in LOAD.items() if name != "latency_counts"}
    assert latency_plot(before) is None and latency_plot(LOAD) is not None  # a run of before kept no histogram


def test_the_search_for_the_capacity_is_drawn_with_what_was_proven_and_declared(
    member: Client, running: GateRun
) -> None:
    point = {"latency_ms": {"p50": 12.0, "p99": 300.0}, "goodput_per_s": 9.5}
    evidence = {
        "slo_ms": 250.0, "capacity_per_s": 31.4,
        "envelope": [{
            "field": "performance[0].throughput", "words": "throughput", "unit": "requests_per_s", "declared": 40.0,
            "declared_for": " on NVIDIA-L4", "measured": 31.4, "gate": "capacity", "verdict": "unknown",
            "under": "", "sentence": "Not refuted.",
        }],
        "points": [{**point, "rate_per_s": 10.0}, {**point, "rate_per_s": 32.0}],
    }  # fmt: skip
    GateResult.objects.create(gate_run=running, gate="capacity", position=9, verdict="undecided", evidence=evidence)
    page = squeezed(member.get(reverse("gate_run", args=[running.pk])).content.decode())
    assert "Proven: 31.4 requests a second; the envelope declares 40. Of 2 rates" in page
    assert "capacity 31.4/s" in page and "objective 250 ms" in page
    assert capacity_plot({}) is None
    assert capacity_plot({"slo_ms": 1, "points": evidence["points"]}).caption.startswith("No rate is proven.")


def test_the_load_gate_says_where_the_time_went(member: Client, running: GateRun) -> None:
    judge(running, "load", LOAD)
    page = shown(member, "gate_run", running)
    assert "<dd>19.7/s of 20/s</dd>" in page
    assert "<dd>12.5 ms: 2.25 waiting, 10 in the model, 0.23 elsewhere; in batches of 1.5</dd>" in page
    assert "<dd>31.2 % of the time</dd>" in page


@pytest.mark.parametrize(
    ("after_s", "says"), [(1.2, "back within the objective after 1.2 s"), (None, "not back within the objective")]
)
def test_the_load_gate_shows_each_class_and_how_soon_it_was_back_after_a_burst(
    member: Client, running: GateRun, after_s: float | None, says: str
) -> None:
    recovery = {"burst_per_s": 60, "burst_s": 3, "recovered_after_s": after_s, "allowed_s": 10, "lag_p99_ms": 1.0}
    judge(running, "load", {**LOAD, "recovery": recovery})
    page = shown(member, "gate_run", running)
    assert '<th scope="row">longest</th>' in page and '<td class="num">280.5 ms</td>' in page
    assert '<td class="num">31.2 %</td>' in page
    assert "<dt>after 3 s at 60/s</dt>" in page and says in page


def test_a_gate_that_waits_says_for_whom(member: Client, running: GateRun) -> None:
    GateResult.objects.filter(gate_run=running, gate="golden").update(reason="waits for gate run 7 of search r2 on n1")
    assert "waits for gate run 7 of search r2 on n1" in shown(member, "gate_run_live", running)


def test_of_a_server_without_counters_it_does_not_say_where_the_time_went(member: Client, running: GateRun) -> None:
    judge(running, "load", {**LOAD, "stages": None})
    page = shown(member, "gate_run", running)
    assert "goodput" in page and "on the server" not in page


def test_the_servers_log_is_kept_where_no_user_is_and_shown_escaped(member: Client, running: GateRun) -> None:
    system = Actor.system("agent")
    server = make_server(make_replica(running.release, running.environment))
    keep_log(actor=system, server=server, text="I0101 <b>loaded</b> \u202e")
    page = shown(member, "gate_run_live", running)
    assert "&lt;b&gt;loaded" in page and "U+202E" in page
    production = make_server(make_replica(running.release, make_environment("production")))
    keep_log(actor=system, server=production, text="what a user sent")
    assert ServerLog.objects.count() == 1
    told = member.get(f"/api/v1/gate-runs/{running.pk}/log").json()
    assert told["text"].startswith("I0101")


def test_it_is_cancelled_by_one_click_and_by_nobody_of_another_team(member: Client, running: GateRun) -> None:
    address = reverse("gate_run_cancel", args=[running.pk])
    member.force_login(make_user("eve", team="sound"))
    assert member.post(address).status_code == 404
    for name in ("gate_run", "gate_run_live", "gate_run_evidence"):
        assert member.get(reverse(name, args=[running.pk])).status_code == 404
    member.force_login(make_user("rob", team="search", role=Role.MODEL_TEAM))
    assert "Cancel the run" in shown(member, "gate_run", running)
    done = (
        member.post(address, {"reason": "rob cancelled it by hand"}, follow=True).content.decode().partition("<main")[2]
    )
    assert "is cancelled" in done and "Cancel the run" not in done and "hx-get" not in done
    assert member.post(address).status_code == 409


@pytest.mark.parametrize("many", [1, 30])
def test_the_page_asks_few_questions(
    member: Client, running: GateRun, many: int, django_assert_max_num_queries: Any
) -> None:
    release: Release = running.release
    judge(running, "load", LOAD)
    for _ in range(many):
        other = GateRun.objects.create(
            release=release, environment=running.environment, policy={}, policy_digest="x", requested_by="ana",
            state="finished", verdict="passed",
        )  # fmt: skip
        GateResult.objects.create(gate_run=other, gate="load", position=0, verdict="passed", evidence=LOAD)
    for name in ("gate_run", "gate_run_live"):
        with django_assert_max_num_queries(12):
            shown(member, name, running)


def test_where_the_time_goes_is_drawn_where_it_was_told(member: Client, running: GateRun) -> None:
    stages = {
        "queue_ms": 4.0,
        "input_ms": 1.0,
        "infer_ms": 6.0,
        "output_ms": 1.0,
        "overhead_ms": 0.5,
        "mean_batch": 2.5,
    }
    point = {"rate_per_s": 20.0, "goodput_per_s": 19.0, "latency_ms": {"p50": 12.0}, "stages": stages}
    evidence = {
        "slo_ms": 250.0, "capacity_per_s": None, "points": [point, {**point, "rate_per_s": 10.0, "stages": None}],
    }  # fmt: skip
    GateResult.objects.create(gate_run=running, gate="capacity", position=9, verdict="undecided", evidence=evidence)
    page = squeezed(member.get(reverse("gate_run", args=[running.pk])).content.decode())
    assert "Where its time goes" in page and "2.5" in page and "8 ms" in page  # the model's three parts
    assert stage_plot({"points": [{**point, "stages": None}]}) is None
