"""/api/v1/…: golden sets, gate runs, reports."""

from django.urls import path

from validators import api

urlpatterns = [
    path("models/<slug:slug>/golden-sets", api.GoldenSetsView.as_view()),
    path("models/<slug:slug>/releases/<str:name>/gate-runs", api.ReleaseGateRunsView.as_view()),
    path("models/<slug:slug>/releases/<str:name>/diff", api.DiffView.as_view()),
    path("models/<slug:slug>/releases/<str:name>/mlbom", api.MlBomView.as_view()),
    path("gate-runs/<int:pk>", api.GateRunView.as_view()),
    path("gate-runs/<int:pk>/cancel", api.CancelView.as_view()),
    path("reports/<str:digest>", api.ReportView.as_view()),
]
