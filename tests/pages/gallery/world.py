"""The company: teams, people, machines, six models and their last weeks. `gallery()` tells it all, and says what pages need."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.utils import timezone

from accounts.actions import actor_for, issue_token
from accounts.core.access import Role
from accounts.models import Issuer, Membership, Token, User
from insights.models import Incident
from ledger.models import Event
from notifications.actions.webhooks import create_webhook
from notifications.models import Attempt, Delivery, Webhook
from registry import actions
from registry.actions.reviews import comment_on, write_note
from registry.models import Release, ServedModel
from rollouts.actions import roll_back
from rollouts.core.recent_traffic import RecentTraffic
from rollouts.models import Alarm, Rollout, TrafficRecord
from serving.models import Environment, Gateway, Node, Route
from tests.pages.gallery.clock import StoryClock
from tests.pages.gallery.hardware import SILENT, SILENT_S, gpus_are_read, watched_run
from tests.pages.gallery.releases import (
    CODE,
    IMAGE,
    NEW_CODE,
    QUICK,
    SYSTEM,
    a_model,
    gate_run,
    golden_set,
    judged,
    pushed,
)
from tests.pages.gallery.rollouts import Traffic
from tests.support.worlds.alarm_setup import burning, counted, paged
from tests.support.worlds.factories import make_environment, make_team, make_user
from validators.core.policy import parse_policy
from validators.models import GateResult, GateRun

LONG = "multilingual-e5-large-instruct-reranker-for-product-search"
WHY_LONG = (
    "Rolled back by ada, because the dashboards of three markets showed empty result pages for queries that mix scripts; "
    "see https://incidents.example.com/2026/11/23/search-empty-results-for-mixed-scripts-in-three-markets#timeline"
)


@dataclass
class Gallery:
    """What the addresses of pages need. `viewer` may see and do everything."""

    viewer: User
    release: Release
    rollout: Rollout  # at its second step
    ended: Rollout  # rolled back by evidence
    waiting: Rollout  # for an approval
    stuck: Rollout
    gate_run: GateRun
    failed_run: GateRun
    running_run: GateRun
    watched_run: GateRun  # with capacity and GPUs
    webhook: Webhook
    issuer: Issuer
    person: User
    rejected: Release
    long: Release
    alarm: Alarm
    incident: Incident

    def arguments(self) -> dict[str, dict[str, Any]]:
        """By page: what its address says."""
        release = {"slug": self.release.model.slug, "number": self.release.number}
        return {
            "error": {"code": "stale"},
            "release_file": {**release, "path": "artifact/model.py"},
            "gate_run": {"pk": self.gate_run.pk},
            "webhook": {"pk": self.webhook.pk},
            "issuer": {"pk": self.issuer.pk},
            "settings_environment": {"slug": "production"},
            "person": {"username": self.person.username},
            "audit_event": {"seq": Event.objects.filter(verb="rollout.rolled_back").latest("seq").seq},
            "release": release,
            "model": {"slug": release["slug"]},
            "rollout": {"pk": self.rollout.pk},
            "alarm": {"pk": self.alarm.pk},
            "incident": {"pk": self.incident.pk},
            "post_mortem": {"pk": self.ended.pk},
        }


class _People:
    def __init__(self) -> None:
        search, speech = make_team("search"), make_team("speech")
        make_team("demo")
        self.ada = make_user("ada", is_admin=True, password="tests-only-secret")
        self.otto = make_user("otto", team=search, role=Role.MODEL_TEAM)
        self.mara = make_user("mara", team=search, role=Role.RELEASE_MANAGER)
        self.noor = make_user("noor", team=speech, role=Role.RELEASE_MANAGER)
        Membership.objects.create(user=self.noor, team=speech, role=Role.MODEL_TEAM.value)
        self.robot = make_user("ci-search", team=search, role=Role.CI)
        self.admin, self.author, self.manager = actor_for(self.ada), actor_for(self.otto), actor_for(self.mara)


def gallery(*, minutes: int = 60) -> Gallery:
    """All of it. The last rollout ends its story now; `minutes` of traffic are in the overview's sparklines."""
    clock = StoryClock(timedelta(days=9))
    with clock.running():
        return _story(clock, _People(), minutes)


def _story(clock: StoryClock, people: _People, minutes: int) -> Gallery:
    staging = make_environment("staging", title="Staging", is_routed=False, needs_passed_report=False)
    production = make_environment("production", title="Production", needs_passed_report=False)
    _machines()
    traffic = Traffic(production, clock)
    sentiment = a_model(
        people.admin, "sentiment", "search", "Sentiment of a sentence",
        description="MiniLM sentence encoder with a linear head; negative or positive.",
    )  # fmt: skip
    golden_set(sentiment)
    releases, ended = _sentiment(clock, people, traffic, sentiment, staging)
    others = _others(clock, people, traffic, staging)
    waiting, long = others["waiting"], others["long"]
    later = pushed(people.author, sentiment, "Next week's.", "int8")
    candidate = pushed(people.author, sentiment, "Shorter sentences in training; tokens as before.", code=NEW_CODE)
    report = judged(candidate, staging, baseline=releases[1], wrong=0.115, p50_ms=21.0, seed=9)
    _notes(people, candidate, releases[1])
    clock.go_to(seconds=100)
    rollout = traffic.start(people.manager, candidate, "The shorter sentences, for the week's release.")
    stuck = traffic.start(people.manager, others["lines"])
    traffic.until(rollout, "shifting", step=1)
    traffic.behave(others["lines"], error_frac=0.6)
    traffic.refuse(stuck.model, "the listener of this model was refused: no healthy upstream cluster of that name")
    traffic.until(stuck, "stuck")
    traffic.for_s(rollout, 3)
    issuer, webhook = _settings(people, production)
    _hours(clock, minutes)
    running, watched = _running(later, staging), watched_run(others["lines"], staging)
    counted(stuck.model, bad=48, attempts=1200)
    alarm = burning(stuck.model)
    everybody_is_heard()
    return Gallery(
        people.ada, candidate, rollout, ended, waiting, stuck, report.gate_run, GateRun.objects.get(release=releases[2]),
        running, watched, webhook, issuer, people.mara, releases[2], long,
        alarm, paged(),
    )  # fmt: skip


def _machines() -> None:
    runtime = {
        "image": IMAGE,
        "server": "triton",
        "backends": ["sluicegate-onnx", "python"],
        "versions": {"triton": "2.51.0"},
    }
    facts = {
        "memory_bytes": 64 << 30,
        "cpu_count": 16,
        "driver": "570.86.15",
        "gpus": ["NVIDIA L4", "NVIDIA L4"],
        "system": "Linux",
    }
    for name in ("gpu-1", "gpu-2", "gpu-3"):
        Node.objects.create(name=name, runtimes=[runtime], facts=facts, seen_at=timezone.now())


def _sentiment(
    clock: StoryClock, people: _People, traffic: Traffic, model: ServedModel, staging: Environment
) -> tuple[list[Release], Rollout]:
    """r1 and r2 promoted, r3 stopped by its gates, r4 taken back by evidence: (the releases, r4's rollout)."""
    first = pushed(people.author, model, "The first, float32.")
    judged(first, staging)
    traffic.serve(first, "The first release.")
    clock.go_to(days=6)
    second = pushed(people.author, model, "int8 per channel: a third of the memory.", "int8")
    judged(second, staging, baseline=first, p50_ms=15.0, seed=4)
    traffic.behave(first, latency_ms=38.0, spread=0.5, slow_frac=0.002, slow_ms=400.0)
    traffic.behave(second, latency_ms=24.0, spread=0.5, slow_frac=0.002, slow_ms=400.0)
    promoted = traffic.start(people.manager, second)
    traffic.until(promoted, "promoted", requests=40)
    actions.set_alias(actor=people.manager, model=model, name="champion", release=second, expected_version=None)
    clock.go_to(days=3)
    third = pushed(people.author, model, "A tokenizer that keeps capitals.", "int8", words="GOOD")
    judged(third, staging, baseline=second, lost={"tweets": 0.21, "movies": 0.06}, seed=5)
    clock.go_to(hours=26)
    fourth = pushed(people.author, model, "Own code before the graph.", code=CODE)
    actions.grant_waiver(actor=people.manager, release=fourth, reason="Read: eleven lines, no network, no files.")
    judged(fourth, staging, baseline=second, wrong=0.117, p50_ms=19.0, seed=6)
    ended = traffic.start(people.manager, fourth)
    traffic.until(ended, "shifting", step=1, requests=40)
    traffic.for_s(ended, 25, requests=40)
    traffic.behave(fourth, slow_frac=0.16, slow_ms=900.0)
    traffic.until(ended, "rolled_back", requests=40)
    return [first, second, third, fourth], ended


def _others(clock: StoryClock, people: _People, traffic: Traffic, staging: Environment) -> dict[str, Any]:
    """A model for each other state that a page can show."""
    found: dict[str, Any] = {}
    gates = {"gates": ["contract", "load"], "load": {"rate_per_s": 40, "slo_quantile": 0.95}}
    plain = {"gate_policy": gates, "rollout_policy": QUICK}
    clock.go_to(hours=5)
    long = a_model(people.admin, LONG, "search", "Reranker of the product search, for 24 languages", **plain)
    old, new = (pushed(people.author, long, f"Version {number}.") for number in (1, 2))
    found["long"] = new
    traffic.serve(old)
    taken = traffic.start(people.manager, new)
    traffic.until(taken, "shifting", step=0)
    roll_back(actor=people.admin, rollout=taken, expected_version=None, reason=WHY_LONG)
    traffic.until(taken, "rolled_back")
    fraud = a_model(people.admin, "fraud-score", "search", "Fraud score of a payment", **plain)
    kept, promoted = (pushed(people.author, fraud, f"Trees, month {number}.") for number in (1, 2))
    traffic.serve(kept)
    clock.go_to(minutes=55)
    traffic.until(traffic.start(people.manager, promoted), "promoted", requests=80)
    ocr = a_model(
        people.admin, "ocr-lines", "search", "Lines of text in a picture",
        **{**plain, "rollout_policy": {**QUICK, "steps": [{"weight_pct": 25, "min_s": 200, "min_samples": 9000, "deadline_s": 900}]}},
    )  # fmt: skip
    lines = [pushed(people.author, ocr, f"Lines {number}.") for number in (1, 2)]
    traffic.serve(lines[0])
    clock.go_to(minutes=25)
    found["lines"] = lines[1]
    found["waiting"] = _waiting(people, traffic, plain)
    speech = a_model(people.admin, "speech-to-text", "speech", "Words of a recording", **plain)
    heard = pushed(actor_for(people.noor), speech, "Greedy decoding.", code=CODE)
    pushed(actor_for(people.noor), speech, "Beam of four.")
    traffic.server(Release.objects.get(model=speech, number=2), "gpu-2", is_serving=False)
    assert heard.is_code_bearing
    a_model(people.admin, "toxicity", "search", "Toxicity of a comment", **plain)
    return found


def _waiting(people: _People, traffic: Traffic, plain: dict[str, Any]) -> Rollout:
    plain = {**plain, "rollout_policy": {"preset": "careful", "approvals": {"start": 1, "bake": 1}}}
    model = a_model(people.admin, "search-ranker", "search", "Order of search results", **plain)
    old, new = (
        pushed(people.author, model, "Pairwise."),
        pushed(people.author, model, "Listwise, 12 more features.", "int8"),
    )
    traffic.serve(old)
    return traffic.start(people.manager, new, "Listwise wins 1.4 points of NDCG offline.")


def _running(release: Release, staging: Environment) -> GateRun:
    """A gate run half done, of a release that would come next."""
    run = gate_run(release, staging, parse_policy(release.model.gate_policy, release.model.objectives))
    now = timezone.now()
    done = {
        "contract": "Names, data types, shapes and numbers are as declared.",
        "cold_start": "It took 10.5 s of 60 s.",
    }
    for gate, said in done.items():
        GateResult.objects.filter(gate_run=run, gate=gate).update(
            verdict="passed", reason=said, started_at=now - timedelta(seconds=40), ended_at=now - timedelta(seconds=28)
        )
    GateResult.objects.filter(gate_run=run, gate="golden").update(
        started_at=now - timedelta(seconds=28), progress_done=512, progress_total=800
    )
    return run


def _notes(people: _People, candidate: Release, against: Release) -> None:
    actions.grant_waiver(actor=people.manager, release=candidate, reason="Read line by line; it opens nothing.")
    text = "Shorter sentences in training.\nWatch p99 on tweets: they were the slowest slice last time."
    write_note(
        actor=people.author, release=candidate, text=text, tags=["weekly", "shorter-sentences"], expected_version=0
    )
    comment_on(
        actor=people.manager, release=candidate, against=against, section="code", path="artifact/model.py", line=9,
        text="The limit is gone here. Does the tokenizer really cut?",
    )  # fmt: skip


def _settings(people: _People, production: Environment) -> tuple[Issuer, Webhook]:
    issue_token(user=people.ada, name="laptop", actor=people.admin)
    issue_token(user=people.ada, name="deploys of the search team, from the office network", actor=people.admin)
    issue_token(user=people.ada, name="old laptop", actor=people.admin)
    Token.objects.filter(name="old laptop").update(expires_at=timezone.now() - timedelta(days=2))
    issuer = Issuer.objects.create(
        title="Company sign-in", url="https://login.example.com/realms/company", kind="other", is_for_people=True,
        client_id="sluicegate", audience="https://sluicegate.example.com", created_by="ada",
    )  # fmt: skip
    webhook, _ = create_webhook(
        actor=SYSTEM, team="search", target="https://hooks.example.com/services/T024BE7LD/B0123456789/on-call-of-search",
        verbs=["rollout.*", "gate_run.*"], title="On-call of search",
    )  # fmt: skip
    create_webhook(actor=SYSTEM, team="speech", target="https://hooks.example.com/speech", verbs=["*"])
    events = list(Event.objects.filter(subject_type="rollout").order_by("-seq")[:5])
    for number, event in enumerate(reversed(events)):
        is_last = number == len(events) - 1
        state = "gave_up" if is_last else "delivered"
        row = Delivery.objects.create(
            webhook=webhook, event=event, state=state, due_at=event.at, attempts=3 if is_last else 1, ended_at=event.at
        )
        for attempt in range(1, row.attempts + 1):
            Attempt.objects.create(
                delivery=row, number=attempt, at=event.at, ended_at=event.at, status_code=503 if is_last else 200,
                snippet="upstream connect error" if is_last else "ok", duration_ms=40 + 7 * attempt,
            )  # fmt: skip
    return issuer, webhook


def _hours(clock: StoryClock, minutes: int) -> None:
    """The last hour of each routed model, as the engine would have counted it."""
    for row, route in enumerate(Route.objects.select_related("model", "environment").order_by("model__slug")):
        counted, began = RecentTraffic(), clock.at.timestamp() - 60 * minutes
        for minute in range(minutes):
            requests = 1400 + 300 * row + (minute * 37 + row * 91) % 211 - 5 * abs(30 - minute)
            errors = 30 if route.model.slug == "ocr-lines" and minute > minutes - 8 else int(minute % 17 == 0)
            classes = (0,) * 8 + (requests - 30, 20, 5, 5, 0, 0) + (0,) * 7
            counted = counted.after(began + 60 * minute, requests, errors, classes)
        TrafficRecord.objects.create(
            environment=route.environment, model=route.model, state={"rate_per_s": 24.0}, traffic=counted.to_json(),
            at=timezone.now(),
        )  # fmt: skip


def everybody_is_heard() -> None:
    """A moment ago, as agents and gateways say it all the time, but for one machine that is silent."""
    now = timezone.now()
    Node.objects.update(seen_at=now)
    Gateway.objects.update(seen_at=now)
    Node.objects.filter(name=SILENT).update(seen_at=now - timedelta(seconds=SILENT_S), facts={})
    gpus_are_read()
