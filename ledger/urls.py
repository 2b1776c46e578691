from django.urls import path

from ledger import api

urlpatterns = [
    path("events", api.EventsView.as_view()),
    path("audit", api.AuditView.as_view()),
    path("webhooks", api.WebhooksView.as_view()),
    path("webhooks/<int:webhook_id>", api.WebhookView.as_view()),
    path("webhooks/<int:webhook_id>/rotate", api.WebhookRotateView.as_view()),
    path("webhooks/<int:webhook_id>/test", api.WebhookTestView.as_view()),
    path("webhooks/<int:webhook_id>/replay", api.WebhookReplayView.as_view()),
    path("webhooks/<int:webhook_id>/deliveries", api.DeliveriesView.as_view()),
    path("webhooks/<int:webhook_id>/deliveries/<uuid:delivery_id>", api.DeliveryView.as_view()),
    path("webhooks/<int:webhook_id>/deliveries/<uuid:delivery_id>/replay", api.DeliveryReplayView.as_view()),
]
