"""Gates give a request the same time as gateways, and refuse a policy that contradicts that."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.core.errors import Invalid
from serving.traffic.core.request_limits import Limits, limits_stated
from validators.core.policy import checked_policy, parse_policy
from validators.core.request_time import ASKING


def fields(document: dict[str, Any], objectives: dict[str, Any]) -> list[str]:
    try:
        checked_policy(document, objectives)
    except Invalid as error:
        return [one["field"] for one in error.facts["errors"]]
    return []


@pytest.mark.parametrize(
    ("objectives", "request_s"),
    [({}, 60), ({"timeout_s": 20}, 20), ({"timeout_s": 90}, 90), ({"attempt_timeout_s": 20}, 60),
     ({"attempt_timeout_s": 40}, 80), ({"attempt_timeout_s": 400}, 600)],
)  # fmt: skip
def test_gates_wait_as_long_as_gateways_where_the_installation_sets_the_limits(
    objectives: dict[str, Any], request_s: float
) -> None:
    default = Limits(timeout_s=60, attempt_timeout_s=2)
    assert limits_stated(objectives, default).timeout_s == request_s
    found = parse_policy({}, objectives, default)
    assert all(found.of(name)["timeout_s"] >= request_s for name in ASKING)
    assert found.of("load")["timeout_s"] == request_s


@pytest.mark.parametrize(
    "objectives",
    [{"timeout_s": 5, "attempt_timeout_s": 20}, {"attempt_timeout_s": 2000}, {"timeout_s": 0}, {"timeout_s": "x"}],
)
def test_objectives_that_no_gateway_can_keep_leave_a_policy_readable(objectives: dict[str, Any]) -> None:
    """The objectives are refused by their own rule, in the same answer."""
    assert parse_policy({}, objectives) == parse_policy({})
    assert checked_policy({"gates": ["contract"]}, objectives)


@pytest.mark.parametrize("timeout_s", [1, 10, 11, 60, 120, 600])
def test_times_that_a_policy_leaves_open_leave_room_for_the_models_requests(timeout_s: float) -> None:
    usual, found = parse_policy({}), parse_policy({}, {"timeout_s": timeout_s})
    for name in ASKING:
        assert found.of(name)["timeout_s"] >= max(timeout_s, usual.of(name)["timeout_s"])
    assert found.of("cold_start")["max_s"] >= max(timeout_s, 60)
    assert found.gate_timeout_s >= max(900, 20 * timeout_s)
    if timeout_s <= 10:
        assert found == usual
    assert parse_policy(found.document) == found  # a run reads its own policy again


def test_a_time_that_a_policy_states_is_kept() -> None:
    stated = {"gate_timeout_s": 100, "load": {"timeout_s": 70}, "cold_start": {"max_s": 5, "timeout_s": 80}}
    found = parse_policy(stated, {"timeout_s": 60})
    assert found.gate_timeout_s == 100
    assert (found.of("load")["timeout_s"], found.of("cold_start")["timeout_s"], found.of("cold_start")["max_s"]) == (
        70,
        80,
        5,
    )


@pytest.mark.parametrize("gate", ASKING)
def test_a_gate_that_gives_up_before_a_gateway_does_is_refused(gate: str) -> None:
    policy = {gate: {"timeout_s": 30}}
    assert fields(policy, {"timeout_s": 120}) == [f"{gate}.timeout_s"]
    assert fields(policy, {"attempt_timeout_s": 31}) == [f"{gate}.timeout_s"]
    assert fields(policy, {"timeout_s": 120, "attempt_timeout_s": 30}) == []  # the limit is the attempt
    assert fields(policy, {}) == fields({}, {"timeout_s": 120}) == []


def test_a_gate_that_ends_before_its_request_is_refused() -> None:
    assert fields({"gate_timeout_s": 20, "load": {"timeout_s": 30}}, {}) == ["load.timeout_s"]
    assert fields({"gate_timeout_s": 60}, {"timeout_s": 120}) == ["gate_timeout_s"]
    assert fields({"gate_timeout_s": 120}, {"timeout_s": 120}) == []


def test_a_stored_policy_is_read_although_it_would_not_be_saved_today() -> None:
    assert parse_policy({"load": {"timeout_s": 10}}, {"timeout_s": 120}).of("load")["timeout_s"] == 10
