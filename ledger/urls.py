from django.urls import path

from ledger import api

urlpatterns = [
    path("events", api.EventsView.as_view()),
    path("audit", api.AuditView.as_view()),
]
