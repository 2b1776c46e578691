"""REST view of the inbox: what waits for a person's yes, over all rollouts and releases that the caller may read."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import actor_of
from accounts.api.responses import OnePage
from accounts.api.shapes import Shape, described
from accounts.core.addresses import API
from rollouts.queries.inbox import WaitingApproval, WaitingWaiver, waiting_approvals, waiting_waivers, with_changes

#: More wait for nobody: each active rollout is one row at most.
MOST = 500


class WaitingOut(Shape):
    """A stage of a rollout that lacks approvals (`approval`), or a release whose code nobody has waived (`waiver`)."""

    kind = serializers.ChoiceField(choices=["approval", "waiver"])
    model: str
    release: str = described("r14")
    manifest_digest: str
    report_digest: str
    policy_digest: str
    environment: str | None
    rollout: int | None
    version: int = described("for If-Match, of the rollout or the release")
    stage: str | None = described("start, step 2, …, bake or promote")
    needed: int | None
    by: list[str] = described("whose approval of this stage counts now")
    is_held: bool = described("it stands still until then; else the yes is given beforehand")
    since: datetime
    valid_s: float | None = described("how long an approval counts")
    kinds: list[str] = described("of the waivers that are missing")
    changes: list[str] = described("against stable, a sentence each")
    will: str = described("what a yes leads to")
    may_decide: bool
    why_not: str = described("why the caller may not decide")
    url: str = described("POST …/approve and …/reject, or …/waivers, below it")


class WaitingPage(OnePage):
    results: list[WaitingOut]


class ApprovalsView(APIView):
    @extend_schema(
        operation_id="approvals_list",
        responses=WaitingPage,
        parameters=[OpenApiParameter("mine", bool, description="true: only what the caller may decide")],
    )
    def get(self, request: Request) -> Response:
        """What waits for a yes or no: for the caller first, then for others, what waits longest first."""
        actor = actor_of(request)
        rows = [_approval(one) for one in with_changes(waiting_approvals(actor, most=MOST))]
        rows += [_waiver(one) for one in waiting_waivers(actor)]
        if request.query_params.get("mine", "").lower() in {"1", "true", "yes"}:
            rows = [row for row in rows if row["may_decide"]]
        rows.sort(key=lambda row: not row["may_decide"])
        return Response(WaitingPage({"results": rows}).data)


def _approval(one: WaitingApproval) -> dict[str, Any]:
    rollout = one.rollout
    return {
        "kind": "approval",
        "model": rollout.model.slug,
        "release": rollout.candidate.name,
        "manifest_digest": one.digests.manifest,
        "report_digest": one.digests.report,
        "policy_digest": one.digests.policy,
        "environment": rollout.environment.slug,
        "rollout": rollout.pk,
        "version": rollout.version,
        "stage": one.stage,
        "needed": one.needed,
        "by": list(one.by),
        "is_held": one.is_held,
        "since": one.since,
        "valid_s": one.valid_s,
        "kinds": [],
        "changes": list(one.changes),
        "will": one.will,
        "may_decide": not one.why_not,
        "why_not": one.why_not,
        "url": f"{API}/rollouts/{rollout.pk}",
    }


def _waiver(one: WaitingWaiver) -> dict[str, Any]:
    release = one.release
    return {
        "kind": "waiver",
        "model": release.model.slug,
        "release": release.name,
        "manifest_digest": release.digest,
        "report_digest": "",
        "policy_digest": "",
        "environment": None,
        "rollout": None,
        "version": release.version,
        "stage": None,
        "needed": None,
        "by": [],
        "is_held": True,
        "since": release.sealed_at,
        "valid_s": None,
        "kinds": list(one.kinds),
        "changes": [],
        "will": one.will,
        "may_decide": not one.why_not,
        "why_not": one.why_not,
        "url": f"{API}/models/{release.model.slug}/releases/{release.name}",
    }
