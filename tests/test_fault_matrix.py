"""The counts of the fault matrix: failures apart from requests in flight, and rows that are over."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.fault_callers import Call, failures
from benchmarks.fault_kinds import FAULTS, Fault, flush
from benchmarks.fault_matrix import Row, page_words


def test_only_calls_that_a_kill_met_are_in_flight() -> None:
    calls = [Call(1.0, 1.5, "503"), Call(1.9, 2.1, "503"), Call(2.1, 2.2, "refused"), Call(1.9, 2.1)]
    assert failures(calls, 2.0) == (Counter({"503": 1, "refused": 1}), 1)
    assert failures(calls, None) == (Counter({"503": 2, "refused": 1}), 0)


@pytest.mark.parametrize(
    ("looks", "words", "is_over"),
    [
        ([Call(0, 1), Call(1, 2)], "0 / 2", False),
        ([Call(0, 1, "503"), Call(1, 2)], "1 / 2 (1 503), 2.0 s", False),
        ([Call(0, 1, "503"), Call(10, 11, "refused"), Call(11, 12)], "2 / 3 (1 503, 1 refused), 12.0 s", True),
        ([Call(0, 1), Call(1, 2, "503")], "1 / 2 (1 503), never", True),
    ],
)
def test_a_page_is_back_once_no_look_fails_any_more(looks: list[Call], words: str, is_over: bool) -> None:
    told, problem = page_words(looks, 0.0, 10.0)
    assert (told, bool(problem)) == (words, is_over)


def test_a_row_that_is_over_names_the_known_fault() -> None:
    row = Row(Fault("FLUSHALL", flush, known="slow starts"))
    row.take("0 / 9", "")
    assert str(row) == "| FLUSHALL | 0 / 9 | no |"
    row.take("3 / 9", "3 failed")
    assert str(row) == "| FLUSHALL | 0 / 9 | 3 / 9 | 3 failed (known: slow starts) |"


def test_each_fault_has_a_name_of_its_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
