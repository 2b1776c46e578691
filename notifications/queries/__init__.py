"""Named reads of webhooks and their deliveries."""

from notifications.queries.webhooks import deliveries_of, events_for, get_delivery, get_webhook, webhooks_of

__all__ = ["deliveries_of", "events_for", "get_delivery", "get_webhook", "webhooks_of"]
