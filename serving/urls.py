"""Addresses under /api/v1/."""

from __future__ import annotations

from django.urls import path

from serving import api, fit_api

urlpatterns = [
    path("models/<slug:slug>/releases/<str:name>/fit", fit_api.FitView.as_view(), name="release-fit"),
    path("environments", api.EnvironmentsView.as_view(), name="environments"),
    path("environments/<slug:slug>", api.EnvironmentView.as_view(), name="environment"),
    path("servers", api.ServersView.as_view(), name="servers"),
    path("runtimes", api.RuntimesView.as_view(), name="runtimes"),
]
