"""Every address: /api/v1/… for programs, the rest for people."""

from __future__ import annotations

from importlib.util import find_spec

from django.urls import include, path

API_APPS = ["accounts", "ledger", "registry", "serving", "validators", "rollouts"]

urlpatterns = [
    path("api/v1/", include([path("", include(f"{app}.urls")) for app in API_APPS if find_spec(f"{app}.urls")])),
]
if find_spec("web.urls"):
    urlpatterns.append(path("", include("web.urls")))
