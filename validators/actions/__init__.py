"""What may happen to golden sets, seen sizes and gate runs."""

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
from validators.actions.seen_sizes import keep_seen_sizes

__all__ = [
    "ARRIVED",
    "JOB_KIND",
    "QUEUE",
    "add_golden_set",
    "begin_gate_run",
    "cancel_gate_run",
    "finish_gate_run",
    "give_up_gate_run",
    "keep_seen_sizes",
    "record_judgement",
    "request_gate_run",
]
