"""Addresses of golden sets, gate runs and reports under the API's."""

from django.urls import path

from validators.api import capacity, comparisons, gate_runs, golden_check, policies

urlpatterns = [
    path("models/<slug:slug>/gate-policy:explain", policies.GatePolicyView.as_view()),
    path("models/<slug:slug>/golden-sets:check", golden_check.GoldenCheckView.as_view()),
    path("models/<slug:slug>/golden-sets", gate_runs.GoldenSetsView.as_view()),
    path("models/<slug:slug>/releases/<str:name>/gate-runs", gate_runs.ReleaseGateRunsView.as_view()),
    path("models/<slug:slug>/releases/<str:name>/diff", gate_runs.DiffView.as_view()),
    path("models/<slug:slug>/releases/<str:name>/disagreements", comparisons.DisagreementsView.as_view()),
    path("models/<slug:slug>/releases/<str:name>/capacity-plan", capacity.CapacityPlanView.as_view()),
    path("models/<slug:slug>/releases/<str:name>/envelope", capacity.EnvelopeView.as_view()),
    path("models/<slug:slug>/releases/<str:name>/measured-envelope", capacity.MeasuredEnvelopeView.as_view()),
    path("models/<slug:slug>/releases/<str:name>/mlbom", gate_runs.MlBomView.as_view()),
    path("gate-runs/<int:pk>", gate_runs.GateRunView.as_view()),
    path("gate-runs/<int:pk>/wait", gate_runs.GateRunWaitView.as_view()),
    path("gate-runs/<int:pk>/log", gate_runs.GateRunLogView.as_view()),
    path("gate-runs/<int:pk>/cancel", gate_runs.CancelView.as_view()),
    path("reports/<str:digest>", gate_runs.ReportView.as_view()),
]
