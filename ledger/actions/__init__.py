"""The verbs of the ledger: append an event; enqueue, claim, extend, finish and re-send jobs; notify who subscribed."""

from ledger.actions.deliveries import replay_delivery, replay_since
from ledger.actions.events import append_event
from ledger.actions.jobs import call, claim, enqueue, finish, heartbeat, release_for_retry, send, tell_of_failure
from ledger.actions.subscriptions import change_webhook, create_webhook, delete_webhook, rotate_secret
from ledger.actions.sweep import dispatch_due

__all__ = [
    "append_event",
    "call",
    "change_webhook",
    "claim",
    "create_webhook",
    "delete_webhook",
    "dispatch_due",
    "enqueue",
    "finish",
    "heartbeat",
    "release_for_retry",
    "replay_delivery",
    "replay_since",
    "rotate_secret",
    "send",
    "tell_of_failure",
]
