"""REST views of signatures: public keys, a release's bundle, and every attestation about it."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_field, extend_schema_view
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import CharField, ChoiceField, JSONField, SerializerMethodField
from rest_framework.views import APIView

from accounts.api.requests import StrictSerializer, actor_of, read_body
from accounts.api.responses import OnePage
from accounts.api.shapes import Shape, described
from registry import actions, queries
from registry.core import oms
from registry.models import Attestation
from registry.signing import installation_keys


class KeyOut(Shape):
    """A public key whose signatures are accepted here."""

    key_id = CharField(source="public.key_id")
    use = ChoiceField(choices=[use.value for use in installation_keys.Use], help_text="what it signs, or signed")
    algorithm = ChoiceField(choices=["ed25519", "ecdsa-p256"], source="public.algorithm")
    is_current: bool = described("false: a former key, which signs no more")
    pem = CharField(source="public.pem")


class KeysOut(OnePage):
    results: list[KeyOut]


class RotateKeyIn(StrictSerializer):
    use = ChoiceField(choices=[use.value for use in installation_keys.Use], help_text="what the key signs")


class AttestationOut(Shape):
    """A signed in-toto statement, as a Sigstore bundle."""

    predicate_type: str
    about: str = described("the digest of what it tells: the manifest's, or a report's")
    key_id: str
    made_at: datetime
    bundle = SerializerMethodField()

    @extend_schema_field(JSONField())
    def get_bundle(self, attestation: Attestation) -> Any:
        return json.loads(attestation.bundle)


class KeysView(APIView):
    @extend_schema(operation_id="keys_list", responses=KeysOut)
    def get(self, request: Request) -> Response:
        """The public halves of this installation's keys, those that sign now first: a handful, so there is one page."""
        actor_of(request)
        for use in installation_keys.Use:
            installation_keys.present_key(use)
        return Response(KeysOut({"results": installation_keys.known_keys()}).data)

    @extend_schema(operation_id="keys_rotate", request=RotateKeyIn, responses={201: KeyOut})
    def post(self, request: Request) -> Response:
        """A new key signs from now on, and what the one before signed stays valid. For administrators."""
        use = installation_keys.Use(read_body(RotateKeyIn, request)["use"])
        _, public = actions.rotate_key(actor=actor_of(request), use=use)
        return Response(KeyOut(installation_keys.KnownKey(use, True, public)).data, status=201)


class SignatureView(APIView):
    @extend_schema(
        operation_id="releases_signature", responses={(200, oms.BUNDLE_TYPE): OpenApiResponse(OpenApiTypes.OBJECT)}
    )
    def get(self, request: Request, slug: str, name: str) -> HttpResponse:
        """The release's OpenSSF Model Signing bundle, byte by byte as it was made: save it as `model.sig`."""
        found = queries.signature_of(queries.visible_release(actor_of(request), slug, name))
        response = HttpResponse(found.bundle, content_type=oms.BUNDLE_TYPE)
        response["Content-Disposition"] = f'attachment; filename="{oms.SIGNATURE_FILE}"'
        response["X-Sluicegate-Key-Id"] = found.key_id
        return response

    @extend_schema(
        operation_id="releases_sign",
        request=None,
        responses={201: AttestationOut, 200: OpenApiResponse(AttestationOut, "that key had signed it already")},
    )
    def post(self, request: Request, slug: str, name: str) -> Response:
        """Signs with the present key, from the stored digests, unless that key signed it already."""
        actor = actor_of(request)
        made, is_new = actions.sign_release(actor=actor, release=queries.visible_release(actor, slug, name))
        return Response(AttestationOut(made).data, status=201 if is_new else 200)


@extend_schema_view(get=extend_schema(operation_id="releases_attestations", responses=AttestationOut(many=True)))
class AttestationsView(generics.ListAPIView[Any]):
    """Every signed statement about a release, newest first."""

    serializer_class = AttestationOut

    def get_queryset(self) -> Any:
        release = queries.visible_release(actor_of(self.request), self.kwargs["slug"], self.kwargs["name"])
        return release.attestations.all()
