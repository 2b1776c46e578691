"""What may happen to golden sets, kept requests, seen sizes and gate runs."""

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
from validators.actions.seen_sizes import keep_seen_sizes

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
    "keep_seen_sizes",
    "record_judgement",
    "request_gate_run",
]
