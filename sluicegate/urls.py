"""Every address: those of the API for programs, the rest for people."""

from __future__ import annotations

from django.urls import include, path, re_path
from drf_spectacular.views import SpectacularJSONAPIView

from accounts.core.addresses import API
from sluicegate.api import unknown_address
from web.pages.session import server_error

_API = API.removeprefix("/")
API_APPS = ["accounts", "registry", "serving", "validators", "rollouts", "audit", "insights", "notifications"]

urlpatterns = [
    path(
        f"{_API}/schema",
        SpectacularJSONAPIView.as_view(permission_classes=[], authentication_classes=[]),
        name="api-schema",
    ),
    *(path(f"{_API}/", include(f"{app}.urls")) for app in API_APPS),
    path(f"{_API}/", include("web.api")),
    re_path(r"^api/", unknown_address),
    path("", include("web.urls")),
]

handler500 = server_error
