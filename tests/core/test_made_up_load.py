"""The load of a release of which there are no examples: made up within what its envelope declares."""

from __future__ import annotations

from tests.core.test_gate_progress import SERVING, context
from validators.execution.gates.load_payloads import payloads_of

IDS = {**SERVING, "inputs": [{"name": "ids", "data_type": "INT64", "dims": [-1]}]}


def test_requests_are_of_every_class_of_declared_sizes_and_have_declared_values() -> None:
    limits = {"max_input_dims": {"ids": [512]}, "input_values": {"ids": [100, 30_521]}}
    found = payloads_of(context([], serving=IDS, envelope={"limits": limits}, items=()))
    assert set(found.kinds) == {"short", "medium", "long", "longest"}
    assert found.told["class_sizes"]["longest"] == [512, 512]
    assert {batch["ids"].shape[1] for batch in found.batches} == {64, 128, 192, 256, 320, 384, 448, 512}
    assert all(100 <= batch["ids"].min() <= batch["ids"].max() <= 30_521 for batch in found.batches)
    assert len({batch["ids"].tobytes() for batch in found.batches}) > 6


def test_where_nothing_is_declared_there_is_one_size() -> None:
    found = payloads_of(context([], serving=IDS, items=()))
    assert set(found.kinds) == {"usual"} and {batch["ids"].shape for batch in found.batches} == {(1, 1)}
