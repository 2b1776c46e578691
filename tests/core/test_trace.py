"""A recording of when requests came: what is read of it, what is refused, and the load that goes by it."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest

from ledger.core.errors import Invalid
from validators.core import trace as traces
from validators.core.explain import explain
from validators.core.load import arrivals
from validators.core.policy import parse_policy
from validators.core.trace import gaps_of, kept_bytes, read_kept
from validators.core.trace_policy import MOST_STATED, gaps_in

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8

2023-11-16 18:17:04.0319600,110,27
"""


@pytest.mark.parametrize(
    "text",
    [
        AZURE,
        "tokens,timestamp\r\n4808,100.5\r\n3180,100.552\r\n110,100.552\r\n",
        "\ufeff100.5\n100.552\n100.552",
        "2023-11-16T18:17:03.97996Z\n2023-11-16T19:17:04.03196+01:00\n2023-11-16T18:17:04.03196Z",
        "\n".join(json.dumps({"Timestamp": at, "tokens": 9}) for at in (7, 7.052, 7.052)),
        '"2023-11-16 18:17:03.97996"\n"2023-11-16 18:17:04.03196"\n"2023-11-16 18:17:04.03196"',
    ],
)
def test_gaps_are_read_of_every_form(text: str) -> None:
    assert list(gaps_of(text)) == [0.052, 0.0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it has no two instants"),
        ("TIMESTAMP\n5\n", "it has no two instants"),
        ("5\n5\n5\n", "it has no two instants"),
        ("1\n3\n2\n", "line 3 is before the one above it"),
        ("TIMESTAMP\n1\nsoon\n", "line 3 is no number of seconds and no ISO 8601 instant"),
        ("a,timestamp\n1,2\n3\n", "line 3 is no"),
        ('a,timestamp\n"two\nlines",2\n"three\n\nlines",soon\n', "line 6 is no"),
        ("1\n" + "[" * 100_000, "line 2 is no"),
        ("1\nNaN\n", "line 2 is no"),
        ("1\ninf\n", "line 2 is no"),
        ("1\ntrue\n", "line 2 is no"),
        ('{"timestamp": 1}\n{"at": 2}\n', "line 2 is no"),
        ("time\n1\n2\n", "line 1 is no"),
        ("timestamp\n" + "1" * 200_000, "it is no CSV: field larger than"),
        ("0\n1\n2\n3\n4\n", "line 5 is one too many, 4 instants are the most: cut a part out of it"),
        ("0\n86400\n172801\n", "line 3 is more than a day after the one above it"),
        ("1.0000001\n1.0000002\n", "it has no two instants"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused_at_its_line(text: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MOST_GAPS", 3)
    with pytest.raises(ValueError, match=f"^{says}"):
        gaps_of(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1\n" * 300_000, "line 5 is one too many"),
        ("timestamp\n" + "1\n" * 300_000, "line 6 is one too many"),
        ('{"timestamp": 1}\r\n' * 50_000, "line 5 is one too many"),
        ("\n" * 600_000, "it has no two instants"),
    ],
)  # fmt: skip
def test_a_recording_is_refused_without_memory_for_its_lines(
    text: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "MOST_GAPS", 3)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=f"^{says}"):
            gaps_of(text)
        assert tracemalloc.get_traced_memory()[1] < len(text) / 2
    finally:
        tracemalloc.stop()


def test_nothing_but_the_gaps_is_kept() -> None:
    gaps = gaps_of(AZURE + "2023-11-16 19:17:04.1,9,9\n")
    assert list(gaps) == [0.052, 0.0, 3600.06804]
    assert kept_bytes(gaps) == b"52000\n0\n3600068040\n"
    assert list(read_kept(kept_bytes(gaps))) == list(gaps)


def test_a_long_recording_comes_back_from_its_instants_and_from_the_kept_bytes() -> None:
    gaps = np.random.default_rng(3).exponential(0.01, 50_000).round(6)
    instants = np.cumsum(np.concatenate([[0], np.rint(gaps * 1e6)])).astype(int)
    text = "\n".join(f"{at // 10**6}.{at % 10**6:06d}" for at in instants.tolist())
    assert (np.asarray(gaps_of(text)) == gaps).all()
    assert (np.asarray(read_kept(kept_bytes(gaps.tolist()))) == gaps).all()


def test_a_trace_keeps_its_shape_at_the_rate_and_comes_round_again() -> None:
    trace = [1.0, 1.0, 1.0, 7.0]  # three at once, as it were, and a pause
    due = arrivals(20, 30, seed=4, trace=trace)
    assert len(due) == 600 and due[0] > 0 and due[-1] < 30 and (np.diff(due) > 0).all()
    gaps = np.round(np.diff(due), 6)
    short, long = sorted(set(gaps.tolist()))
    assert long == pytest.approx(7 * short, rel=1e-4) and (gaps == long).sum() == pytest.approx(150, abs=1)
    places = np.flatnonzero(gaps == long)
    assert set(np.diff(places).tolist()) == {4}
    assert (arrivals(20, 30, seed=4, trace=trace) == due).all()
    begins = {int(np.flatnonzero(np.diff(arrivals(20, 30, seed=seed, trace=trace)) > 0.1)[0]) for seed in range(20)}
    assert begins == {0, 1, 2, 3}


def test_a_part_of_a_trace_may_be_all_at_once() -> None:
    due = arrivals(2, 1, seed=1, trace=[0.0] * 1999 + [1.0])
    assert due.tolist() == [0, 0] and not np.isnan(due).any()
    ends = arrivals(4, 1, seed=0, trace=[1.0, 0.0])
    assert (ends < 1).all() and len(ends) == 4
    least = arrivals(4, 1, seed=0, trace=[0.0, 5e-324])
    assert least.tolist() == pytest.approx([0.25, 0.25, 0.75, 0.75], abs=0.25) and (np.diff(least) >= 0).all()


@pytest.mark.parametrize(
    ("load", "field"),
    [
        ({"trace": []}, "load.trace"),
        ({"trace": [0.5, -0.1]}, "load.trace[1]"),
        ({"trace": [float("nan")]}, "load.trace[0]"),
        ({"trace": [0, 0]}, "load.trace"),
        ({"trace": [0.1] * (MOST_STATED + 1)}, "load.trace"),
        ({"trace": "sha256:abc"}, "load.trace"),
        ({"trace": f"sha256:{'a' * 64}", "arrivals_cv": 2}, "load.arrivals_cv"),
        ({"trace": [0.1], "arrivals_cv": 2}, "load.arrivals_cv"),
        ({"generators": "auto "}, "load.generators"),
        ({"protocol": "https"}, "load.protocol"),
        ({"generators": 17}, "load.generators"),
        ({"generators": "many"}, "load.generators"),
    ],
)
def test_a_policy_names_what_is_wrong_with_a_load(load: dict[str, object], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_policy({"load": load})
    assert [one["field"] for one in caught.value.facts["errors"]] == [field]


def test_a_policy_tells_over_what_and_when_requests_come() -> None:
    load = {"protocol": "http", "generators": 2, "trace": [0.1, 0.2]}
    policy = parse_policy({"load": load})
    assert parse_policy(policy.document).digest == policy.digest != parse_policy({}).digest
    told = {one.field: one.demands for one in explain(policy, items=0, slices={})}
    assert (
        told["load.max_error_frac"] == "At most 0.1 % of requests fail at 20/s over HTTP, as 2 recorded gaps have it."
    )
    plain = {one.field: one.demands for one in explain(parse_policy({}), items=0, slices={})}
    assert plain["load.max_error_frac"] == "At most 0.1 % of requests fail at 20/s over gRPC."


def test_a_policy_may_name_a_trace_by_its_digest() -> None:
    digest = f"sha256:{'a' * 64}"
    policy = parse_policy({"load": {"trace": digest}})
    assert policy.trace == digest and parse_policy(policy.document).digest == policy.digest
    assert parse_policy({}).trace is None and parse_policy({"load": {"trace": [0.1]}}).trace is None
    told = {one.field: one.demands for one in explain(policy, items=0, slices={})}
    as_recorded = f", as trace {digest[:19]}… has it."
    assert told["load.max_error_frac"].endswith(f"at 20/s over gRPC{as_recorded}")
    searched = parse_policy({"gates": ["load", "capacity"], "load": {"trace": digest, "slo_ms": 100}})
    told = {one.field: one.demands for one in explain(searched, items=0, slices={})}
    assert told["load.recovery_s"].endswith(f"of 3 times the rate{as_recorded}")
    assert told["capacity.budget_s"].endswith(f"at some rate{as_recorded}")
    assert gaps_in(policy.of("load"), [1.0, 2.0]) == [1.0, 2.0]
    assert gaps_in(parse_policy({"load": {"trace": [0.1]}}).of("load"), None) == [0.1]
    assert gaps_in(parse_policy({}).of("load"), None) is None


def test_a_policy_has_another_digest_only_if_it_demands_something_else() -> None:
    """A changed digest makes the gates of all models run again. These changed last when gates began to judge the envelope."""
    plain, stated = (parse_policy(one).digest for one in ({}, {"load": {"trace": [0.5, 0.25, 3]}}))
    assert plain == "sha256:b4d239f95e8dc38ee70a632ee51da2876c523240a2c1440822effb1061d393e5"
    assert stated == "sha256:5b9e5052f1c64e58adb4f5ae446e21193a0f945741aca65b1b6d27adc6c817bb"
