"""Each page: empty, filled, for an outsider, and through its forms."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from accounts.actions import actor_for
from accounts.core.access import Actor, Role
from accounts.models import User
from ledger.actions import append_event
from ledger.core.canonical import digest_of
from registry.models import Release
from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy_schema import parse_policy
from rollouts.models import DecisionRecord, Rollout
from serving.models import Environment
from serving.traffic.actions.routes import set_route
from tests.pages.clients import signed_in
from tests.pages.markup import squeezed
from tests.support.worlds.factories import make_environment, make_model, make_node, make_release, make_team, make_user
from validators.models import GateRun

pytestmark = pytest.mark.django_db


@pytest.fixture
def member() -> User:
    return make_user("ana", team="search", role=Role.MODEL_TEAM)


@pytest.fixture
def shifting(member: User) -> Rollout:
    """r2 at 25 % beside r1 in production."""
    model = make_model("sentiment", team=make_team("search"))
    stable, candidate = make_release(model), make_release(model)
    production = make_environment("production")
    set_route(
        actor=actor_for(make_user(is_admin=True)),
        environment=production,
        model=model,
        stable=stable,
        candidate=candidate,
        candidate_bp=2500,
        reason="test",
    )
    policy = parse_policy({"preset": "demo"})
    return Rollout.objects.create(
        model=model,
        environment=production,
        candidate=candidate,
        stable=stable,
        policy=policy.document,
        policy_digest=digest_of(policy.document),
        state=RolloutState.SHIFTING,
        step_index=0,
        weight_bp=2500,
        reason="Holding at 25 %: 12 more samples.",
        requested_by=member,
    )


def test_how_nodes_shut_code_in_is_told_and_beside_the_waiver_too(member: User) -> None:
    release = make_release(make_model("sentiment", team=make_team("search")), is_code_bearing=True)
    make_node("weak", facts={"containment": {"tier": "not contained", "allows_uncontained_code": True}})
    make_node("old")
    fleet = squeezed(signed_in(member).get(reverse("fleet")).content.decode())
    assert "<dt>Sandbox</dt><dd>not contained:" in fleet and "<dd>unknown:" in fleet
    page = signed_in(make_user("mara", team="search", role=Role.RELEASE_MANAGER)).get(
        reverse("release", args=["sentiment", release.number])
    )
    text = squeezed(page.content.decode())
    assert "Record the waiver" in text
    assert "On node <strong>weak</strong>: <strong>This code will run with the service&#x27;s rights" in text


@pytest.mark.parametrize("name", ["overview", "overview_live", "models", "rollouts", "audit"])
def test_empty_pages_say_what_to_do_next(name: str, member: User) -> None:
    answer = signed_in(member).get(reverse(name))
    assert answer.status_code == 200
    assert any(
        hint in answer.content.decode()
        for hint in ("No model yet", "Nothing has been rolled out yet", "Nothing has happened yet", "Append-only")
    )


def pages_of(rollout: Rollout) -> dict[str, str]:
    release: Release = rollout.candidate
    return {
        "overview": reverse("overview"),
        "models": reverse("models"),
        "model": reverse("model", args=[rollout.model.slug]),
        "release": reverse("release", args=[rollout.model.slug, release.number]),
        "rollouts": reverse("rollouts"),
        "rollout": reverse("rollout", args=[rollout.pk]),
        "rollout_live": reverse("rollout_live", args=[rollout.pk]),
    }


def test_pages_show_the_rollout(shifting: Rollout, member: User) -> None:
    client = signed_in(member)
    for name, url in pages_of(shifting).items():
        answer = client.get(url)
        assert answer.status_code == 200, name
        assert shifting.candidate.name in answer.content.decode(), name
    page = squeezed(client.get(pages_of(shifting)["rollout"]).content.decode())
    assert "Holding at 25 %: 12 more samples." in page
    assert 'hx-trigger="refresh"' in page
    assert 'width="25%"' in page and "style=" not in page


def test_events_name_releases_link_their_subjects_and_leave_out_what_did_not_change(shifting: Rollout) -> None:
    admin, actor = make_user("root", is_admin=True), Actor.system("tests")
    release = shifting.candidate
    for state in ("sealed", "retired"):
        append_event(
            verb="release.retired", subject_type="release", subject_id=str(release.pk), actor=actor, from_state="sealed",
            to_state=state,
        )  # fmt: skip
    append_event(verb="rollout.paused", subject_type="rollout", subject_id=shifting.pk, actor=actor)
    page = signed_in(admin).get(reverse("audit")).content.decode()
    assert f'href="{reverse("release", args=["sentiment", 2])}">sentiment/r2<' in page and str(release.pk) not in page
    assert f'href="{reverse("rollout", args=[shifting.pk])}">rollout {shifting.pk}<' in page
    assert "sealed → retired" in page and "sealed → sealed" not in page
    found = signed_in(admin).get(reverse("audit"), {"q": "sentiment/r2"}).content.decode()
    assert ">release.retired</td>" in found and ">rollout.paused</td>" not in found


def test_the_contract_is_a_table_and_no_model_without_rollouts_lacks_a_first_step(member: User) -> None:
    model = make_model("sentiment", team=make_team("search"))
    page = squeezed(signed_in(member).get(reverse("model_policies", args=["sentiment"])).content.decode())
    tensor = model.contract["inputs"][0]
    assert (
        f"<code>{tensor['name']}</code></td><td>{tensor['data_type']}</td>" in page and "&quot;inputs&quot;" not in page
    )
    assert "The first rollout begins with" in signed_in(member).get(reverse("overview")).content.decode()


def test_the_gate_page_says_sentences_and_numbers_before_the_json(shifting: Rollout, member: User) -> None:
    run = GateRun.objects.create(
        release=shifting.candidate,
        environment=shifting.environment,
        policy={},
        policy_digest="",
        state="finished",
        requested_by="t",
    )
    checks = [{"name": "accuracy", "verdict": "passed", "sentence": "The accuracy is 83 % of 800 items."}]
    accuracy = {"value": 0.83, "low": 0.8, "high": 0.86, "n": 800}
    run.results.create(gate="golden", position=0, evidence={"checks": checks, "accuracy": accuracy})
    run.results.create(
        gate="cold_start", position=1, evidence={"timings": {"fetch_s": 0.62, "load_s": 1.0}, "total_s": 1.62}
    )
    page = squeezed(signed_in(member).get(reverse("gate_run", args=[run.pk])).content.decode())
    assert "The accuracy is 83 % of 800 items." in page.split("<details>")[0]
    assert "80 % to 86 %" in page and "fetch 0.62 s, load 1 s" in page and page.count("All of it, as JSON") == 2


def test_a_gate_runs_evidence_comes_without_a_reload_and_is_final_once_the_run_has_ended(
    shifting: Rollout, member: User
) -> None:
    columns = {"release": shifting.candidate, "environment": shifting.environment, "policy": {}, "policy_digest": ""}
    run = GateRun.objects.create(state="running", requested_by="t", **columns)
    client, evidence = signed_in(member), reverse("gate_run_evidence", args=[run.pk])
    assert client.get(evidence, {"judged": "0"}).status_code == 204
    GateRun.objects.filter(pk=run.pk).update(state="finished")
    assert "hx-get" not in client.get(evidence, {"judged": "0"}).content.decode()
    assert "hx-get" not in client.get(reverse("gates_live", args=[run.pk])).content.decode()


def test_a_final_rollout_stops_polling(shifting: Rollout, member: User) -> None:
    Rollout.objects.filter(pk=shifting.pk).update(state=RolloutState.PROMOTED)
    assert "hx-trigger" not in signed_in(member).get(reverse("rollout_live", args=[shifting.pk])).content.decode()


def test_an_outsider_sees_nothing_of_it(shifting: Rollout) -> None:
    client = signed_in(make_user("otto", team="other"))
    assert "sentiment" not in client.get(reverse("overview")).content.decode()
    for name in ("model", "release", "rollout", "rollout_live"):
        answer = client.get(pages_of(shifting)[name])
        assert answer.status_code == 404, name
        assert not any(word in answer.content.decode() for word in ("Holding at 25", "team search", ">search<")), name
    assert "sentiment" not in client.get(pages_of(shifting)["rollout"]).content.decode()
    assert "sentiment" not in client.get(reverse("audit")).content.decode()


def test_pages_need_a_sign_in(shifting: Rollout) -> None:
    urls = pages_of(shifting)
    answer = Client().get(urls.pop("rollout_live"))
    assert answer.status_code == 401 and not answer.content  # a page must not be put into the page that asks
    for name, url in urls.items():
        answer = Client().get(url)
        assert answer.status_code == 302 and answer["Location"].startswith("/sign-in/"), name


def test_pause_from_the_page(shifting: Rollout, member: User) -> None:
    url = reverse("rollout_act", args=[shifting.pk, "pause"])
    answer = signed_in(member).post(url, {"version": shifting.version, "reason": "looking at a spike"}, follow=True)
    shifting.refresh_from_db()
    assert shifting.state == RolloutState.PAUSED
    assert "looking at a spike" in answer.content.decode()


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"reason": "why"}, "version"),
        ({"version": "99", "reason": "why"}, "version"),
        ({"version": "1", "reason": " "}, "Say why"),
        ({"version": "²", "reason": "why"}, "version"),
        ({"version": "1", "reason": "x" * 2001}, "the most"),
        ({"version": "1", "reason": "a\x00b"}, "zero byte"),
    ],
)
def test_a_bad_form_is_a_sentence_and_changes_nothing(
    shifting: Rollout, member: User, form: dict[str, Any], says: str
) -> None:
    Rollout.objects.filter(pk=shifting.pk).update(state=RolloutState.PAUSED)
    answer = signed_in(member).post(reverse("rollout_act", args=[shifting.pk, "resume"]), form, follow=True)
    shifting.refresh_from_db()
    assert shifting.state == RolloutState.PAUSED
    assert says in answer.content.decode()


def test_a_refused_form_keeps_what_was_typed(shifting: Rollout, member: User) -> None:
    client, typed = signed_in(member), {"version": "99", "reason": 'A spike "at 9".'}
    Rollout.objects.filter(pk=shifting.pk).update(state=RolloutState.PAUSED)
    answer = client.post(reverse("rollout_act", args=[shifting.pk, "resume"]), typed)
    assert answer.status_code == 412 and 'value="A spike &quot;at 9&quot;."' in answer.content.decode()
    model = client.post(
        reverse("model_roll_back", args=["sentiment"]), {"environment": "production", "reason": "x" * 2001}
    )
    assert model.status_code == 422 and f'value="{"x" * 2001}"' in model.content.decode()
    live = client.get(reverse("rollout_live", args=[shifting.pk])).content.decode()
    assert "hx-morph-skip" in live  # or the next poll would empty the field


def test_an_environment_that_cannot_be_is_a_sentence(shifting: Rollout, member: User) -> None:
    for address in (reverse("release_start", args=["sentiment", 2]), reverse("model_roll_back", args=["sentiment"])):
        answer = signed_in(member).post(address, {"environment": "a\x00", "reason": "why"})
        said = answer.content.decode()
        assert answer.status_code == 422 and ("zero byte" in said or "Choose the environment to roll out to" in said)


def test_an_unknown_verb_is_refused(shifting: Rollout, member: User) -> None:
    url = reverse("rollout_act", args=[shifting.pk, "view_of"])
    answer = signed_in(member).post(url, {"version": "1", "reason": "x"}, follow=True)
    assert "has no verb" in answer.content.decode()
    assert not DecisionRecord.objects.exists()


def test_only_who_may_approve_sees_the_button(shifting: Rollout, member: User) -> None:
    policy = {**shifting.policy, "approvals": {"start": 1}}
    Rollout.objects.filter(pk=shifting.pk).update(state=RolloutState.AWAITING_APPROVAL, policy=policy)
    page = reverse("rollout", args=[shifting.pk])
    assert "Approve" not in signed_in(member).get(page).content.decode()
    manager = make_user("mia", team="search", role=Role.RELEASE_MANAGER)
    assert "Approve" in signed_in(manager).get(page).content.decode()


def test_sign_in_says_when_name_and_password_differ() -> None:
    answer = Client().post(reverse("sign_in"), {"username": "ana", "password": "wrong"})
    assert "do not belong together" in answer.content.decode()


def test_an_unknown_model_is_a_page_not_a_traceback(member: User) -> None:
    answer = signed_in(member).get(reverse("model", args=["nothing"]))
    assert answer.status_code == 404
    assert "Back to the overview" in answer.content.decode()
    answer = signed_in(member).get("/nothing-here/")
    assert (
        answer.status_code == 404
        and 'aria-label="Main"' in answer.content.decode()
        and "icon.svg" in answer.content.decode()
    )


def test_no_template_holds_a_style_or_a_script() -> None:
    """A strict Content-Security-Policy would leave out either."""
    folder = Path(__file__).resolve().parents[2] / "templates"
    inline = re.compile(r"\sstyle=|<style|<script(?![^>]* src=)|\son[a-z]+=|javascript:")
    kept = {"post_mortem_file.html"}  # a file to keep, which brings all that it needs, and no page of ours
    found = {path.name: inline.findall(path.read_text()) for path in folder.rglob("*.html") if path.name not in kept}
    assert len(found) > 20 and {name: one for name, one in found.items() if one} == {}


def test_environments_without_gateway_are_not_offered(shifting: Rollout, member: User) -> None:
    Environment.objects.create(slug="staging", title="Staging", is_routed=False)
    page = signed_in(member).get(reverse("release_rollout", args=["sentiment", 2])).content.decode()
    assert "Production" in page and "Staging" not in page
