"""Addresses of the registry under the API's."""

from __future__ import annotations

from django.urls import path, re_path

from registry.api import (
    aliases,
    drafts,
    files,
    garbage_collection,
    headers,
    models,
    releases,
    reviews,
    signatures,
    uploads,
)
from registry.core.uploads import PART_PATH

urlpatterns = [
    path("models", models.ModelsView.as_view(), name="api-models"),
    path("models/<slug:slug>", models.ModelView.as_view(), name="api-model"),
    path("models/<slug:slug>/releases", releases.ReleasesView.as_view(), name="api-releases"),
    path("models/<slug:slug>/releases/<slug:name>", releases.ReleaseView.as_view(), name="api-release"),
    path(
        "models/<slug:slug>/releases/<slug:name>/files/<path:path>", files.FileView.as_view(), name="api-release-file"
    ),
    path("models/<slug:slug>/releases/<slug:name>/headers", headers.HeadersView.as_view(), name="api-headers"),
    path("models/<slug:slug>/releases/<slug:name>/waivers", releases.WaiversView.as_view(), name="api-waivers"),
    path("models/<slug:slug>/releases/<slug:name>/signature", signatures.SignatureView.as_view(), name="api-signature"),
    path(
        "models/<slug:slug>/releases/<slug:name>/attestations",
        signatures.AttestationsView.as_view(),
        name="api-attestations",
    ),
    path(
        "models/<slug:slug>/releases/<slug:name>/retire",
        garbage_collection.RetireView.as_view(),
        name="api-release-retire",
    ),
    path(
        "models/<slug:slug>/releases/<slug:name>/restore",
        garbage_collection.RestoreView.as_view(),
        name="api-release-restore",
    ),
    path("models/<slug:slug>/releases/<slug:name>/notes", reviews.NotesView.as_view(), name="api-notes"),
    path("models/<slug:slug>/releases/<slug:name>/comments", reviews.CommentsView.as_view(), name="api-comments"),
    path(
        "models/<slug:slug>/releases/<slug:name>/comments/<int:comment_id>/resolve",
        reviews.ResolveView.as_view(),
        name="api-comment-resolve",
    ),
    path("models/<slug:slug>/aliases", aliases.AliasesView.as_view(), name="api-aliases"),
    path("models/<slug:slug>/aliases/<slug:name>", aliases.AliasView.as_view(), name="api-alias"),
    path(
        "models/<slug:slug>/aliases/<slug:name>/history", aliases.AliasHistoryView.as_view(), name="api-alias-history"
    ),
    path("registry/collection", garbage_collection.CollectionView.as_view(), name="api-collection"),
    path("keys", signatures.KeysView.as_view(), name="api-keys"),
    path("drafts", drafts.DraftsView.as_view(), name="api-drafts"),
    path("releases/<uuid:release_id>", releases.DraftView.as_view(), name="api-draft"),
    path("releases/<uuid:release_id>/files/<path:path>", files.FileUploadView.as_view(), name="api-upload"),
    path("releases/<uuid:release_id>/seal", releases.SealView.as_view(), name="api-seal"),
    path("uploads", uploads.UploadsView.as_view(), name="api-uploads"),
    path("uploads/<uuid:upload_id>", uploads.UploadView.as_view(), name="api-upload-in-parts"),
    path("uploads/<uuid:upload_id>/parts:sign", uploads.SignView.as_view(), name="api-upload-sign"),
    path("uploads/<uuid:upload_id>:complete", uploads.CompleteView.as_view(), name="api-upload-complete"),
    re_path(f"^{PART_PATH}$", uploads.PartView.as_view(), name="api-upload-part"),
]
