from django.urls import path

from insights.api import incidents
from insights.api.diagnosis import DiagnosisView
from insights.api.targets import PrometheusTargetsView

urlpatterns = [
    path("prometheus-targets", PrometheusTargetsView.as_view()),
    path("models/<slug:slug>/diagnosis", DiagnosisView.as_view()),
    path("incidents", incidents.IncidentsView.as_view()),
    path("incidents/<int:incident_id>", incidents.IncidentView.as_view()),
    *(path(f"incidents/<int:incident_id>/{verb}", view.as_view()) for verb, view in incidents.VERB_VIEWS.items()),
]
