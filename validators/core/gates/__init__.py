"""Every gate by its name, in the usual order. The table is closed: a policy names gates, it does not bring code."""

from __future__ import annotations

from typing import Final

from validators.core.envelope_values import Reader, Rule, Value
from validators.core.gates.capacity import CAPACITY
from validators.core.gates.cold_start import COLD_START
from validators.core.gates.contract import CONTRACT
from validators.core.gates.gate import Gate
from validators.core.gates.golden import GOLDEN
from validators.core.gates.gpu import GPU
from validators.core.gates.load import LOAD
from validators.core.gates.resources import RESOURCES

GATES: Final[dict[str, Gate]] = {
    gate.name: gate for gate in (CONTRACT, COLD_START, GOLDEN, LOAD, RESOURCES, CAPACITY, GPU)
}
#: Gates that the GPUs are watched under.
WATCHED: Final = tuple(gate.name for gate in GATES.values() if gate.is_watched)
#: Gates that ask a golden set.
REPLAYING: Final = tuple(gate.name for gate in GATES.values() if gate.replays_set)


def readers_of(value: Value) -> dict[str, Reader]:
    """Readers by gate. A gate that searches comes first for a least rate, because it measures the limit itself."""
    gates = sorted(GATES.values(), key=lambda gate: value.rule is Rule.LEAST and not gate.searches)
    return {gate.name: gate.reads[value.field] for gate in gates if value.field in gate.reads}
