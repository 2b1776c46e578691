"""The contract gate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from registry.core.schema import Flag, Integer, ListOf, Record, may
from validators.core.gates.fields import SECONDS, UNDECIDED, OrWord
from validators.core.gates.gate import OF_ANSWERS, Demand, Gate, Plan, Section, sentence

#: "max" is the largest that the release declares.
_BATCH_SIZE = OrWord("max", Integer(1, 65_536, unit="items"))


def _explain(own: Section, plan: Plan) -> Iterator[Demand]:
    sizes = ", ".join(map(str, own["batch_sizes"]))
    tried = "each size once: one mismatch fails, and a mismatch that comes seldom may pass"
    yield Demand("contract", "contract.batch_sizes", f"Batches of {sizes} are answered as declared.", sentence(tried))
    if own["edges"]:
        tried = "each mistake and each limit once, and that an ordinary request is answered after it"
        demands = "Every wrong request is refused as the caller's, and the server goes on."
        yield Demand("contract", "contract.edges", demands, sentence(tried))


CONTRACT: Final = Gate(
    name="contract",
    section=Record(
        {
            "batch_sizes": may(ListOf(_BATCH_SIZE, least=1, most=16), [1, 2, "max"]),
            "edges": may(Flag(), True),
            "undecided": may(UNDECIDED),
            "timeout_s": may(SECONDS, 30),
        }
    ),
    explain=_explain,
    depends=OF_ANSWERS,
)
