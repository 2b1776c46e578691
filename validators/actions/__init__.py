"""What may happen to golden sets and gate runs."""

from __future__ import annotations

from validators.actions.gate_runs import (
    ARRIVED,
    JOB_KIND,
    QUEUE,
    add_golden_set,
    begin_gate_run,
    cancel_gate_run,
    finish_gate_run,
    give_up_gate_run,
    record_judgement,
    request_gate_run,
)

__all__ = [
    "ARRIVED",
    "JOB_KIND",
    "QUEUE",
    "add_golden_set",
    "begin_gate_run",
    "cancel_gate_run",
    "finish_gate_run",
    "give_up_gate_run",
    "record_judgement",
    "request_gate_run",
]
