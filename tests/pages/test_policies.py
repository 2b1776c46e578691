"""A model's policies on their page: read by all, changed in words or as text by its team, drawn before, told afterwards."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from accounts.core.access import Actor, Role
from ledger.models import Event
from registry.actions import change_model
from registry.models import ServedModel
from tests.support.worlds.factories import make_model, make_team, make_user
from tests.support.worlds.rollout_setup import OBJECTIVES, production, with_stable

pytestmark = pytest.mark.django_db
SYSTEM = Actor.system("test")
STEP = {"weight_pct": 10, "min_s": 60, "min_samples": 100, "deadline_s": 900}
GATES = {"load": {"rate_per_s": 20, "slo_ms": 50}, "golden": {"min_agreement": None}}
ROLLOUTS = {
    "preset": "fast",
    "steps": [STEP, {**STEP, "weight_pct": 40, "min_s": 600}],
    "approvals": {"start": 1, "step 2": 1},
    "freeze_windows": [{"days": ["sat"], "why": "weekend"}],
}
HOSTILE = '<script>alert("x")</script>\u202e'


@pytest.fixture
def model() -> ServedModel:
    production()
    found = make_model(
        "ranker", team=make_team("search"), objectives=OBJECTIVES, gate_policy=GATES, rollout_policy=ROLLOUTS
    )
    found.refresh_from_db()
    return found


@pytest.fixture
def page() -> str:
    return reverse("model_policies", args=["ranker"])


def signed_in(role: Role, team: str = "search") -> Client:
    client = Client()
    client.force_login(make_user(f"{role}-{team}", team=team, role=role))
    return client


def words(text: str) -> dict[str, str]:
    """What a browser sends of the page's first form when nobody typed anything."""
    form = re.search(r"<form\s+method=\"get\".*?</form>", text, re.S)
    assert form
    inputs = re.findall(r'<input[^>]*? name="([^"]*)"[^>]*?value="([^"]*)"', form[0])
    chosen = re.findall(r'<select id="([^"]*)".*?<option value="([^"]*)" selected', form[0], re.S)
    return {name: unescape(value) for name, value in [*inputs, *chosen]}


def confirmation(text: str) -> dict[str, str]:
    """What the confirmation's form sends; the sheet must be there."""
    sheet = re.search(r'id="sheet-keep".*?</form>', text, re.S)
    assert sheet
    return {
        name: unescape(value) for name, value in re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', sheet[0])
    }  # fmt: skip


def now(model: ServedModel) -> dict[str, Any]:
    model.refresh_from_db()
    return {"objectives": model.objectives, "gate_policy": model.gate_policy, "rollout_policy": model.rollout_policy}


def test_a_form_nobody_typed_in_changes_nothing(model: ServedModel, page: str) -> None:
    team = signed_in(Role.MODEL_TEAM)
    typed = words(team.get(page).content.decode())
    assert typed["gate_policy.golden.min_agreement"] == "none" and typed["weights"] == "10, 40" and typed["min_s"] == ""
    shown = team.get(page, typed).content.decode()
    assert "No changes to the model" in shown and "sheet-keep" not in shown


@pytest.mark.parametrize(
    ("typed", "changed", "says"),
    [
        ({"objectives.errors_max_frac": "0.02"}, {"objectives": {"errors_max_frac": 0.02}}, "0.01 → 0.02"),
        ({"objectives.errors_max_frac": ""}, {"objectives": {}}, "0.01 → –"),
        ({"gate_policy.load.slo_ms": "", "gate_policy.golden.min_agreement": ""},
         {"gate_policy": {"load": {"rate_per_s": 20}}}, "gate_policy.load.slo_ms: 50 → –"),
        ({"gate_policy.stop_at_first_failure": "no"}, {"gate_policy": {**GATES, "stop_at_first_failure": False}}, "– → false"),
        ({"gate_policy.gates": "contract, load"}, {"gate_policy": {**GATES, "gates": ["contract", "load"]}}, "contract"),
        ({"rollout_policy.holdback_pct": "7.5"}, {"rollout_policy": {**ROLLOUTS, "holdback_pct": 7.5}}, "– → 7.5"),
        ({"min_samples": "200"},
         {"rollout_policy": {**ROLLOUTS, "steps": [{**step, "min_samples": 200} for step in ROLLOUTS["steps"]]}}, "100 → 200"),
        ({"approvals_promote": "2"}, {"rollout_policy": {**ROLLOUTS, "approvals": {"start": 1, "step 2": 1, "promote": 2}}},
         "approvals.promote: – → 2"),
    ],
)  # fmt: skip
def test_words_are_shown_as_changes_confirmed_once_and_kept(
    model: ServedModel, page: str, typed: dict[str, str], changed: dict[str, Any], says: str
) -> None:
    team, before = signed_in(Role.MODEL_TEAM), now(model)
    filled = words(team.get(page).content.decode())
    shown = team.get(page, {**filled, **typed}).content.decode()
    assert says in unescape(shown) and "keep the policies that they began" in shown and now(model) == before
    form = confirmation(shown)
    assert json.loads(form["settings"]) == changed and form["version"] == str(model.version)
    assert team.post(page, form).status_code == 302
    assert now(model) == {**before, **changed}
    assert Event.objects.get(verb="model.changed").facts["after"] == changed
    assert team.get(page).content.decode().count("<tr>") >= 2


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ({"objectives.errors_max_frac": "lots"}, "“lots” is not a number"),
        ({"objectives.errors_max_frac": "7"}, "objectives.errors_max_frac"),
        ({"gate_policy.golden.set": HOSTILE}, "gate_policy.golden.set"),
        ({"gate_policy.gates": "contract,contract"}, "occurs twice"),
        ({"gate_policy.stop_at_first_failure": "perhaps"}, "write yes or no"),
        ({"weights": "50, 5"}, "do not grow"),
        ({"base": HOSTILE}, "is not a preset"),
        ({"approvals_start": "x" * 10_000}, "is not a number"),
        ({"gate_policy.golden.set": "a\0b"}, "gate_policy.golden.set"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_says_why_and_stays_typed(
    model: ServedModel, page: str, typed: dict[str, str], says: str
) -> None:
    team = signed_in(Role.MODEL_TEAM)
    shown = team.get(page, {**words(team.get(page).content.decode()), **typed}).content.decode()
    assert "It cannot be kept" in shown and says in unescape(shown) and "sheet-keep" not in shown
    assert "<script>alert" not in shown and now(model)["gate_policy"] == GATES
    assert next(iter(typed.values())) in unescape(shown)


def test_fewer_approvals_are_a_mistake_before_they_are_kept(model: ServedModel, page: str) -> None:
    text = "rollout_policy:\n  preset: careful\n"
    team = signed_in(Role.MODEL_TEAM)
    shown = team.post(page, {"settings": text, "version": "1"}).content.decode()
    assert "asks for less than the present one" in unescape(shown) and "sheet-keep" not in shown
    answer = team.post(page, {"settings": text, "version": "1", "confirmed": "yes"})
    assert answer.status_code == 403 and now(model)["rollout_policy"] == ROLLOUTS


def test_text_says_everything_and_a_lost_race_keeps_it(model: ServedModel, page: str) -> None:
    team = signed_in(Role.MODEL_TEAM)
    kept = {name: ROLLOUTS[name] for name in ("approvals", "freeze_windows")}
    text = f"rollout_policy: {json.dumps({'preset': 'careful', **kept})}\n"
    form = confirmation(team.post(page, {"settings": text, "version": "1"}).content.decode())
    assert json.loads(form["settings"]) == {"rollout_policy": {"preset": "careful", **kept}}
    change_model(actor=SYSTEM, model=model, expected_version=model.version, changes={"objectives": {"timeout_s": 5}})
    lost = team.post(page, form)
    told = unescape(lost.content.decode())
    assert lost.status_code == 412 and '"careful"' in told and now(model)["rollout_policy"] == ROLLOUTS
    again = confirmation(lost.content.decode())
    assert again["version"] == str(model.version) and team.post(page, again).status_code == 302
    assert now(model)["rollout_policy"] == {"preset": "careful", **kept} and model.objectives == {"timeout_s": 5}
    stale = team.get(page, {"version": "1", "objectives.timeout_s": "6"}).content.decode()
    assert "changed since you opened this form" in stale


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "", "slug: other", "objectives: 7", "gate_policy: {gates: [lunch]}", "x" * 300_000, "a\0b",
     'rollout_policy: {steps: 7, approvals: [1], preset: {}}', "objectives: {slow: 5}"],
)  # fmt: skip
def test_a_wrong_text_is_refused_and_stays(model: ServedModel, page: str, text: str) -> None:
    team, before = signed_in(Role.MODEL_TEAM), now(model)
    for confirmed in ({}, {"confirmed": "yes", "version": str(model.version)}):
        answer = team.post(page, {"settings": text, **confirmed})
        told = answer.content.decode()
        assert answer.status_code in {200, 422} and "It cannot be kept" in told and "sheet-keep" not in told
    assert now(model) == before


def test_who_may_not_edit_reads_and_is_refused(model: ServedModel, page: str) -> None:
    viewer = signed_in(Role.VIEWER)
    shown = viewer.get(page, {"version": "1", "objectives.timeout_s": "6"}).content.decode()
    assert "errors_max_frac" in shown and 'name="weights"' not in shown and "What would change" not in shown
    assert 'method="post" action="/models/' not in shown
    form = {"settings": '{"objectives": {}}', "version": str(model.version), "confirmed": "yes"}
    for client in (viewer, signed_in(Role.CI), signed_in(Role.RELEASE_MANAGER)):
        assert client.post(page, form).status_code == 403
    outsider = signed_in(Role.MODEL_TEAM, "ads")
    assert (outsider.get(page).status_code, outsider.post(page, form).status_code) == (404, 404)
    assert now(model)["objectives"] == OBJECTIVES


def test_the_preview_follows_what_is_typed_as_a_fragment_and_without_a_script() -> None:
    rollout, _ = with_stable()
    team, page = signed_in(Role.MODEL_TEAM), reverse("model_policies", args=[rollout.model.slug])
    whole = team.get(page).content.decode()
    assert "What would change" not in whole and 'hx-trigger="input changed delay:400ms"' in whole
    asked = {**words(whole), "weights": "20, 60"}
    part = team.get(page, asked, headers={"HX-Request": "true"})
    text = part.content.decode()
    assert part["Vary"].count("HX-Request") == 1 and text.strip().startswith('<div id="policy-preview">')
    assert "rollout_policy.steps" in text and "<html" not in text
    assert "rollout_policy.steps" in team.get(page, asked).content.decode()


def test_the_history_tells_who_changed_what(model: ServedModel, page: str) -> None:
    ana = Actor.system("ana")
    change_model(actor=ana, model=model, expected_version=model.version, changes={"objectives": {"timeout_s": 5}})
    model.refresh_from_db()
    change_model(actor=ana, model=model, expected_version=model.version, changes={"title": "Not of a policy"})
    shown = signed_in(Role.VIEWER).get(page).content.decode()
    history = shown[shown.index("<h2>History</h2>") :]
    assert "<code>objectives.errors_max_frac</code>: <code>0.01</code>" in history and history.count("<time") == 1
    assert str(Event.objects.get(verb="model.changed", facts__after__has_key="objectives").seq) in history


def test_few_questions_however_long_the_history_is(page: str) -> None:
    rollout, _ = with_stable()
    model = rollout.model
    client, address = signed_in(Role.MODEL_TEAM), reverse("model_policies", args=[model.slug])

    def asked(**given: str) -> int:
        with CaptureQueriesContext(connection) as queries:
            assert client.get(address, given).status_code == 200
        return len(queries)

    few = asked(version="1", weights="10, 20")
    for number in range(60):
        model.refresh_from_db()
        changes = {"objectives": {"timeout_s": 1 + number}}
        change_model(actor=SYSTEM, model=model, expected_version=model.version, changes=changes)
    assert asked(version="1", weights="10, 20") <= few <= 12
    assert "Older" in client.get(address).content.decode()


def test_what_the_gates_demand_is_told_before_anything_is_run(client: Client, model: ServedModel) -> None:
    client.force_login(make_user(team="search", role=Role.VIEWER))
    page = unescape(client.get(reverse("model_policies", args=["ranker"])).content.decode())
    assert "Gate requirements" in page and "within 50 ms; needs" in " ".join(page.split())
    ServedModel.objects.filter(pk=model.pk).update(gate_policy={"load": {"slo": 1}})
    assert "Gate requirements" not in client.get(reverse("model_policies", args=["ranker"])).content.decode()
