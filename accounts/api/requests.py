"""Parts of a request: its actor, its version and its body."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from django.conf import settings
from django.http import HttpRequest
from drf_spectacular.utils import OpenApiParameter, extend_schema_field
from rest_framework.exceptions import ErrorDetail, NotAuthenticated
from rest_framework.fields import SkipField, empty
from rest_framework.request import Request
from rest_framework.serializers import (
    BooleanField,
    CharField,
    Field,
    FloatField,
    IntegerField,
    JSONField,
    ListField,
    ValidationError,
)

from accounts import actions
from accounts.api.shapes import Shape
from accounts.core.access import Actor
from accounts.models import Token, User
from ledger.core.errors import Invalid, PreconditionRequired

_VERSION = re.compile(r'(?:W/)?"(?P<quoted>[0-9]{1,9})"|(?P<bare>[0-9]{1,9})')
IF_MATCH = OpenApiParameter(
    "If-Match", str, OpenApiParameter.HEADER, required=True, description="the version that was read"
)
#: Of verbs that only shut.
IF_MATCH_OR_ANY = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    required=True,
    description="the version that you read, or `*` for any version",
)
#: For changes that need no version.
IF_MATCH_OPTIONAL = OpenApiParameter(
    "If-Match", str, OpenApiParameter.HEADER, description="the version that was read; without it, any"
)


#: Where a request keeps its actor: (whose, Actor).
_ACTOR = "_sluicegate_actor"
#: In the state of an ASGI scope, a list that is made in front of Django, where it is wanted: not empty once somebody is known.
KNOWN = "known"


def actor_of(request: Request | HttpRequest) -> Actor:
    """The caller, narrowed by the scope of the token. Raises NotAuthenticated (401) without a sign-in.

    Read once for each request: a changed role counts from the next request on.
    """
    if not isinstance(request.user, User):
        raise NotAuthenticated
    auth = getattr(request, "auth", None)  # a page's request has none: it comes with a session
    token = auth if isinstance(auth, Token) else None
    whose, plain = (request.user.pk, token and token.pk), getattr(request, "_request", request)
    known = getattr(plain, _ACTOR, None)
    if known is None or known[0] != whose:
        known = whose, actions.actor_for(request.user, token, getattr(request.user, "held", None))
        setattr(plain, _ACTOR, known)
        _note_known(plain)
    return known[1]


def _note_known(plain: object) -> None:
    noted = getattr(plain, "scope", {}).get("state", {}).get(KNOWN)
    if noted is not None:
        noted.append(True)


def client_address(request: Request | HttpRequest) -> str:
    """The request's IP address, as seen by the outermost of our own proxies (SLUICEGATE_PROXIES of them)."""
    peer = str(request.META.get("REMOTE_ADDR", ""))
    seen = [one.strip() for one in request.META.get("HTTP_X_FORWARDED_FOR", "").split(",") if one.strip()]
    return seen[-settings.PROXIES] if 0 < settings.PROXIES <= len(seen) else peer


def expected_version(request: Request | HttpRequest) -> int:
    """The version in `If-Match`, written 3 or "3". Raises PreconditionRequired when absent, Invalid when it is no number."""
    raw = request.headers.get("If-Match", "").strip()
    if not raw:
        raise PreconditionRequired(
            "if_match_missing",
            "Send If-Match with the version you saw; GET the resource to learn it.",
            field="If-Match",
        )
    version = _VERSION.fullmatch(raw)
    if version is None:
        raise Invalid(
            "if_match_invalid", f'If-Match must be one version number such as "3", not {raw}.', field="If-Match"
        )
    return int(version["quoted"] or version["bare"])


def version_or_any(request: Request | HttpRequest) -> int | None:
    """The version in `If-Match`; None for `*`, which is any. Raises what `expected_version` does."""
    return None if request.headers.get("If-Match", "").strip() == "*" else expected_version(request)


def version_if_sent(request: Request | HttpRequest) -> int | None:
    """The version in `If-Match`; None without the header. Raises Invalid when it is no number."""
    return expected_version(request) if "If-Match" in request.headers else None


#: Fields of one object that are refused by name.
_MOST_UNKNOWN = 50
NON_FIELD_ERRORS = "non_field_errors"


class InvalidBody(ValidationError):
    """A body with mistakes. `problem_code` is the code of the whole problem, each mistake is an entry of `errors`."""

    def __init__(self, detail: Any, problem_code: str) -> None:
        super().__init__(detail)
        self.problem_code = problem_code


#: JSON distinguishes texts from numbers; REST framework alone would take "12" for 12, 12 for "12" and "yes" for true.
_TYPES: dict[type[Field[Any, Any, Any, Any]], tuple[type | tuple[type, ...], str, str]] = {
    CharField: (str, "This must be text.", "not_text"),
    IntegerField: (int, "This must be a whole number.", "not_a_whole_number"),
    FloatField: ((int, float), "This must be a number.", "not_a_number"),
    BooleanField: (bool, "This must be true or false.", "not_a_boolean"),
}


def _mistyped(field: Field[Any, Any, Any, Any], value: Any) -> Any:
    """Error detail for a value of the wrong JSON type, in REST framework's form, or None."""
    if isinstance(field, ListField) and isinstance(value, list):
        found = {i: wrong for i, inner in enumerate(value) if (wrong := _mistyped(field.child, inner)) is not None}
        return found or None
    for kind, (wanted, said, code) in _TYPES.items():
        is_wanted = isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))
        if isinstance(field, kind) and value is not None and not is_wanted:
            return [ErrorDetail(said, code)]
    return None


# A comment and no docstring: the schema would show it as that of every form.
# The one reader of request bodies. It refuses members that it does not know (a misspelt field must not pass for one that was
# left out) and values of another JSON type, and names every mistake at once. `problem_code` is that of the whole refusal.
class StrictSerializer(Shape):
    problem_code: ClassVar[str] = "invalid"

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return super().to_internal_value(data)  # refuses it: no object
        errors = self._unknown(data)
        for name, field in self.fields.items():
            if name in data and (wrong := _mistyped(field, data[name])) is not None:
                errors[name] = wrong
        try:
            read = super().to_internal_value(data)
        except ValidationError as error:
            raise ValidationError({**dict(error.detail), **errors}) from None  # type: ignore[arg-type]
        if errors:
            raise ValidationError(errors)
        return read

    def _unknown(self, data: Mapping[Any, Any]) -> dict[str, Any]:
        said = ErrorDetail(f"There is no such field; the fields here are {', '.join(self.fields)}.", "unknown_field")
        known = self.fields.keys()
        unknown = [str(name) for name in data if name not in known]
        errors = {name: [said] for name in unknown[:_MOST_UNKNOWN]}
        if rest := len(unknown) - len(errors):
            errors[NON_FIELD_ERRORS] = [ErrorDetail(f"{rest} more fields are unknown.", "unknown_field")]
        return errors


class PlainText(CharField):
    """Text as it was sent, also empty. The action checks it, and reports its mistakes beside those of the other fields."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_blank=True, trim_whitespace=False, **kwargs)
        self.validators = []


class DocumentField(JSONField):
    """JSON that an action reads by a schema of its own, which names every mistake in it, also that it is missing."""

    def validate_empty_values(self, data: Any) -> tuple[bool, Any]:
        if data is empty and self.default is not empty:
            return True, self.get_default()
        if data is empty and self.required and not isinstance(self.parent, DocumentSerializer):
            return True, None  # the action's schema refuses it
        if data is empty:
            raise SkipField
        return True, data


@extend_schema_field(str)
class DocumentText(DocumentField):
    """Text of such a document."""

    def __init__(self, *, default: Any = empty, **kwargs: Any) -> None:
        super().__init__(default=default, **kwargs)


# Bodies that are such a document themselves, with members that the action's schema refuses beside its other mistakes.
class DocumentSerializer(StrictSerializer):
    def to_internal_value(self, data: Any) -> Any:
        return {**data, **super().to_internal_value(data)}

    def _unknown(self, data: Mapping[Any, Any]) -> dict[str, Any]:
        return {}


def read_body(form: type[StrictSerializer], request: Request) -> dict[str, Any]:
    """The body's fields as the form reads them. Raises Invalid("not_an_object"), and InvalidBody with every mistake."""
    if not isinstance(request.data, Mapping):
        raise Invalid("not_an_object", "The body must be a JSON object. Send {…}.")
    read = form(data=request.data)
    if not read.is_valid():
        raise InvalidBody(read.errors, form.problem_code)
    return dict(read.validated_data)
