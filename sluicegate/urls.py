"""Every address: /api/v1/… for programs, the rest for people."""

from __future__ import annotations

from django.urls import include, path, re_path
from drf_spectacular.views import SpectacularJSONAPIView

from sluicegate.api import unknown_address

API_APPS = ["accounts", "registry", "serving", "validators", "rollouts", "audit", "notifications"]

urlpatterns = [
    path("api/v1/schema", SpectacularJSONAPIView.as_view(permission_classes=[], authentication_classes=[])),
    *(path("api/v1/", include(f"{app}.urls")) for app in API_APPS),
    re_path(r"^api/", unknown_address),
    path("", include("web.urls")),
]
