"""The judge alone: counters of any two releases in, a verdict out."""

from __future__ import annotations

import base64
import binascii
import math
import time
from datetime import UTC, datetime
from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.utils import OpenApiExample, OpenApiResponse, extend_schema
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import CharField, DictField, FloatField, ListField, ValidationError
from rest_framework.views import APIView

from accounts.api.authentication import BearerTokenAuthentication
from accounts.api.requests import StrictSerializer, actor_of, read_body
from accounts.api.shapes import Shape, described
from accounts.core.access import Actor
from accounts.models import Token, User
from ledger.core.errors import Refused, StateChanged
from rollouts.actions.judgement_windows import require_judge, window_start
from rollouts.core.evidence import Tolerance
from rollouts.core.judgement import (
    MOST_POINTS,
    CounterJudgement,
    JudgementVerdict,
    JudgeQuestion,
    judge,
    readings_of,
    series_problem,
    unread,
)
from rollouts.engine.judged_history import readings_since
from rollouts.queries.prometheus_guards import NOT_CONFIGURED
from serving.ports import CounterQuery
from serving.traffic.core.promql import MOST_CHARACTERS
from serving.wiring import counter_history

_DEFAULT = JudgeQuestion(has_stable=True)
_LONGEST_KEY = 200


class ArmIn(StrictSerializer):
    points = ListField(
        child=ListField(child=FloatField(), min_length=3, max_length=3),
        required=False,
        max_length=MOST_POINTS,
        help_text="[seconds since 1970, bad requests, all requests]: counters that only grow",
    )
    bad_query: str = described("PromQL of one counter: the bad requests", required=False, max_length=MOST_CHARACTERS)
    total_query: str = described("PromQL of one counter: all requests", required=False, max_length=MOST_CHARACTERS)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if set(attrs) not in ({"points"}, {"bad_query", "total_query"}):
            raise ValidationError("Send either points, or bad_query and total_query.")
        if "points" in attrs and (problem := series_problem(attrs["points"], time.time())):
            raise ValidationError({"points": problem})
        return attrs


class ToleranceIn(StrictSerializer):
    ratio = FloatField(default=1.0, min_value=1, max_value=100)
    plus_frac = FloatField(default=0.0, min_value=0, max_value=1)


def _chance(default: float, text: str) -> FloatField:
    return FloatField(default=default, min_value=1e-6, max_value=0.5, help_text=text)


class JudgementIn(StrictSerializer):
    candidate: ArmIn
    stable: ArmIn = described(
        "counted at the same time; without it the candidate is held to max_frac alone", required=False
    )
    max_frac: float = described(
        "the objective: share of bad requests, in [0, 1]", required=False, min_value=0.000001, max_value=0.999
    )
    fail_over: ToleranceIn = described(
        "worse than ratio × the reference's share + plus_frac fails; 1.2 and 0.005 by default", required=False
    )
    pass_within: ToleranceIn = described(
        "within ratio × the reference's share + plus_frac passes; 2 and 0.005 by default", required=False
    )
    alpha_fail = _chance(_DEFAULT.alpha_fail, "chance that a sound candidate ever fails, however often it is judged")
    alpha_pass = _chance(_DEFAULT.alpha_pass, "chance that a candidate beyond pass_within ever passes")
    min_requests: int = described("of the candidate, to pass", default=0, min_value=0, max_value=10**9)
    words: str = described("noun of the bad requests, for the sentence", default=_DEFAULT.words, max_length=60)
    start: datetime = described("of queries: start of the window; keep it the same from call to call", required=False)
    key: str = described(
        "of queries, in place of start: your first call with this key starts the window",
        required=False,
        max_length=_LONGEST_KEY,
    )
    step_s: int = described(
        "of queries: seconds between two readings; the scrape interval", default=15, min_value=1, max_value=60
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        arms = [attrs["candidate"], *([attrs["stable"]] if "stable" in attrs else [])]
        if len({"points" in arm for arm in arms}) > 1:
            raise ValidationError({"stable": "Send points of both arms, or queries of both."})
        if "stable" not in attrs and "max_frac" not in attrs:
            raise ValidationError({"max_frac": "Without a stable arm, send max_frac to hold the candidate to."})
        is_asked = "points" not in arms[0]
        if is_asked != (("start" in attrs) != ("key" in attrs)):
            said = (
                "Send either start or key with queries, so that each call judges the same window; neither with points."
            )
            raise ValidationError({"start": said})
        stamps = [[point[0] for point in arm.get("points", ())] for arm in arms]
        if len(stamps) > 1 and stamps[0] != stamps[1]:
            raise ValidationError({"stable": "The points of both arms must have the same times."})
        return attrs


class JudgedArmOut(Shape):
    bad: int
    total: int
    share: float = described("bad divided by total; 0 without requests")


class JudgementEvidenceOut(Shape):
    """Natural logarithms of e-values, each beside the bar that it has to reach."""

    log_e_worse: float = described("the candidate is worse than stable")
    log_e_over: float = described("the candidate is over the objective")
    bar_fail: float
    log_e_fine: float = described("the candidate is within pass_within")
    bar_pass: float
    dispersion: float = described("how much bad requests come in clumps; evidence is divided by it")


class JudgementOut(Shape):
    verdict: JudgementVerdict
    code: str = described("proven, worse_than_stable, objective_breached, not_proven, both_arms_bad, no_data")
    sentence: str
    requests_to_go: int | None = described(
        "further requests of the candidate like those so far until it passes; null: unknown"
    )
    candidate: JudgedArmOut
    stable: JudgedArmOut | None
    evidence: JudgementEvidenceOut
    since: datetime | None = described("first reading")
    until: datetime | None = described("last reading that the verdict rests on")


class FlaggerIn(Shape):
    """The body that Flagger sends. Fields of other versions are ignored."""

    name = CharField(max_length=253)
    namespace = CharField(max_length=253)
    phase = CharField(max_length=60)
    checksum = CharField(max_length=60, required=False, allow_blank=True, default="")
    metadata = DictField(child=CharField(max_length=MOST_CHARACTERS, allow_blank=True))


#: `metadata` of Flagger holds text alone: its name → (arm or "", field, how it is read).
_METADATA: dict[str, tuple[str, str, Any]] = {
    **{
        f"{arm}_{query}": (arm, query, str) for arm in ("candidate", "stable") for query in ("bad_query", "total_query")
    },
    **{name: ("", name, float) for name in ("max_frac", "alpha_fail", "alpha_pass")},
    **{name: ("", name, int) for name in ("min_requests", "step_s")},
    "words": ("", "words", str),
}
_PASS_ON = {"passed": {"passed"}, "not_failed": {"passed", "inconclusive"}}


class BasicTokenAuthentication(BearerTokenAuthentication):
    """The token as the password of the address, for callers that send no headers of ours."""

    def authenticate(self, request: Request) -> tuple[User, Token] | None:
        kind, _, coded = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "basic":
            return super().authenticate(request)
        try:
            secret = base64.b64decode(coded, validate=True).decode("ascii").partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            raise AuthenticationFailed("The Authorization header must read `Basic <user:token>` in base64.") from None
        try:
            token = self._token(secret, request)
        except Refused as error:
            raise AuthenticationFailed(error.message, code=error.code) from None
        return token.user, token


class BasicScheme(OpenApiAuthenticationExtension):
    target_class = "rollouts.api.judgements.BasicTokenAuthentication"
    name = "basic"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "basic"}


class JudgementsView(APIView):
    @extend_schema(operation_id="judgements_make", request=JudgementIn, responses=JudgementOut)
    def post(self, request: Request) -> Response:
        """Judges counters of a candidate against those of stable, an objective, or both. Keeps nothing but the start of a key's window."""
        actor = actor_of(request)
        require_judge(actor)
        return Response(_shown(_judged(actor, read_body(JudgementIn, request))))


class FlaggerView(APIView):
    authentication_classes = [BasicTokenAuthentication]

    @extend_schema(
        operation_id="judgements_flagger",
        request=FlaggerIn,
        responses={200: JudgementOut, 409: OpenApiResponse(description="judgement_not_passed")},
        examples=[
            OpenApiExample(
                "a webhook of type confirm-promotion",
                value={
                    "name": "podinfo",
                    "namespace": "test",
                    "phase": "WaitingPromotion",
                    "checksum": "85d557f47b",
                    "metadata": {},
                },
                request_only=True,
            )
        ],
    )
    def post(self, request: Request) -> Response:
        """Answers Flagger's webhook: 200 lets the canary go on, 409 halts it. The queries are in `metadata`."""
        actor = actor_of(request)
        require_judge(actor)
        form = FlaggerIn(data=request.data)
        form.is_valid(raise_exception=True)
        given = form.validated_data
        metadata = dict(given["metadata"])
        passes = _PASS_ON.get(metadata.pop("pass_on", "passed"))
        if passes is None:
            raise ValidationError({"metadata": f"pass_on is one of {', '.join(_PASS_ON)}."})
        body = _from_metadata(metadata)
        body["key"] = f"{given['namespace']}/{given['name']}/{given['checksum']}"[:_LONGEST_KEY]
        read = JudgementIn(data=body)
        read.is_valid(raise_exception=True)
        shown = _shown(_judged(actor, dict(read.validated_data)))
        if shown["verdict"] not in passes:
            raise StateChanged("judgement_not_passed", shown["sentence"], judgement=shown)
        return Response(shown)


def _from_metadata(metadata: dict[str, str]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for name, text in metadata.items():
        if name not in _METADATA:
            raise ValidationError({"metadata": f"{name} is unknown; use pass_on, {', '.join(_METADATA)}."})
        arm, field, kind = _METADATA[name]
        try:
            (body.setdefault(arm, {}) if arm else body)[field] = kind(text)
        except ValueError:
            raise ValidationError({"metadata": f"{name} must be a number, not {text!r}."}) from None
    return body


def _judged(actor: Actor, given: dict[str, Any]) -> CounterJudgement:
    names = ("max_frac", "alpha_fail", "alpha_pass", "min_requests", "words", "fail_over", "pass_within")
    stated: dict[str, Any] = {name: given[name] for name in names if name in given}
    stated |= {name: Tolerance(**stated[name]) for name in names[-2:] if name in stated}
    question = JudgeQuestion(has_stable="stable" in given, **stated)
    arms = {name: given[name] for name in ("candidate", "stable") if name in given}
    if "points" in arms["candidate"]:
        series = [arm["points"] for arm in arms.values()]
        return judge(readings_of(series[0], series[1] if len(series) > 1 else None, question.guard.name), question)
    start = given["start"] if "start" in given else window_start(actor, given["key"], _asked(given))
    since, step_s = int(start.timestamp()), given["step_s"]
    if "start" not in given:  # the step of a key's window grows with its age
        step_s = max(step_s, math.ceil((time.time() - since) / (MOST_POINTS - 2)))
    if (time.time() - since) / step_s >= MOST_POINTS:
        said = f"The window has more than {MOST_POINTS} readings. Use a longer step_s, or a later start."
        raise ValidationError({"start": said})
    metrics = counter_history()
    if metrics is None:
        return unread(NOT_CONFIGURED, question)
    queries = [
        CounterQuery(f"{arm} {name}", one[f"{name}_query"]) for arm, one in arms.items() for name in ("bad", "total")
    ]
    found = readings_since(metrics, queries, question, since=since, step_s=step_s)
    return unread(found, question) if isinstance(found, str) else judge(found, question)


def _asked(given: dict[str, Any]) -> dict[str, Any]:
    """Everything that has to stay the same while one window is judged."""
    return {name: dict(value) if isinstance(value, dict) else value for name, value in given.items() if name != "key"}


def _shown(made: CounterJudgement) -> dict[str, Any]:
    judged, question = made.judged, made.question

    def arm(bad: int, total: int) -> dict[str, Any]:
        return {"bad": bad, "total": total, "share": bad / total if total else 0.0}

    def instant(at: float | None) -> datetime | None:
        return None if at is None else datetime.fromtimestamp(at, tz=UTC)

    return dict(
        JudgementOut(
            {
                "verdict": made.verdict.value,
                "code": made.code,
                "sentence": made.sentence,
                "requests_to_go": made.requests_to_go,
                "candidate": arm(judged.bad_candidate, judged.candidate),
                "stable": arm(judged.bad_stable, judged.stable) if question.has_stable else None,
                "evidence": {
                    "log_e_worse": judged.log_e_worse,
                    "log_e_over": judged.log_e_over if question.max_frac else 0.0,
                    "bar_fail": question.bar_fail,
                    "log_e_fine": judged.log_e_fine,
                    "bar_pass": question.bar_pass,
                    "dispersion": judged.phi,
                },
                "since": instant(made.since),
                "until": instant(made.until),
            }
        ).data
    )
