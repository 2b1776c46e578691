"""The verbs of the ledger: append an event; enqueue, claim, extend, finish and re-send jobs; notify who subscribed."""

from ledger.actions.events import append_event
from ledger.actions.jobs import call, cancel_job, claim, enqueue, finish, heartbeat, release_for_retry, send
from ledger.actions.sweep import dispatch_due

__all__ = [
    "append_event",
    "call",
    "cancel_job",
    "claim",
    "dispatch_due",
    "enqueue",
    "finish",
    "heartbeat",
    "release_for_retry",
    "send",
]
