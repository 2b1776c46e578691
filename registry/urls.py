"""Addresses under /api/v1/."""

from __future__ import annotations

from django.urls import path

from registry import api

urlpatterns = [
    path("models", api.ModelsView.as_view(), name="api-models"),
    path("models/<slug:slug>", api.ModelView.as_view(), name="api-model"),
    path("models/<slug:slug>/releases", api.ReleasesView.as_view(), name="api-releases"),
    path("models/<slug:slug>/releases/<slug:name>", api.ReleaseView.as_view(), name="api-release"),
    path("models/<slug:slug>/releases/<slug:name>/files/<path:path>", api.FileView.as_view(), name="api-release-file"),
    path("models/<slug:slug>/releases/<slug:name>/waivers", api.WaiversView.as_view(), name="api-waivers"),
    path("releases/<uuid:release_id>", api.DraftView.as_view(), name="api-draft"),
    path("releases/<uuid:release_id>/files/<path:path>", api.UploadView.as_view(), name="api-upload"),
    path("releases/<uuid:release_id>/seal", api.SealView.as_view(), name="api-seal"),
]
