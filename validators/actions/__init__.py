"""What may happen to golden sets, kept requests and gate runs."""

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
from validators.actions.kept_requests import draft_golden_set, forget_old_requests, forget_requests, keep_requests

__all__ = [
    "ARRIVED",
    "JOB_KIND",
    "QUEUE",
    "add_golden_set",
    "begin_gate_run",
    "cancel_gate_run",
    "draft_golden_set",
    "finish_gate_run",
    "forget_old_requests",
    "forget_requests",
    "give_up_gate_run",
    "keep_requests",
    "record_judgement",
    "request_gate_run",
]
