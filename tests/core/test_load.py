"""Open-loop schedules and summaries, the load verdict, the cold start verdict, whose fault a failure is, and the gate policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ledger.core.errors import Invalid
from serving.servers.core.made_up import made_up_item
from validators.core.cold_start import judge_cold_start
from validators.core.contract import Tensor
from validators.core.fault import verdict_of_failure
from validators.core.inputs import longest_item
from validators.core.load import (
    Attempt,
    arrivals,
    generator_limit,
    judge_load,
    summarise,
)
from validators.core.policy import parse_policy
from validators.core.proof import Sizing, sizing
from validators.core.verdict import Judgement, Verdict


def test_a_schedule_is_rising_within_its_time_and_repeatable() -> None:
    schedule = arrivals(50, 10, seed=4)
    assert len(schedule) == 500
    assert (np.diff(schedule) >= 0).all()
    assert schedule[0] >= 0
    assert schedule[-1] < 10
    assert (schedule == arrivals(50, 10, seed=4)).all()
    assert (schedule != arrivals(50, 10, seed=5)).any()


def test_its_gaps_are_those_of_random_arrivals() -> None:
    gaps = np.diff(arrivals(100, 200, seed=1))
    assert gaps.mean() == pytest.approx(0.01, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("cv", [0.2, 1.0, 3.0])
def test_gaps_scatter_as_asked_and_every_run_offers_the_same(cv: float) -> None:
    found = arrivals(100, 300, seed=2, cv=cv)
    gaps = np.diff(found)
    assert len(found) == 30_000 and found[0] >= 0 and found[-1] < 300
    assert (gaps >= 0).all()
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)


def test_bursts_come_close_together() -> None:
    busiest = {cv: int(np.bincount(arrivals(20, 100, seed=3, cv=cv).astype(int)).max()) for cv in (0.2, 1.0, 5.0)}
    assert busiest[0.2] < busiest[1] < busiest[5]


def test_latency_counts_from_when_a_request_was_due() -> None:
    stalled = [Attempt(due_s=0.0, sent_s=0.0, done_s=1.0), Attempt(due_s=0.1, sent_s=1.0, done_s=1.005)]
    summary = summarise(stalled, duration_s=2, slo_ms=250)
    assert summary.latency_ms["p50"] == pytest.approx((1000 + 905) / 2)
    assert summary.over == 2
    assert summary.lag_max_ms == pytest.approx(900)


def _run(n: int = 160, duration_s: float = 8.0, slow: int = 0, errors: int = 0, lag_s: float = 0.0) -> list[Attempt]:
    out = []
    for i, due in enumerate(arrivals(n / duration_s, duration_s, seed=1)):
        took = 1.0 if i < slow else 0.01
        out.append(
            Attempt(
                float(due),
                float(due) + lag_s,
                float(due) + lag_s + took,
                "boom [server_error]" if n - i <= errors else "",
            )
        )
    return out


def _judge(attempts: list[Attempt], duration_s: float = 8.0, **policy: Any) -> Judgement:
    section = parse_policy({"load": {"slo_ms": 250, "duration_s": duration_s, **policy}}).of("load")
    return judge_load(summarise(attempts, duration_s=duration_s, slo_ms=section["slo_ms"] or float("inf")), section)


def test_a_short_clean_run_is_undecided_and_says_how_long_a_pass_takes() -> None:
    judged = _judge(_run())
    assert judged.verdict is Verdict.UNDECIDED
    assert "a pass takes at least" in judged.reason
    assert judged.evidence["offered_per_s"] == pytest.approx(20)


def test_a_long_clean_run_passes_and_a_slow_one_fails() -> None:
    assert _judge(_run(2000, 20), 20).verdict is Verdict.PASSED
    slow = _judge(_run(slow=160))
    assert slow.verdict is Verdict.FAILED
    assert "160 of 160 requests were over 250 ms" in slow.reason


def test_errors_fail_before_latency_is_looked_at() -> None:
    judged = _judge(_run(errors=2))
    assert judged.verdict is Verdict.FAILED
    assert "2 of 160 requests failed" in judged.reason
    assert "boom" in judged.reason
    assert _judge(_run(2000, 20, errors=2), 20, max_error_frac=0.01).verdict is Verdict.PASSED


def test_a_late_generator_is_an_error_of_the_check() -> None:
    judged = _judge(_run(lag_s=0.2))
    assert judged.verdict is Verdict.ERRORED
    assert judged.reason.startswith("generator_limited")
    assert _judge(_run(2000, 20, lag_s=0.2), 20, max_lag_ms=300).verdict is Verdict.PASSED


def test_what_was_proven_although_it_was_sent_late_stays_proven() -> None:
    late = _judge(_run(2000, 20, lag_s=0.1), 20)
    assert late.verdict is Verdict.PASSED
    assert late.evidence["lag_p99_ms"] == pytest.approx(100)
    seldom = [Attempt(at / 100, at / 80, at / 80 + 0.01 - at * 0.0025) for at in range(2000)]
    assert _judge(seldom, 20).verdict is Verdict.ERRORED  # a server that is asked less is faster


def test_a_generator_that_sent_too_little_is_limited() -> None:
    attempts = [Attempt(float(i) / 20, 0.001 + i / 10, 0.01 + i / 10) for i in range(160)]
    assert "instead of 20.0" in generator_limit(summarise(attempts, duration_s=8, slo_ms=250), max_lag_ms=1e9)


def test_without_an_objective_only_errors_are_judged() -> None:
    judged = _judge(_run(slow=160), slo_ms=None)
    assert judged.verdict is Verdict.PASSED
    assert "no latency objective" in judged.reason


OBJECTIVES = {"errors_max_frac": 0.002, "slow": {"threshold_ms": 250, "max_frac": 0.05}}


def test_what_the_load_is_not_told_is_the_models_objective() -> None:
    load = parse_policy({}, OBJECTIVES).of("load")
    assert (load["slo_ms"], load["slo_quantile"], load["max_error_frac"]) == (250, 0.95, 0.002)
    own = {"slo_ms": 100, "slo_quantile": 0.9, "max_error_frac": 0}
    load = parse_policy({"load": own}, OBJECTIVES).of("load")
    assert {name: load[name] for name in own} == own
    load = parse_policy({}).of("load")
    assert (load["slo_ms"], load["slo_quantile"], load["max_error_frac"]) == (None, 0.99, 0.001)


def test_another_objective_is_another_demand_unless_the_policy_states_it() -> None:
    assert parse_policy({}, OBJECTIVES).digest != parse_policy({}).digest
    assert parse_policy(parse_policy({}, OBJECTIVES).document) == parse_policy({}, OBJECTIVES)
    stated = {"load": {"slo_ms": 100, "slo_quantile": 0.9, "max_error_frac": 0.5}}
    assert parse_policy(stated, OBJECTIVES).digest == parse_policy(stated).digest


def test_a_load_needs_what_a_verdict_takes_and_says_so() -> None:
    def of(rate: float, **load: Any) -> Sizing:
        return sizing(parse_policy({"load": {"rate_per_s": rate, **load}}, OBJECTIVES).of("load"))

    assert of(10) == Sizing(108, 10.8, 60)  # 108 requests can prove a p95
    assert of(100) == Sizing(108, 8, 60)
    assert of(1) == Sizing(108, 108, 432)
    assert of(20, slo_quantile=0.99) == Sizing(547, 27.35, 109.4)
    assert of(1, max_duration_s=15) == Sizing(108, 108, 15)
    assert of(1, duration_s=2) == Sizing(108, 108, 2)
    assert of(1, slo_quantile=0.99).deadline_s == 600
    assert of(10).sentence == "needs 108 requests to pass, about 11 s; ends after 60 s at the latest"
    assert of(1, max_duration_s=15).sentence.endswith("108 s, and ends after 15 s: it can fail, and cannot pass")
    assert parse_policy({}).of("load")["duration_s"] == 8  # nothing to prove


def test_a_run_with_as_many_requests_as_it_needs_passes_and_one_with_fewer_does_not() -> None:
    section = parse_policy({"load": {"rate_per_s": 10}}, OBJECTIVES).of("load")
    for requests, verdict in ((110, Verdict.PASSED), (100, Verdict.UNDECIDED)):
        clean = _run(requests, requests / 10)
        assert judge_load(summarise(clean, duration_s=requests / 10, slo_ms=250), section).verdict is verdict


def test_an_objective_that_lets_most_requests_be_slow_is_asked_as_it_stands() -> None:
    loose = {"slow": {"threshold_ms": 250, "max_frac": 0.8}}
    section = parse_policy({}, loose).of("load")
    assert section["slo_quantile"] == pytest.approx(0.2)
    assert parse_policy(parse_policy({}, loose).document).of("load") == section
    mostly_slow = judge_load(summarise(_run(slow=96), duration_s=8, slo_ms=250), section)  # 60 %, in a cluster
    assert mostly_slow.verdict is not Verdict.FAILED, mostly_slow.reason
    assert parse_policy({}, {"slow": {"threshold_ms": 250, "max_frac": 1}}).of("load")["slo_quantile"] == 0.0001


def test_a_policys_own_threshold_takes_no_quantile_from_the_model() -> None:
    own = parse_policy({"load": {"slo_ms": 2000}}, OBJECTIVES).of("load")
    assert (own["slo_ms"], own["slo_quantile"], own["max_error_frac"]) == (2000, 0.99, 0.002)
    assert parse_policy({"load": {"slo_ms": None}}, OBJECTIVES) == parse_policy({}, OBJECTIVES)  # null states nothing
    half = parse_policy({"load": {"slo_quantile": 0.9}}, OBJECTIVES).of("load")
    assert (half["slo_ms"], half["slo_quantile"]) == (250, 0.9)


TEXT, IDS = Tensor("text", "BYTES", (1,)), Tensor("ids", "INT64", (-1,))


def test_the_longest_item_is_as_long_as_the_envelope_declares_and_no_longer() -> None:
    made = made_up_item((TEXT,), seed=0)
    longest, of = longest_item((TEXT,), {"max_input_tokens": 128, "max_concurrency": 4}, made)
    assert of == {"max_input_tokens": 128}
    assert 120 <= len(longest["text"][0].split()) < 128
    assert longest["text"].shape == made["text"].shape
    assert longest_item((TEXT,), {"max_concurrency": 4}, made) == (made, {})

    tensors = (IDS, Tensor("scale", "FP32", (2,)))
    item = {"ids": np.array([7, 8, 9]), "scale": np.ones(2, np.float32)}
    longest, of = longest_item(tensors, {"max_input_dims": {"ids": [8]}, "max_input_tokens": 99}, item)
    assert of == {"max_input_dims": {"ids": [8]}}
    assert longest["ids"].tolist() == [7, 8, 9, 7, 8, 9, 7, 8]
    assert longest["scale"].tolist() == [1, 1]


def test_only_the_text_is_made_longer_and_only_where_it_is_plain_which_one_it_is() -> None:
    lang = Tensor("lang", "BYTES", (1,))
    item = {"text": np.array([b"short"], dtype=object), "lang": np.array([b"de"], dtype=object)}
    longest, of = longest_item((lang, TEXT), {"max_input_tokens": 64}, item)
    assert (len(longest["text"][0].split()), longest["lang"][0], of) == (60, b"de", {"max_input_tokens": 64})

    either = (Tensor("title", "BYTES", (1,)), lang)
    item = {"title": np.array([b"short"], dtype=object), "lang": np.array([b"de"], dtype=object)}
    assert longest_item(either, {"max_input_tokens": 64}, item) == (item, {})

    several = {"text": np.array([b"one", b"two"], dtype=object)}
    assert longest_item((Tensor("text", "BYTES", (-1,)),), {"max_input_tokens": 64}, several) == (several, {})


def test_inputs_that_may_have_to_fit_each_other_grow_together_or_not_at_all() -> None:
    tensors = (IDS, Tensor("mask", "INT64", (-1,)))
    item = {"ids": np.array([7, 8]), "mask": np.array([1, 1])}
    assert longest_item(tensors, {"max_input_dims": {"ids": [4]}}, item) == (item, {})
    longest, of = longest_item(tensors, {"max_input_dims": {"ids": [4], "mask": [4]}}, item)
    assert [longest[name].tolist() for name in ("ids", "mask")] == [[7, 8, 7, 8], [1, 1, 1, 1]]
    assert of == {"max_input_dims": {"ids": [4], "mask": [4]}}


COLD = parse_policy({"cold_start": {"max_s": 10, "max_first_excess_ms": 100}}).of("cold_start")


@pytest.mark.parametrize(
    ("timings", "latencies", "verdict", "says"),
    [
        ({"fetch_s": 1, "load_s": 2, "warmup_s": 0.5}, [20.0] * 10, Verdict.PASSED, "Ready after 3.5 s"),
        (
            {"fetch_s": 1, "load_s": 12, "warmup_s": 0.5},
            [20.0] * 10,
            Verdict.FAILED,
            "13.5 s from nothing to ready",
        ),
        ({"load_s": 5}, [900.0] + [20.0] * 9, Verdict.FAILED, "Declare a warm-up"),
        ({}, [20.0] * 10, Verdict.ERRORED, "measured no cold start"),
    ],
)
def test_a_cold_start_is_judged_by_its_parts_and_its_first_inference(
    timings: dict[str, float], latencies: list[float], verdict: Verdict, says: str
) -> None:
    judged = judge_cold_start(timings, latencies, COLD)
    assert judged.verdict is verdict
    assert says in judged.reason


@pytest.mark.parametrize(
    ("reason", "last_state", "verdict"),
    [
        ("load_failed: no module named foo", "loading", Verdict.FAILED),
        ("warmup_failed: KeyError", "warming", Verdict.FAILED),
        ("fetch_failed: the store is away", "fetching", Verdict.ERRORED),
        ("runtime_mismatch: this node does not run it", "fetching", Verdict.ERRORED),
        ("digest_mismatch: the bytes changed", "fetching", Verdict.ERRORED),
        ("", "fetching", Verdict.ERRORED),
        ("", "loading", Verdict.FAILED),
    ],
)
def test_whose_fault_a_failed_replica_is(reason: str, last_state: str, verdict: Verdict) -> None:
    assert verdict_of_failure(reason, last_state) is verdict


def test_an_empty_policy_is_the_default_and_leaves_golden_out() -> None:
    policy = parse_policy({})
    assert policy.gates == ("contract", "cold_start", "load")
    assert policy.of("load")["undecided"] == "block"
    assert policy.of("cold_start")["max_s"] == 60


def test_reading_a_policy_twice_names_the_same_demands() -> None:
    policy = parse_policy({"golden": {"set": "sha256:" + "a" * 64}, "load": {"slo_ms": 250}})
    assert policy.gates == ("contract", "cold_start", "golden", "load")
    again = parse_policy(policy.document)
    assert again == policy
    assert parse_policy({"load": {"confidence": 0.95}}).digest == parse_policy({}).digest
    assert (
        parse_policy({"load": {"rate_per_s": 20}}).digest != parse_policy({}).digest
    )  # the default asks no more than it can do
    assert parse_policy({"load": {"rate_per_s": 21}}).digest != parse_policy({}).digest


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"gate": []}, "gate"),
        ({"gates": ["contract", "smell"]}, "gates[1]"),
        ({"gates": ["load", "load"]}, "gates"),
        ({"gates": []}, "gates"),
        ({"gates": ["golden"]}, "golden.set"),
        ({"golden": {"set": "latest"}}, "golden.set"),
        ({"golden": {"min_agreement": 95}}, "golden.min_agreement"),
        ({"load": {"slo": 250}}, "load.slo"),
        ({"load": {"slo_quantile": 1}}, "load.slo_quantile"),
        ({"cold_start": {"max_s": "60"}}, "cold_start.max_s"),
        ({"contract": {"batch_sizes": [0]}}, "contract.batch_sizes[0]"),
        ({"load": {"undecided": "ignore"}}, "load.undecided"),
    ],
)
def test_a_wrong_policy_names_the_field_and_the_fix(document: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_policy(document)
    assert caught.value.code == "gate_policy_invalid"
    (error,) = caught.value.facts["errors"]
    assert error["field"] == field
    assert error["message"]
    assert error["fix"]
