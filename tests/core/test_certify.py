"""What a golden set would catch is what the gate fails on, row by row."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from validators.core import beta
from validators.core.certify import POWER, Caught, caught, judged_slices
from validators.core.compare import below_p
from validators.core.golden import Replay, judge_golden
from validators.core.golden_set import GoldenItem
from validators.core.policy import parse_policy


def section(**golden: Any) -> dict[str, Any]:
    return parse_policy({"golden": {"set": "sha256:" + "0" * 64, **golden}}).of("golden")


def first_failing(n: int, slices: int, golden: dict[str, Any], *, has_stable: bool) -> int | None:
    """The least number of rows, all of slice 0, that the gate itself fails a release for having lost."""
    items = [GoldenItem(str(at), {}, 1, f"s{at // n}") for at in range(n * slices)]
    for lost in range(1, n + 1):
        candidate = [0] * lost + [1] * (len(items) - lost)
        stable = [1] * len(items) if has_stable else None
        judged = judge_golden(Replay(items, [1] * len(items), candidate, stable, "r1"), golden)
        if any(check["verdict"] == "failed" for check in judged.evidence["checks"]):
            return lost
    return None


@pytest.mark.parametrize("rule", ["measured", "certified"])
@pytest.mark.parametrize("has_stable", [True, False])
@pytest.mark.parametrize(
    "limits",
    [
        {"min_agreement": None, "max_slice_drop": None},
        {"max_accuracy_drop": None, "max_slice_drop": None},
        {"min_accuracy": 0.9, "min_agreement": None, "max_accuracy_drop": None, "max_slice_drop": None},
    ],
)
def test_over_all_it_is_the_gates_own_limit(rule: str, has_stable: bool, limits: dict[str, Any]) -> None:
    golden = section(rule=rule, **limits)
    found = caught(60, golden)
    share = found.against_stable if has_stable else found.without_stable
    lost = first_failing(60, 1, golden, has_stable=has_stable)
    assert share == (None if lost is None else beta.quantile(POWER, lost, 60 - lost + 1))


@pytest.mark.parametrize("rule", ["measured", "certified"])
@pytest.mark.parametrize(
    "limits",
    [{"min_slice_accuracy": 0.9, "max_slice_drop": None}, {"max_slice_drop": 0.05}, {"min_slice_agreement": 0.8}],
)
def test_of_several_slices_it_is_what_holm_asks_of_the_worst(rule: str, limits: dict[str, Any]) -> None:
    golden = section(rule=rule, min_agreement=None, max_accuracy_drop=None, **limits)
    found = caught(30, golden, slices=5)
    lost = first_failing(30, 5, golden, has_stable=True)
    assert lost is not None and found.against_stable == beta.quantile(POWER, lost, 30 - lost + 1)
    assert caught(30, golden, slices=1).against_stable <= found.against_stable  # type: ignore[operator]


def test_nothing_is_caught_where_nothing_is_asked_or_too_little_is_there() -> None:
    nothing = section(min_agreement=None, max_accuracy_drop=None, max_slice_drop=None)
    assert caught(1000, nothing) == Caught(None, None) == caught(0, section())
    assert caught(19, section(), slices=2) == Caught(None, None)
    assert caught(20, section(), slices=2).against_stable is not None
    assert judged_slices({"a": 20, "b": 19}, section()) == 1


def test_where_only_the_loss_of_every_row_fails_that_is_told() -> None:
    golden = section(min_accuracy=0.01, min_agreement=None, max_accuracy_drop=None)
    assert caught(5, golden).without_stable == beta.quantile(POWER, 5, 1)
    assert caught(5, section(min_accuracy=0, min_agreement=None)).without_stable is None


def test_more_rows_catch_less_and_the_share_is_caught_in_nine_of_ten() -> None:
    shares = [caught(n, section(compare="cosine")).against_stable for n in (40, 200, 1000, 5000)]
    assert shares == sorted(shares, reverse=True)  # type: ignore[type-var]
    share = caught(200, section(compare="cosine", max_accuracy_drop=None, min_agreement=None)).without_stable
    assert share is not None
    assert beta.incomplete(share, 11, 190) == pytest.approx(POWER, abs=1e-6)  # 11 lost of 200 are below .95


def test_the_binomial_tail_is_exact() -> None:
    assert below_p(1, 2, 0.5) == pytest.approx(0.75)
    assert below_p(0, 3, 0.9) == pytest.approx(0.001)
    assert (below_p(3, 3, 0.9), below_p(0, 3, 0.0)) == (1, 1)


def test_the_table_of_the_document_is_what_is_computed() -> None:
    text = (Path(__file__).parents[2] / "docs" / "gates.md").read_text()
    rows = re.findall(r"^\| (\d+) \| ([\d.]+)% \| ([\d.]+)% \| ([\d.]+)% \| ([\d.]+)% \|$", text, re.MULTILINE)
    assert len(rows) == 7
    for n, *told in rows:
        found = [caught(int(n), section(compare="cosine")), caught(int(n), section(compare="cosine"), slices=4)]
        shares = [share for one in found for share in (one.against_stable, one.without_stable)]
        assert told == [f"{share:.1%}".rstrip("%") for share in shares]
