"""Every rule is in the table, in the docs, and in the stored state of a rollout."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from registry.core.schema import Number
from rollouts.core.commands import ForgetEvidence
from rollouts.core.decision import Action, Code
from rollouts.core.engine_state import EngineState
from rollouts.core.odd_replica import ReplicaTallies, ReplicaTally
from rollouts.core.policy_schema import parse_policy
from rollouts.core.rules.setting import Setting
from rollouts.core.rules.state import RuleState
from rollouts.core.rules.table import BEGIN, CONVICTING, INPUTS, SETTINGS, STATES, findings, most_severe
from rollouts.core.rules.warm_up import COLD_ATTEMPTS, COLD_S, WarmUp
from rollouts.core.snapshot import Observed
from rollouts.core.tick_history import rows_of
from tests.core.test_decide import judged, snapshot
from tests.support.worlds.snapshots import keeping

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "rollouts" / "core" / "rules"


def other(state: type[RuleState]) -> RuleState:
    """The rule's state with every field at another value than it begins with."""
    value = {
        "float": 7.25,
        "float | None": 7.25,
        "int": 7,
        "int | None": 7,
        "bool": True,
        "str": "a:1",
        "str | None": "7",
    }
    value |= {"tuple[str, ...]": ("slow",), "Mapping[str, tuple[float, float]]": {"errors": (1.5, 2.0)}}
    return state(**{one.name: value[str(one.type)] for one in fields(state)})


@pytest.mark.parametrize("state", STATES, ids=lambda one: one.name)
def test_a_state_is_stored_whole_and_read_back(state: type[RuleState]) -> None:
    kept = keeping(other(state))
    assert EngineState.from_json(json.loads(json.dumps(kept.to_json()))) == kept
    assert kept.to_json()["rules"].keys() == {state.name}
    assert state.from_earlier({}) == BEGIN[state.name] == state()


def test_what_a_newer_version_stored_besides_is_left_out() -> None:
    stored = {"rules": {"warm_up": {"forgotten": 2, "of_a_newer_version": 1}, "of_a_newer_version": []}}
    assert EngineState.from_json(stored) == keeping(WarmUp(forgotten=2))


def test_a_policy_holds_the_settings_of_rules_and_one_that_states_none_keeps_its_digest() -> None:
    given, other = parse_policy({"cold_s": 7}), Setting("not_stated_s", Number(0, 9), default=3)
    assert (COLD_S.of(given), COLD_ATTEMPTS.of(given)) == (7, 20) and other.of(given) == 3
    assert "not_stated_s" not in given.document
    stated = parse_policy({one.name: 7 for one in SETTINGS})
    assert [one.of(stated) for one in SETTINGS] == [7] * len(SETTINGS)


def test_every_state_of_the_folder_is_kept_and_names_are_unique() -> None:
    declared = set(re.findall(r"^class (\w+)\(RuleState\)", "\n".join(map(Path.read_text, RULES.glob("*.py"))), re.M))
    assert declared == {one.__name__ for one in STATES} and len(BEGIN) == len(STATES)


@pytest.mark.parametrize("kind", INPUTS, ids=lambda one: one.name)
def test_what_a_rule_alone_is_told_goes_through_a_recorded_tick(kind: type[ReplicaTallies]) -> None:
    told = kind({"a:1": ReplicaTally(1, 9, 1)}, is_replacing=True)
    assert kind.from_json(json.loads(json.dumps(told.to_json()))) == told
    assert kind().to_json() == {} and kind.from_json({}) == kind()


def test_ticks_that_an_older_version_recorded_tell_the_rules_what_they_told_then() -> None:
    first = {"names": [], "replicas": {"a:1": [3, 9, 0]}, "is_stable_replacing": True}
    ticks = [
        first,
        [1, 0, 0],
        {"replicas": {}, "is_replacing": True},
        [1, 1000, 0],
        {"is_replacing": False},
        [1, 2000, 0],
    ]
    inputs = [row.mark.inputs for row in rows_of(1, 0.0, ticks)]
    stable = {"stable_replica": {"is_replacing": True}}
    assert inputs[0] == {"replica_differs": {"tallies": {"a:1": [3, 9, 0]}}, **stable}
    assert inputs[1] == {"replica_differs": {"is_replacing": True}, **stable} and inputs[2] == stable


def test_the_docs_weigh_every_rule_that_convicts() -> None:
    table = (ROOT / "docs" / "rollouts.md").read_text().partition("### Weight of each rule")[2].partition("\n## ")[0]
    rows = [tuple(cell.strip() for cell in row.split("|")[1:3]) for row in table.splitlines() if row.startswith("|")]
    assert [(one.words, f"`{one.code}`") for one in CONVICTING if (one.words, f"`{one.code}`") not in rows] == []


def test_a_fact_stands_alone_and_the_most_severe_of_all_else_is_taken() -> None:
    worse = judged(0, bad_candidate=50, log_e_worse=99.0)
    assert [one.code for one in findings(snapshot(judged=(worse,), digest_mismatch="Other files."))] == [
        Code.DIGEST_MISMATCH
    ]
    both = findings(snapshot(judged=(worse,), all_failing=99, all_failing_s=9.0))
    assert [one.code for one in both] == [Code.WORSE_THAN_STABLE, Code.ALL_FAILING]
    excused = findings(snapshot(judged=(worse,), all_failing=99, all_failing_s=9.0, is_stable_better=False))
    assert [one.action for one in excused] == [Action.ROLL_BACK, Action.HOLD]
    severe = most_severe(reversed(excused))
    assert severe is not None and severe.code is Code.WORSE_THAN_STABLE and most_severe([]) is None


def test_a_command_reaches_only_the_guards_that_it_names() -> None:
    state = keeping(other(STATES[-4]))
    assert state.obeying([ForgetEvidence(("slow",))], Observed(1.0)) == state
