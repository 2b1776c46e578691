from django.urls import path

from audit.api import events

urlpatterns = [
    path("events", events.EventsView.as_view()),
    path("audit", events.AuditView.as_view()),
]
