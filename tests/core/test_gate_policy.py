"""The gate policy: its defaults are those of the document, and every limit holds at its very edge."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ledger.core.errors import Invalid
from validators.core.gates import GATES
from validators.core.gates.gate import FACTS
from validators.core.policy import ON_DEMAND, parse_policy, stored_policy

GATES_MD = Path(__file__).parents[2] / "docs" / "gates.md"
#: What the document says in words where the policy leaves the field open.
OPEN = ("none", "the only one", "the model's objective", "a fifth of `slo_ms`, at least 20")
SET = "sha256:" + "0" * 64


#: Fields that a policy has only where it states them, so that all others keep their digest.
ONLY_STATED = ("contract.undecided", "load.ttft_slo_ms", "load.itl_slo_ms")


def documented() -> dict[str, str]:
    """{field: its default} from the tables; a row may tell two fields with a default each."""
    found = {}
    for names, defaults in re.findall(r"^\| (`[a-z_.`, ]+`) \| ([^|]+) \|", GATES_MD.read_text(), re.MULTILINE):
        fields = names.replace("`", "").split(", ")
        if "." in fields[0]:
            found |= dict(zip(fields, defaults.split(", ") if len(fields) > 1 else [defaults], strict=True))
    return found


def value_of(path: str, document: dict[str, Any]) -> Any:
    found: Any = document
    for name in path.split("."):
        found = found[name]
    return found


def test_every_field_is_documented_with_its_default() -> None:
    told = documented()
    plain = parse_policy({"gates": ["load", *ON_DEMAND]}).document
    assert all(told.pop(path) == "not asked" for path in ONLY_STATED)
    assert set(told) == {f"{gate}.{field}" for gate in (*GATES, "envelope", "evidence") for field in plain[gate]}
    for path, default in told.items():
        if default in OPEN:
            assert value_of(path, plain) is None, path
        elif not default.startswith(("as long as", "the model's objective", "the rate of the load")):
            literal = default.strip("`")
            expected = json.loads(literal) if re.match(r"[\d\[]|true|false", literal) else literal
            assert value_of(path, plain) == expected, path


def test_what_the_document_says_in_words() -> None:
    plain = parse_policy({}).document
    assert plain["load"]["slo_quantile"] == 0.99 and plain["load"]["max_error_frac"] == 0.001
    assert (plain["load"]["duration_s"], plain["load"]["max_duration_s"]) == (8, 109.4)
    assert (plain["gate_timeout_s"], plain["stop_at_first_failure"]) == (900, True)
    assert parse_policy({}).gate_timeout_s == 900.0
    p99 = parse_policy({"load": {"slo_ms": 250}}).of("load")
    assert (p99["duration_s"], p99["max_duration_s"]) == (None, 109.4)  # four times 547 requests at 20/s


#: (field, the least and the most that are taken, values beyond them)
SECONDS = (1e-6, 86_400, [0, -1, 86_400.1])
FRACTION = (0, 1, [-0.01, 1.01])
LIMITS: list[tuple[str, Any, Any, list[Any]]] = [
    ("contract.batch_sizes", [1], [65_536] * 16, [[], [1] * 17, [0], [65_537]]),
    ("contract.timeout_s", *SECONDS),
    ("cold_start.max_s", *SECONDS),
    ("cold_start.inferences", 5, 1000, [4, 1001]),
    ("cold_start.max_first_excess_ms", 1e-6, 86_400_000, [0, 86_400_000.1]),
    ("golden.output", "x", "x" * 256, ["x" * 257]),
    ("golden.labels", ["x"], ["x" * 200] * 10_000, [[], ["x"] * 10_001, ["x" * 201]]),
    ("golden.set", SET, SET, [SET + "0", SET[:-1], SET.upper()]),
    ("golden.min_accuracy", *FRACTION),
    ("golden.max_slice_drop", *FRACTION),
    ("golden.min_slice_items", 1, 1_000_000, [0, 1_000_001]),
    ("golden.batch_size", 1, 65_536, [0, 65_537]),
    ("golden.alone_items", 0, 100_000, [-1, 100_001]),
    ("golden.confidence", 0.5, 0.9999, [0.4999, 0.99991]),
    ("load.rate_per_s", 1e-3, 10_000, [0, 10_000.1]),
    ("load.duration_s", 1e-3, 3600, [0, 3600.1]),
    ("load.max_duration_s", 1e-3, 3600, [0, 3600.1]),
    ("load.least_dispersion", 1, 100, [0.99, 100.1]),
    ("load.burst_factor", 1, 100, [0.99, 100.1]),
    ("load.burst_s", 0, 600, [-1, 600.1]),
    ("load.recovery_s", 1e-3, 3600, [0, 3600.1]),
    ("load.slo_quantile", 0.0001, 0.9999, [0.00009, 0.99991]),
    ("load.seed", 0, 2**53 - 1, [-1, 2**53]),
    ("evidence.max_age_days", 1e-6, 3650, [0, -1, 3650.1]),
    ("evidence.same", [], list(FACTS), [["weather"], ["gpu"] * 9]),
]


def with_field(path: str, value: Any) -> dict[str, Any]:
    gate, _, field = path.partition(".")
    return {gate: {field: value}}


@pytest.mark.parametrize(("path", "least", "most", "beyond"), LIMITS, ids=[one[0] for one in LIMITS])
def test_every_limit_holds_at_its_edge(path: str, least: Any, most: Any, beyond: list[Any]) -> None:
    for value in (least, most):
        assert value_of(path, parse_policy(with_field(path, value)).document) == value
    for value in beyond:
        with pytest.raises(Invalid) as caught:
            parse_policy(with_field(path, value))
        assert all(error["field"].startswith(path) for error in caught.value.facts["errors"])


@pytest.mark.parametrize("asked", ["ttft_slo_ms", "itl_slo_ms"])
def test_tokens_are_asked_for_within_a_stated_whole_answer(asked: str) -> None:
    both = {"slo_ms": 5000, asked: 5000}
    assert parse_policy({"load": both}).of("load")[asked] == 5000
    unasked = parse_policy({"load": {"slo_ms": 5000, asked: None}})
    assert unasked.digest == parse_policy({"load": {"slo_ms": 5000}}).digest
    for load in ({asked: 100}, {**both, asked: 5000.1}, {**both, asked: 0}):
        with pytest.raises(Invalid, match=rf"load\.{asked}"):
            parse_policy({"load": load}, {"slow": {"threshold_ms": 9000}})


def test_a_gate_may_last_from_a_second_to_a_day() -> None:
    assert [parse_policy({"gate_timeout_s": value}).gate_timeout_s for value in (1, 86_400)] == [1, 86_400]
    for value in (0.9, 86_400.1):
        with pytest.raises(Invalid, match="gate_timeout_s"):
            parse_policy({"gate_timeout_s": value})


def test_gates_are_named_once_each_in_any_order() -> None:
    backwards = sorted(GATES, key=lambda name: (GATES[name].watches, -list(GATES).index(name)))
    assert parse_policy({"gates": backwards, "golden": {"set": SET}}).gates == tuple(backwards)
    with pytest.raises(Invalid, match=f"the list has {len(GATES) + 1} items"):
        parse_policy({"gates": [*GATES, "load"], "golden": {"set": SET}})
    with pytest.raises(Invalid) as caught:
        parse_policy({"gates": ["load", "contract", "load", "contract"]})
    assert [error["message"] for error in caught.value.facts["errors"]] == [
        "the gate contract occurs twice.", "the gate load occurs twice.",
    ]  # fmt: skip


@pytest.mark.parametrize("gates", [["gpu"], ["gpu", "load"], ["contract", "resources", "gpu", "capacity"]])
def test_gpus_are_looked_at_after_something_was_measured_on_them(gates: list[str]) -> None:
    with pytest.raises(Invalid) as caught:
        parse_policy({"gates": gates})
    assert [(error["field"], error["fix"]) for error in caught.value.facts["errors"]] == [
        ("gates", "Name load or capacity before it.")
    ]
    assert parse_policy({"gates": ["capacity", "gpu"]}).gates == ("capacity", "gpu")


def test_the_golden_set_is_told_where_there_is_one() -> None:
    assert parse_policy({}).golden_set is None
    assert parse_policy({"golden": {"set": SET}}).golden_set == SET


def test_what_is_no_object_is_refused_with_a_sentence() -> None:
    with pytest.raises(Invalid, match=r"The gate policy cannot be read: policy: ") as caught:
        parse_policy([])  # type: ignore[arg-type]
    assert len(caught.value.facts["errors"]) == 1


@pytest.mark.parametrize(
    ("rate", "load", "deadline_s"),
    [
        (20, {"slo_quantile": 0.95}, 60.0),  # 108 requests can prove a p95; a minute at least
        (7, {"slo_quantile": 0.95}, 61.714),  # whole milliseconds
        (0.5, {"slo_quantile": 0.95}, 600.0),
        (20, {"slo_quantile": 0.95, "max_duration_s": 13.4}, 13.4),
        (20, {"slo_quantile": 0.95, "least_dispersion": 15}, 214.2),
    ],
)
def test_a_run_ends_four_times_as_late_as_it_could_pass(rate: float, load: dict[str, Any], deadline_s: float) -> None:
    section = parse_policy({"load": {"rate_per_s": rate, "slo_ms": 100, **load}}).of("load")
    assert section["max_duration_s"] == pytest.approx(deadline_s, abs=1e-3)
    assert section["duration_s"] is None


@pytest.mark.parametrize(
    ("max_frac", "quantile"), [(0.05, 0.95), (0.0, 0.9999), (0.0001, 0.9999), (1.0, 0.0001), (1 / 3, 0.666666667)]
)
def test_the_models_share_of_slow_requests_is_a_quantile_that_can_be_tested(max_frac: float, quantile: float) -> None:
    objectives = {"slow": {"threshold_ms": 250, "max_frac": max_frac}}
    assert parse_policy({}, objectives).of("load")["slo_quantile"] == quantile


def test_objectives_that_state_nothing_leave_the_defaults() -> None:
    assert parse_policy({}, {}) == parse_policy({}, {"slow": None}) == parse_policy({})
    assert parse_policy({}, {"slow": {"threshold_ms": 90}}).of("load")["slo_quantile"] == 0.99


def test_an_environment_has_a_say_of_its_own_and_some_gate_always_holds_a_release_up() -> None:
    own = {"production": {"advisory": ["load"], "max_age_days": 7}}
    assert parse_policy({"environments": own}).document["environments"] == own
    assert parse_policy({}).document["environments"] == {}
    for advisory, gates in ((["contract", "cold_start", "load"], None), (["load"], ["load"])):
        with pytest.raises(Invalid) as caught:
            parse_policy(
                {"environments": {"production": {"advisory": advisory}}, **({"gates": gates} if gates else {})}
            )
        assert caught.value.facts["errors"][0]["field"] == "environments.production.advisory"
    for wrong in ({"production": {"advisory": ["speed"]}}, {"production": {"advisory": 7}}, {"production": {"age": 1}}):
        with pytest.raises(Invalid):
            parse_policy({"environments": wrong})


def test_a_policy_keeps_its_digest_though_a_field_of_it_is_gone() -> None:
    """Reports name it: another digest of the same policy would void all of them."""
    assert parse_policy({}).digest == "sha256:b4d239f95e8dc38ee70a632ee51da2876c523240a2c1440822effb1061d393e5"


def test_a_stored_policy_is_read_without_fields_that_are_gone() -> None:
    now = parse_policy({"gates": ["contract", "load", "capacity"]})
    before = json.loads(json.dumps(now.document))
    before["load"]["trace"], before["capacity"]["sweep"] = [0.1, 0.2], {"max_batch_size": [1, 2]}
    before["kept_requests"] = {"most": 100}
    untouched = json.dumps(before)
    assert stored_policy(before).digest == now.digest and json.dumps(before) == untouched
    with pytest.raises(Invalid, match="not replayed any more"):
        parse_policy({"load": {"trace": [0.1]}})
