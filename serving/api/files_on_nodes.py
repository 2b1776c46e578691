"""REST view of where a release's files are: on which of the nodes that may serve it, and how far the others are."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import actor_of
from accounts.api.responses import OnePage
from registry.queries import visible_release
from serving.core.prefetch import FilesStanding
from serving.queries.prefetch import files_on_nodes


class FilesOnOut(serializers.Serializer[Any]):
    """A node that may serve the release."""

    node = serializers.CharField()
    standing = serializers.ChoiceField(
        choices=[one.value for one in FilesStanding], allow_null=True, help_text="null: its agent does not tell"
    )
    size_bytes = serializers.IntegerField(allow_null=True)
    here_bytes = serializers.IntegerField(allow_null=True, help_text="of them, those of verified files that are there")
    trouble = serializers.CharField(allow_blank=True)


class FilesOnPage(OnePage):
    results = FilesOnOut(many=True)


class FilesOnNodesView(APIView):
    @extend_schema(operation_id="releases_files_on_nodes", responses=FilesOnPage)
    def get(self, request: Request, slug: str, name: str) -> Response:
        """Every node that may serve the release, and whether a server that is placed there needs a fetch: one page."""
        release = visible_release(actor_of(request), slug, name)
        return Response(FilesOnPage({"results": files_on_nodes(release)}).data)
