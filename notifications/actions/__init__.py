"""Changes to webhooks and their deliveries."""

from notifications.actions.alerts import wake_alerts
from notifications.actions.deliveries import replay_delivery, replay_since, wake_dispatcher
from notifications.actions.mail_choices import choose_mails
from notifications.actions.webhooks import change_webhook, create_webhook, delete_webhook, rotate_secret

__all__ = [
    "change_webhook",
    "choose_mails",
    "create_webhook",
    "delete_webhook",
    "replay_delivery",
    "replay_since",
    "rotate_secret",
    "wake_alerts",
    "wake_dispatcher",
]
