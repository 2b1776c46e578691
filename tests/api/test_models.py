"""Models over REST: created, read, changed and listed; what is wrong with one is told by field."""

from __future__ import annotations

from typing import Any

import pytest

from registry.models import ServedModel
from sluicegate.api import FIXES
from tests.api.registry_calls import counts, refused, send_json
from tests.support.worlds.registry_samples import CONTRACT

pytestmark = pytest.mark.django_db


def test_models_are_created_read_changed_and_listed(dev: Any) -> None:
    body = {"slug": "second", "team": "vision", "contract": CONTRACT, "objectives": {"errors_max_frac": 0.01}}
    made = send_json(dev, "post", "/models", body)
    assert made.status_code == 201 and made.json()["version"] == 1 and made.json()["last_release"] is None
    assert send_json(dev, "post", "/models", body).status_code == 200
    refused(send_json(dev, "post", "/models", body | {"title": "x"}), 409, "model_exists")
    assert [model["slug"] for model in dev.get("/api/v1/models").json()["results"]] == ["second", "sentiment"]

    assert send_json(dev, "patch", "/models/second", {"title": "x"}).status_code == 428
    gates = {"gates": ["contract"]}
    changed = send_json(dev, "patch", "/models/second", {"gate_policy": gates}, **{"If-Match": '"1"'})
    assert changed.status_code == 200 and changed["ETag"] == '"2"' and changed.json()["gate_policy"] == gates
    refused(send_json(dev, "patch", "/models/second", {"title": "x"}, **{"If-Match": "1"}), 412, "stale")
    errors = refused(
        send_json(dev, "patch", "/models/second", {"slug": "x", "gate_policy": 3}, **{"If-Match": "2"}),
        422,
        "invalid_model",
    )
    assert set(errors) == {"slug", "gate_policy"}


def test_a_models_policies_are_read_when_it_is_saved(dev: Any) -> None:
    body = {"slug": "second", "team": "vision", "contract": CONTRACT, "objectives": {"errors_max_frac": 0.01}}
    wrong = {"rollout_policy": {"preset": "fats", "approvals": {"step 9": 1}}, "gate_policy": {"gates": ["golden"]}}
    errors = refused(send_json(dev, "post", "/models", {**body, **wrong}), 422, "invalid_model")
    assert set(errors) == {"rollout_policy.preset", "gate_policy.golden.set"}
    assert "Was fast meant?" in errors["rollout_policy.preset"]["fix"]
    slow = {"guards": [{"indicator": "slow"}]}
    errors = refused(send_json(dev, "post", "/models", {**body, "rollout_policy": slow}), 422, "invalid_model")
    assert set(errors) == {"rollout_policy.guards[0].threshold_ms"}  # no objective names one
    watched = {"errors_max_frac": 0.01, "slow": {"threshold_ms": 250, "max_frac": 0.01}}
    saved = send_json(dev, "post", "/models", {**body, "objectives": watched, "rollout_policy": slow})
    assert saved.status_code == 201
    match = {"If-Match": "1"}
    errors = refused(
        send_json(dev, "patch", "/models/second", {"objectives": {"errors_max_frac": 0.01}}, **match),
        422,
        "invalid_model",
    )
    assert set(errors) == {"rollout_policy.guards[0].threshold_ms"}  # the policy rests on what would be taken away
    ServedModel.objects.filter(slug="second").update(rollout_policy={"preset": "of-long-ago"})
    assert send_json(dev, "patch", "/models/second", {"title": "Still to be renamed"}, **match).status_code == 200


@pytest.mark.parametrize("policy", [{}, {"gates": ["contract"]}])
def test_an_attempt_that_is_longer_than_the_whole_request_is_named_beside_a_gate_policy(
    dev: Any, policy: dict[str, Any]
) -> None:
    """It was a fault of the server if a gate policy came with it."""
    objectives = {"timeout_s": 5, "attempt_timeout_s": 20}
    body = {"slug": "second", "team": "vision", "contract": CONTRACT, "gate_policy": policy, "objectives": objectives}
    assert set(refused(send_json(dev, "post", "/models", body), 422, "invalid_model")) == {
        "objectives.attempt_timeout_s"
    }


def test_a_bad_model_names_its_fields(dev: Any) -> None:
    before = counts()
    assert set(refused(send_json(dev, "post", "/models", {"title": 1}), 422, "invalid_model")) == {"slug", "team"}
    errors = refused(send_json(dev, "post", "/models", {"slug": 3, "x": 1}), 422, "invalid_model")
    assert {name: error["fix"] for name, error in errors.items()} == {
        "slug": FIXES["not_text"], "team": FIXES["required"], "x": FIXES["unknown_field"],
    }  # fmt: skip
    bad = {"slug": "a b", "team": "vision", "contract": {"inputs": 3}, "objectives": {"slow_ms": 5}}
    errors = refused(send_json(dev, "post", "/models", bad), 422, "invalid_model")
    assert (
        set(errors) == {"slug", "contract.inputs", "objectives.slow_ms"}
        and "threshold_ms" in errors["objectives.slow_ms"]["fix"]
    )
    assert counts() == before
