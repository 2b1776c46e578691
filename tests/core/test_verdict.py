"""Verdicts: five words, how several combine, and evidence that always has a JSON form."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from ledger.core.canonical import canonical_bytes
from validators.core.evidence import plain
from validators.core.telemetry import gpu_facts
from validators.core.verdict import SEVERITY, Verdict, combine, worst_of

P, S, U, E, F = Verdict.PASSED, Verdict.SKIPPED, Verdict.UNDECIDED, Verdict.ERRORED, Verdict.FAILED


def test_every_verdict_has_a_severity() -> None:
    assert set(SEVERITY) == set(Verdict)


def test_nothing_at_all_is_undecided_never_passed() -> None:
    assert worst_of([]) is U
    assert combine([])[0] is U


@pytest.mark.parametrize("verdicts", list(itertools.product(Verdict, repeat=2)))
def test_only_all_passed_is_passed(verdicts: tuple[Verdict, Verdict]) -> None:
    assert (worst_of(verdicts) is P) == (verdicts == (P, P))


def test_undecided_counts_as_passed_only_where_allowed() -> None:
    gates = [("golden", P), ("load", U)]
    assert combine(gates) == (U, "load undecided.")
    verdict, reason = combine(gates, undecided_allowed=frozenset({"load"}))
    assert verdict is P
    assert "load undecided, which the policy allows" in reason
    assert combine([("golden", U), ("load", P)], undecided_allowed=frozenset({"load"}))[0] is U


def test_a_gate_run_of_nothing_but_allowed_doubt_is_not_passed() -> None:
    assert combine([("load", U)], undecided_allowed=frozenset({"load"}))[0] is U


def test_the_guilty_gate_is_named() -> None:
    assert combine([("contract", P), ("golden", F), ("load", S)]) == (F, "golden failed.")


def test_evidence_becomes_plain_json() -> None:
    found = plain({"a": (1, 2), "b": np.float32(0.5), "c": -math.inf, "d": np.array([1, 2]), 3: math.nan, "v": F})
    assert found == {"a": [1, 2], "b": 0.5, "c": "-inf", "d": [1, 2], "3": "nan", "v": "failed"}
    canonical_bytes(found)


def test_gpu_facts_that_nobody_measured_are_unknown_never_none() -> None:
    assert gpu_facts({})["state"] == "unknown"
    assert gpu_facts({"gpus": None, "gpus_unknown": "no driver library"})["why"] == "no driver library"
    assert gpu_facts({"gpus": []})["state"] == "none"
    assert gpu_facts({"gpus": [{"name": "H200"}]}) == {"state": "known", "gpus": [{"name": "H200"}], "why": ""}


def test_the_worst_verdict_counts_in_the_order_that_the_document_tells() -> None:
    """`failed` being the worst, then `errored`, `undecided`, `skipped`."""
    order = [F, E, U, S, P]
    for i, verdict in enumerate(order):
        assert worst_of(order[i:]) is worst_of(reversed(order[i:])) is verdict


def test_a_passed_run_tells_how_many_gates_passed_of_how_many() -> None:
    assert combine([("contract", P), ("golden", P)]) == (P, "2 of 2 gates passed.")
    allowed = combine([("contract", P), ("load", U)], undecided_allowed=frozenset({"load"}))
    assert allowed == (P, "1 of 2 gates passed; load undecided, which the policy allows.")


def test_every_guilty_gate_is_named_and_only_doubt_is_let_go() -> None:
    assert combine([("a", F), ("b", E), ("c", F)]) == (F, "a, c failed.")
    assert combine([("load", F), ("a", P)], undecided_allowed=frozenset({"load"})) == (F, "load failed.")
    assert combine([("load", U)], undecided_allowed=frozenset({"load"}))[1] == "No gate gave a verdict that counts."
    assert combine([])[1] == "No gate gave a verdict that counts."


def test_evidence_keeps_what_json_holds_and_loses_nul() -> None:
    assert plain([True, None, 3, "a\x00b", (1.5, [np.int64(7)]), np.bool_(False)]) == [
        True,
        None,
        3,
        "ab",
        [1.5, [7]],
        False,
    ]
    assert type(plain(np.int64(7))) is int
    assert plain(np.array([[1.0, math.nan]])) == [[1.0, "nan"]]


def test_gpu_facts_tell_why_nothing_is_known() -> None:
    silent = {"state": "unknown", "gpus": None, "why": "the node's agent reported nothing about GPUs"}
    assert gpu_facts({}) == gpu_facts({"gpus": "NVIDIA L4"}) == gpu_facts({"gpus_unknown": ""}) == silent
    assert gpu_facts({"gpus": []}) == {"state": "none", "gpus": [], "why": "the node's agent found no GPU"}
