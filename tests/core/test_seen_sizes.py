"""A load in the sizes that users send: which examples are drawn how often, and what is said where none stands for a size."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from rollouts.core.request_mix import classes_of
from serving.servers.core.made_up import made_up_item
from serving.traffic.core.buckets import SIZE_EDGES
from tests.core.test_gate_progress import TEXT, context
from tests.support.fakes.ports import FakeInferenceServer, FakeModel
from validators.core.contract import tensors_of
from validators.core.explain import explain
from validators.core.golden_set import GoldenItem
from validators.core.inputs import with_longer_text
from validators.core.load import Attempt
from validators.core.policy import parse_policy
from validators.core.seen_sizes import SeenSizes, aim_of, allotted, class_of, drawn, unseen_frac
from validators.execution.gates import load as load_module
from validators.execution.gates.load_payloads import payloads_of

AT = datetime(2026, 1, 2, tzinfo=UTC)
SIZES = (20, 2000, 10_000)  # characters of text: a request of each is of one class


def seen(*counts: int) -> SeenSizes:
    return SeenSizes(counts + (0,) * (6 - len(counts)), AT, AT, "production")


def sent(found: SeenSizes | None, texts: tuple[int, ...] = SIZES, limits: Any = None, **load: Any) -> Any:
    items = tuple(GoldenItem(str(size), {"text": "x" * size}, 0) for size in texts)
    policy = parse_policy({"load": {"rate_per_s": 24, "duration_s": 1, "slo_ms": 100, "burst_s": 0, **load}})
    payloads = payloads_of(
        context([], serving=TEXT, items=items, policy=policy, envelope={"limits": limits or {}}, seen=found)
    )
    return payloads, [len(batch["text"].item()) for batch in payloads.batches]


def test_classes_are_those_of_the_gateways_counters() -> None:
    over = {f"bytes_{edge}": count for edge, count in zip(SIZE_EDGES, (50, 30, 30, 2, 1), strict=True)}
    assert classes_of(over, 100) == (50, 20, 0, 28, 1, 1)
    assert [class_of(size) for size in (1, 512, 513, 4096, 2_000_000, 2_000_001)] == [0, 0, 1, 1, 4, 5]
    assert [class_of(aim_of(place)) for place in range(6)] == list(range(6))


def test_places_are_dealt_out_by_largest_remainder() -> None:
    assert allotted([50, 30, 20], 10) == [5, 3, 2]
    assert allotted([1, 1, 1], 64) == [22, 21, 21]  # of equal remainders the first
    assert allotted([990, 10, 0], 56) == [55, 1, 0]  # 55.44 and 0.56
    assert allotted([10**15, 1], 3) == [3, 0]


def test_examples_are_drawn_in_the_shares_of_their_classes_by_the_seed() -> None:
    classes = [0] * 9 + [1] * 3
    chosen = drawn(classes, [250, 750, 0], 40, seed=1)
    times = Counter(chosen)
    assert sum(times[at] for at in range(9)) == 10 and sum(times[at] for at in range(9, 12)) == 30
    assert {times[at] for at in range(9)} == {1, 2} and {times[at] for at in range(9, 12)} == {10}
    assert drawn(classes, [250, 750, 0], 40, seed=1) == chosen != drawn(classes, [250, 750, 0], 40, seed=2)
    assert drawn(classes, [0, 0, 9], 40, seed=1) == []


def test_what_no_example_stands_for_is_left_to_the_others_and_told() -> None:
    assert drawn([0, 1], [30, 30, 40], 10, seed=1).count(0) == 5
    assert unseen_frac([0, 1], [30, 30, 40]) == 0.4 and unseen_frac([0, 1, 2], [30, 30, 40]) == 0


def test_what_is_sent_besides_counts_towards_its_share() -> None:
    assert Counter(drawn([0, 1], [50, 50], 56, taken=[1] * 8, seed=1)) == {0: 32, 1: 24}
    assert Counter(drawn([0, 1], [95, 5], 56, taken=[1] * 8, seed=1)) == {0: 56}  # 3 of 64 at most, and there are 8
    assert Counter(drawn([0, 1], [30, 30, 60], 56, taken=[2] * 8, seed=1)) == {0: 28, 1: 28}
    assert drawn([0], [0, 0, 60], 56, taken=[2] * 8, seed=1) == []


def test_a_load_is_of_the_sizes_that_were_seen() -> None:
    payloads, lengths = sent(seen(250, 625, 125))
    assert Counter(lengths) == {20: 16, 2000: 40, 10_000: 8}
    assert payloads.told["sizes_sent"] == [16, 40, 8, 0, 0, 0] and payloads.told["unseen_frac"] == 0
    assert (payloads.told["sizes_from"], payloads.told["sizes_lengthened"], payloads.caveat) == ("seen", [], "")
    told = payloads.told["sizes_seen"]
    assert told == {
        "counts": [250, 625, 125, 0, 0, 0], "environment": "production", "since": AT.isoformat(), "until": AT.isoformat()
    }  # fmt: skip
    assert sent(seen(250, 625, 125))[1] == lengths


@pytest.mark.parametrize(
    ("found", "load"),
    [(None, {}), (seen(249, 625, 125), {}), (seen(900, 100), {"sizes": "examples"})],
    ids=["none were", "too few were", "they are not asked for"],
)
def test_without_seen_sizes_the_examples_are_sent_as_they_are(found: Any, load: dict[str, Any]) -> None:
    payloads, lengths = sent(found, **load)
    assert sorted(lengths) == sorted(SIZES)
    assert payloads.told["sizes_from"] == "examples" and "unseen_frac" not in payloads.told and not payloads.caveat


def test_the_longest_keep_their_share_and_a_missing_size_is_made_within_the_limits() -> None:
    payloads, lengths = sent(seen(500, 500), texts=(20,), limits={"max_input_tokens": 2048})
    count = Counter(lengths)
    longest = 4 * 2044 - 1
    assert (count[20], count[longest]) == (28, 8) and len(count) == 3
    made = next(length for length in count if length not in (20, longest))
    assert SIZE_EDGES[0] < made < SIZE_EDGES[1] and payloads.told["sizes_lengthened"] == [1]
    assert payloads.kinds.count("longest") == 8 and payloads.told["unseen_frac"] == 0
    assert sent(seen(500, 500), limits={"max_input_tokens": 2048}, longest_frac=1)[1] == [longest] * 64


def test_a_size_beyond_the_limits_is_not_made() -> None:
    payloads, lengths = sent(seen(800, 0, 200), texts=(20,), limits={"max_input_tokens": 900})
    assert max(lengths) == 4 * 896 - 1 and payloads.told["sizes_lengthened"] == []
    assert payloads.told["unseen_frac"] == 0.2
    item = made_up_item(tensors_of(TEXT, "inputs"), seed=0)
    assert with_longer_text(tensors_of(TEXT, "inputs"), {}, item, 100) is None
    assert (
        with_longer_text(tensors_of(TEXT, "inputs"), {"max_input_tokens": 8}, item, 100) is None
    )  # shorter than it is


def test_the_gate_says_for_which_share_of_users_nothing_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def drive(requests: Any, schedule: Any, **_: Any) -> list[Attempt]:
        for at in range(len(schedule)):
            requests.send(at, timeout_s=10)
        return [Attempt(due, due, due + 0.01) for due in schedule.tolist()]

    monkeypatch.setattr(load_module.load_runner, "drive", drive)
    monkeypatch.setattr(load_module.load_runner, "all_at_once", lambda *args, **_: [Attempt(0, 0, 0.01)] * 16)
    for counts, share in (((0, 0, 700, 300), "30%"), ((0, 0, 960, 40), None)):
        found = load_module.load_gate(context_of(seen(*counts)))
        says = f" For {share} of users' requests there is no example of their size."
        assert found.reason.endswith(says) if share else "users' requests" not in found.reason
        assert found.evidence["unseen_frac"] == counts[3] / 1000 and found.evidence["sizes_sent"][2] == 64


def context_of(found: SeenSizes) -> Any:
    def length(tensors: Any) -> dict[str, Any]:
        sizes = [[float(len(text))] for text in tensors["text"].ravel()]
        assert sizes == [[10_000.0]]
        return {"y": np.array(sizes, dtype=np.float32)}

    items = tuple(GoldenItem(str(size), {"text": "x" * size}, 0) for size in SIZES)
    policy = parse_policy({"load": {"rate_per_s": 24, "duration_s": 8, "slo_ms": 100, "burst_s": 0}})
    server = FakeInferenceServer({"m": FakeModel(TEXT, length)})
    return context([], serving=TEXT, items=items, policy=policy, server=server, seen=found)


def test_the_policy_tells_which_sizes_it_asks_for() -> None:
    fields = {
        how: {one.field: one for one in explain(parse_policy({"load": {"sizes": how}}), items=0, slices={})}
        for how in ("seen", "examples")
    }
    assert "as large as users' were" in fields["seen"]["load.sizes"].demands and "load.sizes" not in fields["examples"]
