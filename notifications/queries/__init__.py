"""Named reads of webhooks and their deliveries."""

from notifications.queries.webhooks import (
    deliveries_of,
    events_for,
    get_delivery,
    get_webhook,
    given_up_on,
    webhooks_of,
)

__all__ = ["deliveries_of", "events_for", "get_delivery", "get_webhook", "given_up_on", "webhooks_of"]
