"""Browser sessions, and their end: the caller's own, or anyone's for administrators."""

from __future__ import annotations

from typing import ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts import actions, queries
from accounts.api.requests import actor_of
from accounts.api.responses import OnePage
from accounts.api.users import readable_user
from accounts.core.access import require_own
from accounts.models import UserSession


class SessionOut(serializers.ModelSerializer[UserSession]):
    """A browser in which the user is signed in."""

    issuer = serializers.CharField(
        source="issuer.url", default=None, allow_null=True, help_text="the issuer of the sign-in; null: a password"
    )

    class Meta:
        model = UserSession
        fields: ClassVar = ["id", "browser", "address", "issuer", "begun_at", "seen_at"]


class SessionsPage(OnePage):
    results: list[SessionOut]


class UserSessionsView(APIView):
    @extend_schema(operation_id="users_sessions_list", responses=SessionsPage)
    def get(self, request: Request, username: str) -> Response:
        """Every living session, the latest used first: a handful, so there is one page."""
        user = readable_user(request, username)
        require_own(actor_of(request), user.pk)
        return Response(SessionsPage({"results": queries.sessions_of(user).select_related("issuer")}).data)


class SessionView(APIView):
    @extend_schema(operation_id="users_session_destroy", responses={204: None})
    def delete(self, request: Request, username: str, session_id: int) -> Response:
        """Ends the session: that browser's next request is not signed in."""
        session = queries.get_session(readable_user(request, username), session_id)
        actions.end_session(actor=actor_of(request), session=session)
        return Response(status=status.HTTP_204_NO_CONTENT)
