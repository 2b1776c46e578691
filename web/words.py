"""How every state and verdict looks: its kind, which is a colour, and its icon in `static/web/icons.svg`."""

from __future__ import annotations

from typing import Final

#: word → (kind, icon). Kinds: ok, running, waiting, bad, idle. A word that is not here is shown plainly.
WORDS: Final[dict[str, tuple[str, str]]] = {
    "passed": ("ok", "check"),
    "failed": ("bad", "cross"),
    "undecided": ("waiting", "question"),
    "errored": ("bad", "alert"),
    "skipped": ("idle", "dash"),
    "queued": ("waiting", "dots"),
    "running": ("running", "play"),
    "finished": ("idle", "stop"),
    "cancelled": ("idle", "dash"),
    "draft": ("idle", "dots"),
    "sealed": ("ok", "lock"),
    "retired": ("idle", "dash"),
    "fetching": ("running", "play"),
    "loading": ("running", "play"),
    "warming": ("running", "play"),
    "ready": ("ok", "check"),
    "draining": ("waiting", "drain"),
    "gone": ("idle", "dash"),
    "awake": ("ok", "dot"),
    "asleep": ("idle", "moon"),
    "waking": ("running", "play"),
    "requested": ("waiting", "dots"),
    "awaiting_approval": ("waiting", "question"),
    "preparing": ("running", "play"),
    "shadowing": ("running", "play"),
    "shifting": ("running", "play"),
    "paused": ("waiting", "pause"),
    "baking": ("running", "play"),
    "promoted": ("ok", "check"),
    "second_look": ("waiting", "back"),
    "rolling_back": ("bad", "back"),
    "rolled_back": ("bad", "back"),
    "reverted": ("bad", "back"),
    "ended": ("waiting", "stop"),
    "stuck": ("bad", "alert"),
    "rejected": ("idle", "dash"),
    "superseded": ("idle", "dash"),
    "worse": ("bad", "cross"),
    "over_the_limit": ("bad", "cross"),
    "fine": ("ok", "check"),
    "on": ("ok", "check"),
    "off": ("idle", "dash"),
    "pending": ("waiting", "dots"),
    "delivered": ("ok", "check"),
    "gave_up": ("bad", "alert"),
    "withdrawn": ("idle", "dash"),
    # of people, tokens, nodes, keys and the like
    "serves": ("ok", "dot"),
    "active": ("ok", "check"),
    "healthy": ("ok", "check"),
    "verified": ("ok", "lock"),
    "live": ("ok", "dot"),
    "unhealthy": ("bad", "cross"),
    "unproven": ("waiting", "question"),
    "silent": ("bad", "alert"),
    "lost": ("bad", "alert"),
    "drifted": ("bad", "alert"),
    "expired": ("idle", "clock"),
    "expires_soon": ("waiting", "clock"),
    "deactivated": ("idle", "lock"),
    "cordoned": ("waiting", "lock"),
    "frozen": ("waiting", "lock"),
    "waiting": ("waiting", "clock"),
    "void": ("idle", "cross"),
    "entered": ("ok", "check"),
    "approved": ("ok", "check"),
    "unknown": ("idle", "question"),
    # of capabilities
    "run on a GPU": ("ok", "check"),
    "run": ("idle", "check"),
    "from documents": ("waiting", "question"),
    "never run": ("idle", "dash"),
}
#: Words of other parts that no state machine has: (kind, icon) of a plain kind, for parts that only know how bad it is.
KINDS: Final[dict[str, str]] = {"ok": "check", "running": "play", "waiting": "clock", "bad": "alert", "idle": "dash"}


def look_of(word: str) -> tuple[str, str]:
    """(kind, icon) of a state's word; those of nothing in particular for a word that nobody knows."""
    return WORDS.get(word, ("idle", "dot"))
