from django.urls import path

from notifications.api import webhooks

urlpatterns = [
    path("webhooks", webhooks.WebhooksView.as_view()),
    path("webhooks/<int:webhook_id>", webhooks.WebhookView.as_view()),
    path("webhooks/<int:webhook_id>/rotate", webhooks.WebhookRotateView.as_view()),
    path("webhooks/<int:webhook_id>/test", webhooks.WebhookTestView.as_view()),
    path("webhooks/<int:webhook_id>/replay", webhooks.WebhookReplayView.as_view()),
    path("webhooks/<int:webhook_id>/deliveries", webhooks.DeliveriesView.as_view()),
    path("webhooks/<int:webhook_id>/deliveries/<uuid:delivery_id>", webhooks.DeliveryView.as_view()),
    path("webhooks/<int:webhook_id>/deliveries/<uuid:delivery_id>/replay", webhooks.DeliveryReplayView.as_view()),
]
