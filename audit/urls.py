from django.urls import path

from audit.api import events, status

urlpatterns = [
    path("events", events.EventsView.as_view()),
    path("audit", events.AuditView.as_view()),
    path("status", status.StatusView.as_view()),
]
