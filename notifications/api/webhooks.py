"""Webhooks over REST."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import status
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import (
    CharField,
    ChoiceField,
    IntegerField,
    ListField,
    ModelSerializer,
    SerializerMethodField,
)
from rest_framework.views import APIView

from accounts.api.requests import IF_MATCH, StrictSerializer, actor_of, expected_version, read_body
from accounts.api.responses import versioned
from accounts.api.shapes import Shape, described
from notifications import actions, queries
from notifications.actions.webhooks import OVERLAP_S
from notifications.core.delivery import DeliveryState, ReceiverKind
from notifications.core.formats import WebhookFormat
from notifications.core.webhook import LONGEST_TARGET, TEST
from notifications.dispatcher.rounds import send_test
from notifications.models import Attempt, Delivery, Webhook

_VERBS_HELP = "patterns of events: *, rollout.*, or exactly rollout.rolled_back"


class WebhookIn(StrictSerializer):
    team: str | None = described("of the events; null: every team, for administrators", required=False, default=None)
    kind = ChoiceField(
        choices=[ReceiverKind.WEBHOOK.value, ReceiverKind.EMAIL.value], default=ReceiverKind.WEBHOOK.value
    )
    format: WebhookFormat = described("of a webhook; `signed` if none is named", required=False)
    target: str = described(
        "https://host/path, or an e-mail address; PagerDuty's own may be left out",
        required=False,
        max_length=LONGEST_TARGET,
    )
    routing_key: str = described("PagerDuty's integration key; never shown again", required=False, max_length=100)
    verbs = ListField(child=CharField(max_length=60), help_text=_VERBS_HELP)
    title = CharField(required=False, default="", allow_blank=True, max_length=120)


class WebhookChange(StrictSerializer):
    target = CharField(required=False, max_length=LONGEST_TARGET)
    routing_key: str = described("PagerDuty's; never shown again", required=False, max_length=100)
    verbs = ListField(required=False, child=CharField(max_length=60), help_text=_VERBS_HELP)
    title = CharField(required=False, allow_blank=True, max_length=120)
    is_active: bool = described("false: it gets no events, also not later", required=False)


class RotateIn(StrictSerializer):
    overlap_s: float = described(
        "seconds for which the previous secret signs as well; 0: it ends at once", required=False, default=OVERLAP_S
    )


class ReplayIn(StrictSerializer):
    since: datetime = described("events from then on are sent, those sent before once more")


class ReplayOut(Shape):
    deliveries: int = described("deliveries that are pending again")


class WebhookOut(ModelSerializer[Webhook]):
    team = CharField(source="team.slug", allow_null=True, default=None)
    verbs = ListField(child=CharField())
    format = CharField(help_text="of WebhookFormat; empty for an e-mail address")
    target = CharField(help_text="as far as it may be shown: an address that is a secret ends in …")
    fingerprint = CharField(help_text="of the secret address or routing key, to compare two webhooks")
    waiting = IntegerField(help_text="deliveries to come", default=0)
    last_state = CharField(help_text="of the last delivery that ended", default="")

    class Meta:
        model = Webhook
        fields = [
            "id",
            "team",
            "kind",
            "format",
            "target",
            "fingerprint",
            "title",
            "verbs",
            "is_active",
            "previous_until",
            "waiting",
            "last_state",
            "created_by",
            "created_at",
            "version",
        ]


class WebhookMade(WebhookOut):
    secret = SerializerMethodField(help_text="shown once; empty if the format has no signature")

    class Meta(WebhookOut.Meta):
        fields = [*WebhookOut.Meta.fields, "secret"]

    def get_secret(self, webhook: Webhook) -> str:
        return str(self.context["secret"])


class AttemptOut(ModelSerializer[Attempt]):
    class Meta:
        model = Attempt
        fields = ["number", "at", "ended_at", "status_code", "error", "snippet", "duration_ms"]


class DeliveryOut(ModelSerializer[Delivery]):
    verb = CharField(source="event.verb", default=TEST)
    seq = IntegerField(source="event_id", allow_null=True)
    person = CharField(source="person.username", allow_null=True, default=None, help_text="of a mail to one person")
    attempts = AttemptOut(source="tries", many=True)

    class Meta:
        model = Delivery
        fields = ["id", "verb", "seq", "person", "state", "due_at", "created_at", "ended_at", "attempts"]


class WebhooksView(ListAPIView[Webhook]):
    """Webhooks and e-mail addresses that the caller may manage, by number."""

    serializer_class = WebhookOut
    pagination_ordering = "pk"

    def get_queryset(self) -> Any:
        return queries.webhooks_of(actor_of(self.request))

    @extend_schema(request=WebhookIn, responses={201: WebhookMade})
    def post(self, request: Request) -> Response:
        """Creates one. Its secret is in the answer, and nowhere after that."""
        sent = read_body(WebhookIn, request)
        made, secret = actions.create_webhook(actor=actor_of(request), **sent)
        return _webhook(request, made.pk, status.HTTP_201_CREATED, secret=secret)


class WebhookView(APIView):
    @extend_schema(responses=WebhookOut)
    def get(self, request: Request, webhook_id: int) -> Response:
        return _webhook(request, webhook_id)

    @extend_schema(request=WebhookChange, responses=WebhookOut, parameters=[IF_MATCH])
    def patch(self, request: Request, webhook_id: int) -> Response:
        """Changes its target, verbs or title, or turns it off and on."""
        actor = actor_of(request)
        row = queries.get_webhook(actor, webhook_id)
        sent = read_body(WebhookChange, request)
        actions.change_webhook(actor=actor, webhook=row, expected_version=expected_version(request), changes=sent)
        return _webhook(request, webhook_id)

    @extend_schema(responses={204: None}, parameters=[IF_MATCH])
    def delete(self, request: Request, webhook_id: int) -> Response:
        """Deletes the webhook, its pending deliveries and its log."""
        actor = actor_of(request)
        row = queries.get_webhook(actor, webhook_id)
        actions.delete_webhook(actor=actor, webhook=row, expected_version=expected_version(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


class WebhookRotateView(APIView):
    @extend_schema(request=RotateIn, responses=WebhookMade, parameters=[IF_MATCH])
    def post(self, request: Request, webhook_id: int) -> Response:
        """A new secret, shown this once. The previous one signs as well for a day, or for `overlap_s`."""
        actor = actor_of(request)
        row = queries.get_webhook(actor, webhook_id)
        sent = read_body(RotateIn, request)
        _, secret = actions.rotate_secret(actor=actor, webhook=row, expected_version=expected_version(request), **sent)
        return _webhook(request, webhook_id, secret=secret)


class WebhookTestView(APIView):
    @extend_schema(request=None, responses=DeliveryOut)
    def post(self, request: Request, webhook_id: int) -> Response:
        """Sends a `webhook.test` now and returns its delivery: `state` is delivered or gave_up."""
        actor = actor_of(request)
        row = queries.get_webhook(actor, webhook_id)
        return Response(DeliveryOut(send_test(actor=actor, webhook=row)).data)


class WebhookReplayView(APIView):
    @extend_schema(request=ReplayIn, responses={202: ReplayOut})
    def post(self, request: Request, webhook_id: int) -> Response:
        """Sends every event since a time, once more or for the first time. Harmless to repeat."""
        actor = actor_of(request)
        row = queries.get_webhook(actor, webhook_id)
        sent = read_body(ReplayIn, request)
        count = actions.replay_since(actor=actor, webhook=row, **sent)
        return Response(ReplayOut({"deliveries": count}).data, status=status.HTTP_202_ACCEPTED)


@extend_schema(parameters=[OpenApiParameter("state", str, enum=[state.value for state in DeliveryState])])
class DeliveriesView(ListAPIView[Delivery]):
    """The delivery log, newest first."""

    serializer_class = DeliveryOut
    queryset = Delivery.objects.none()
    pagination_ordering = ("-created_at", "-pk")

    def get_queryset(self) -> Any:
        if getattr(self, "swagger_fake_view", False):
            return self.queryset
        rows = queries.deliveries_of(queries.get_webhook(actor_of(self.request), self.kwargs["webhook_id"]))
        state = self.request.query_params.get("state")
        return rows.filter(state=state) if state else rows


class DeliveryView(APIView):
    @extend_schema(responses=DeliveryOut)
    def get(self, request: Request, webhook_id: int, delivery_id: UUID) -> Response:
        row = queries.get_webhook(actor_of(request), webhook_id)
        return Response(DeliveryOut(queries.get_delivery(row, delivery_id)).data)


class DeliveryReplayView(APIView):
    @extend_schema(request=None, responses={202: ReplayOut})
    def post(self, request: Request, webhook_id: int, delivery_id: UUID) -> Response:
        """Sends one delivery again, with the same id and body. Harmless to repeat while it is on its way."""
        actor = actor_of(request)
        delivery = queries.get_delivery(queries.get_webhook(actor, webhook_id), delivery_id)
        count = int(actions.replay_delivery(actor=actor, delivery=delivery))
        return Response(ReplayOut({"deliveries": count}).data, status=status.HTTP_202_ACCEPTED)


def _webhook(request: Request, pk: int, code: int = status.HTTP_200_OK, *, secret: str | None = None) -> Response:
    row = queries.get_webhook(actor_of(request), pk)
    shown = WebhookOut(row) if secret is None else WebhookMade(row, context={"secret": secret})
    return versioned(shown, code, {"Cache-Control": "no-store"})
