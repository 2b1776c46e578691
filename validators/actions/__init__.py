"""What may happen to golden sets and gate runs."""

from __future__ import annotations

from validators.actions.gate_runs import (
    ARRIVED,
    JOB_KIND,
    QUEUE,
    add_golden_set,
    begin_validation,
    cancel_validation,
    finish_validation,
    give_up_validation,
    record_judgement,
    request_validation,
)

__all__ = [
    "ARRIVED",
    "JOB_KIND",
    "QUEUE",
    "add_golden_set",
    "begin_validation",
    "cancel_validation",
    "finish_validation",
    "give_up_validation",
    "record_judgement",
    "request_validation",
]
