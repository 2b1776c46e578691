from django.urls import path

from insights.api.targets import PrometheusTargetsView

urlpatterns = [path("prometheus-targets", PrometheusTargetsView.as_view())]
