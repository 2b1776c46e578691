"""Addresses under /api/v1/."""

from __future__ import annotations

from django.urls import path

from registry.api import files, models, releases, signatures

urlpatterns = [
    path("models", models.ModelsView.as_view(), name="api-models"),
    path("models/<slug:slug>", models.ModelView.as_view(), name="api-model"),
    path("models/<slug:slug>/releases", releases.ReleasesView.as_view(), name="api-releases"),
    path("models/<slug:slug>/releases/<slug:name>", releases.ReleaseView.as_view(), name="api-release"),
    path(
        "models/<slug:slug>/releases/<slug:name>/files/<path:path>", files.FileView.as_view(), name="api-release-file"
    ),
    path("models/<slug:slug>/releases/<slug:name>/waivers", releases.WaiversView.as_view(), name="api-waivers"),
    path("models/<slug:slug>/releases/<slug:name>/signature", signatures.SignatureView.as_view(), name="api-signature"),
    path(
        "models/<slug:slug>/releases/<slug:name>/attestations",
        signatures.AttestationsView.as_view(),
        name="api-attestations",
    ),
    path("keys", signatures.KeysView.as_view(), name="api-keys"),
    path("releases/<uuid:release_id>", releases.DraftView.as_view(), name="api-draft"),
    path("releases/<uuid:release_id>/files/<path:path>", files.UploadView.as_view(), name="api-upload"),
    path("releases/<uuid:release_id>/seal", releases.SealView.as_view(), name="api-seal"),
]
