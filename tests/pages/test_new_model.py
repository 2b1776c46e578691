"""A new model's page: by fields and from a text, what is refused comes back with its places, and who may."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from accounts.core.access import Role
from ledger.core.errors import Invalid
from registry.actions import change_model
from registry.models import ServedModel
from tests.support.worlds.factories import make_admin, make_user

pytestmark = pytest.mark.django_db
TEXT = """\
slug: sentiment
team: vision
contract:
  inputs: [{name: text, data_type: BYTES, dims: [1]}]
objectives: {errors_max_frac: 0.01}
"""


def signed_in(role: Role = Role.MODEL_TEAM) -> Client:
    client = Client()
    client.force_login(make_user(team="vision", role=role))
    return client


FIELDS = {
    "from": "fields", "slug": "sentiment", "team": "vision", "title": "Mood", "rows_inputs": "2", "rows_outputs": "1",
    "inputs_name_0": "text", "inputs_data_type_0": "BYTES", "inputs_dims_0": "1", "inputs_name_1": "", "outputs_name_0": "p",
    "outputs_data_type_0": "FP32", "outputs_dims_0": "[-1, 2]", "errors_max_frac": "0.01", "slow_threshold_ms": "250",
    "slow_max_frac": "0.05", "gate_policy": "gates: [contract]",
}  # fmt: skip


def create(client: Client, form: dict[str, str]) -> Any:
    return client.post("/models/new/create/", form, follow=True)


def test_a_model_is_created_by_fields() -> None:
    answer = create(signed_in(), FIELDS)
    assert answer.redirect_chain == [("/models/sentiment/", 302)] and "sentiment is created" in answer.text
    made = ServedModel.objects.get()
    assert made.contract["inputs"] == [{"name": "text", "data_type": "BYTES", "dims": [1]}]
    assert made.contract["outputs"][0]["dims"] == [-1, 2]
    assert made.objectives == {"errors_max_frac": 0.01, "slow": {"threshold_ms": 250, "max_frac": 0.05}}
    assert made.gate_policy["gates"] == ["contract"]


def test_a_model_is_created_from_a_text() -> None:
    create(signed_in(), {"from": "text", "text": TEXT.replace("team: vision\n", ""), "text_team": "vision"})
    assert ServedModel.objects.get().team.slug == "vision"


def test_one_more_row_keeps_what_was_typed() -> None:
    answer = create(signed_in(), FIELDS | {"more": "inputs"})
    assert 'id="inputs_name_2"' in answer.text and 'id="outputs_name_1"' not in answer.text
    assert 'value="text"' in answer.text and not ServedModel.objects.exists()


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"from": "text", "text": "slug: s\nslug: t\n"}, ["model.yaml:2:1", "occurs twice"]),
        (
            {"from": "text", "text": TEXT.replace("0.01", "7").replace("BYTES", "STRING")},
            ["model.yaml:5:31", "model.yaml:4:36"],
        ),
        ({"from": "text", "text": f"{TEXT}colour: red\n"}, ["model.yaml:6:9", "no such field"]),
        (
            {"from": "text", "text": TEXT.replace("slug: sentiment", "slug: [a, b]")},
            ["model.yaml:1:1", "it is not text"],
        ),
        ({"from": "text", "text": "- a"}, ["it holds no fields"]),
        (FIELDS | {"slug": "new"}, ["address of a page"]),
        (FIELDS | {"inputs_dims_0": "two"}, ["contract.inputs[0].dims[0]", 'value="two"']),
        (FIELDS | {"inputs_dims_0": ""}, ["contract.inputs[0].dims", "None is not a list"]),
        (FIELDS | {"errors_max_frac": "1%"}, ["is not a number", 'value="1%"']),
        (FIELDS | {"gate_policy": "a: [\n"}, ["gate_policy:2:1"]),
        (FIELDS | {"slug": "<script>alert(1)</script>\u202e"}, ["&lt;script&gt;"]),
    ],
)
def test_what_is_refused_is_told_with_its_place_and_kept(form: dict[str, str], says: list[str]) -> None:
    answer = create(signed_in(), form)
    assert answer.status_code == 422 and not ServedModel.objects.exists()
    for one in says:
        assert one in answer.text, one
    assert "<script>alert" not in answer.text


@pytest.mark.parametrize(
    ("form", "fields"),
    [
        (
            FIELDS
            | {"slug": "Bad Name", "errors_max_frac": "1%", "inputs_dims_0": "two", "gate_policy": "gates: [all]"},
            ["slug", "objectives.errors_max_frac", "contract.inputs[0].dims[0]", "gate_policy.gates[0]"],
        ),
        (
            {
                "from": "text",
                "text": f"{TEXT}colour: red\ntitle: [a]\n".replace("BYTES", "STRING").replace("0.01", "7"),
            },
            ["colour", "title", "contract.inputs[0].data_type", "objectives.errors_max_frac"],
        ),
        ({"from": "text", "text": "slug: [a]\ncolour: red\n"}, ["slug", "colour", "team"]),
        (
            {"from": "text", "text": f"{TEXT}colour: red\n".replace("0.01", ".nan")},
            ["colour", "objectives.errors_max_frac"],
        ),
        (FIELDS | {"gate_policy": "a: [\n", "slug": "new"}, ["", "slug"]),  # not YAML
    ],
)
def test_every_mistake_is_told_in_one_round(form: dict[str, str], fields: list[str]) -> None:
    answer = create(signed_in(), form)
    told = [one.problem.field for one in answer.context["problems"]]
    assert sorted(told) == sorted(fields)
    assert f"The model has {len(told)} mistakes" in answer.text and not ServedModel.objects.exists()


def test_who_may_not_is_told_so() -> None:
    client = signed_in(Role.RELEASE_MANAGER)
    assert "You may not create models yet" in client.get("/models/new/").text
    assert create(client, FIELDS).status_code == 403
    assert Client().get("/models/new/").status_code == 302


def test_one_number_for_each_item_is_typed_as_an_empty_list_and_shown_in_words() -> None:
    client = signed_in()
    assert create(client, FIELDS | {"inputs_dims_0": "[]"}).status_code == 200
    model = ServedModel.objects.get()
    assert model.contract["inputs"][0]["dims"] == []
    assert "one number" in client.get(f"/models/{model.slug}/policies/").text


def test_a_description_may_have_lines_as_a_browser_sends_them() -> None:
    create(signed_in(), FIELDS | {"description": "Mood of a text.\r\nIn two lines."})
    made = ServedModel.objects.get()
    assert made.description == "Mood of a text.\nIn two lines."


def test_a_threshold_that_gateways_do_not_count_at_is_refused_at_once() -> None:
    """It was kept, and the first rollout failed by it."""
    client = signed_in()
    text = TEXT.replace("{errors_max_frac: 0.01}", "{slow: {threshold_ms: 2500, max_frac: 0.1}}")
    for form in (FIELDS | {"slow_threshold_ms": "333"}, {"from": "text", "text": text}):
        answer = create(client, form)
        assert "is not an edge that gateways count at" in answer.text and not ServedModel.objects.exists()
        assert "objectives.slow.threshold_ms" in answer.text and "250, 300, 400" in answer.text
    assert '<option selected="selected">' not in create(client, FIELDS).text
    model = ServedModel.objects.get()
    with pytest.raises(Invalid, match="is not an edge"):
        change_model(
            actor=make_admin(), model=model, expected_version=model.version,
            changes={"objectives": {"slow": {"threshold_ms": 333, "max_frac": 0.1}}},
        )  # fmt: skip
    page = client.get("/models/new/").text
    assert all(f"<option>{edge}</option>" in page for edge in ("7.5", "250", "600000"))


def test_a_first_administrator_is_led_to_a_team_and_others_to_an_administrator() -> None:
    client = Client()
    client.force_login(make_user("root", is_admin=True))
    page = client.get("/models/new/").text
    assert "Create a team" in page and "ask an administrator" not in page.lower()
    assert 'href="/settings/teams/#new"' in page and "/settings/teams/#new" in client.get("/").text
    teams = client.get("/settings/teams/").text
    assert "an administrator can give you one" not in teams and 'id="new"' in teams
    other = signed_in(Role.VIEWER).get("/models/new/").text
    assert "Ask an administrator" in other and "Create a team" not in other
