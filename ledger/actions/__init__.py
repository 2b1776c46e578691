"""The verbs of the ledger: append an event; enqueue, claim, extend, finish and re-send jobs."""

from ledger.actions.events import append_event
from ledger.actions.job_dispatch import dispatch_due
from ledger.actions.jobs import (
    claim,
    enqueue,
    finish,
    heartbeat,
    make_due_now,
    record_failure,
    release_for_retry,
    send,
)

__all__ = [
    "append_event",
    "claim",
    "dispatch_due",
    "enqueue",
    "finish",
    "heartbeat",
    "make_due_now",
    "record_failure",
    "release_for_retry",
    "send",
]
