"""Who sees the credential of requests that force a release."""

from __future__ import annotations

from accounts.core.access import Actor, Verb, may
from serving.models import Environment
from serving.traffic.adapters.forced_key import forced_key


def shown_forced_key(actor: Actor, environment: Environment) -> str:
    """The environment's key, for its administrators; empty for others, and if no release may be forced there."""
    is_shown = environment.allows_forced_release and may(actor, Verb.ADMINISTER, "*")
    return forced_key(environment.slug, environment.forced_key_number) if is_shown else ""
