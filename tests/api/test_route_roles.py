"""Every operation of the API, asked by every kind of caller: who is let in is what the access table says, and nothing breaks."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from django.urls import resolve
from django.utils import timezone

from accounts.core.access import MAY, Role, Verb
from tests.api.route_world import DATA, MODEL, OURS, Caller, World, callers, upload_body, world
from tests.support.house import access_matrix
from tests.support.house.api_schema import SCHEMA
from tests.support.servers.issuer import Issuer
from tests.support.worlds.factories import OBJECTIVES, RUNTIME
from tests.support.worlds.issuer_setup import GITHUB_RULE
from tests.support.worlds.registry_samples import release_yaml

pytestmark = [pytest.mark.django_db, pytest.mark.slow]  # every operation by every caller

#: Rights that are no verb of the table: anybody; whoever signed in; the address is its own permission.
OPEN, SIGNED_IN, BY_ADDRESS = "open", "signed in", "by address"
V = Verb


@dataclass(frozen=True)
class Ask:
    """An operation's right, and a request that is in order. `body` and `headers` get the world."""

    right: Verb | str
    body: Callable[[World], Any] = lambda world: None
    headers: Callable[[World], dict[str, str]] = lambda world: {}
    query: str = ""
    kind: str = "application/json"
    #: Who may not manage it is not told that it is there.
    is_hidden: bool = False
    #: Statuses of its own for those who may: what is named does not suffice here, whoever asks.
    also: frozenset[int] = field(default_factory=frozenset)


def if_match(of: str, *, is_needed: bool = True) -> Callable[[World], dict[str, str]]:
    return lambda world: {"If-Match": f'"{getattr(world, of).version}"'}


def reason(world: World) -> Any:
    return {"reason": "tried"}


def until_later(world: World) -> Any:
    return {"reason": "tried", "until": (timezone.now() + timedelta(hours=1)).isoformat()}


def counters(world: World) -> Any:
    return {"candidate": {"points": [[1, 0, 10], [2, 0, 20]]}, "max_frac": 0.01}


def flagger(world: World) -> Any:
    """As Flagger posts it."""
    metadata = {"candidate_bad_query": "sum(a)", "candidate_total_query": "sum(b)", "max_frac": "0.01"}
    return {"name": "podinfo", "namespace": "test", "phase": "Progressing", "checksum": "85d5", "metadata": metadata}


def sleeps_there(world: World) -> Any:
    return {"environment": world.environment.slug}


def rollout_verb(right: Verb, **more: Any) -> Ask:
    return Ask(right, reason, if_match("rollout"), **more)


def start(world: World) -> Any:
    return {"model": MODEL, "candidate": world.release.name, "environment": world.environment.slug}


def opened(world: World) -> Any:
    return {"model": MODEL, "environment": world.environment.slug, "title": "It is slow."}


RELEASE = "/models/{slug}/releases/{name}"
ROLLOUT = "/rollouts/{rollout_id}"
HOOK = "/webhooks/{webhook_id}"
USER = "/users/{username}"
ISSUER = "/issuers/{issuer_id}"
ASKS: dict[str, Ask] = {
    "GET /alarms": Ask(SIGNED_IN),
    "GET /alarms/{alarm_id}": Ask(V.READ),
    "POST /alarms/{alarm_id}/acknowledge": Ask(V.HANDLE_ALARM, reason, if_match("alarm")),
    "POST /alarms/{alarm_id}/mute": Ask(V.HANDLE_ALARM, until_later, if_match("alarm")),
    "POST /alarms/{alarm_id}/unmute": Ask(V.HANDLE_ALARM, reason, if_match("alarm"), also=frozenset({409})),
    "POST /alarms/{alarm_id}/close": Ask(V.HANDLE_ALARM, reason, if_match("alarm")),
    "GET /incidents": Ask(SIGNED_IN),
    "POST /incidents": Ask(V.HANDLE_ALARM, opened),
    "GET /incidents/{incident_id}": Ask(V.READ),
    "POST /incidents/{incident_id}/note": Ask(V.HANDLE_ALARM, reason, if_match("incident")),
    "POST /incidents/{incident_id}/close": Ask(V.HANDLE_ALARM, reason, if_match("incident")),
    "GET /models/{slug}/diagnosis": Ask(V.READ),
    "GET /approvals": Ask(SIGNED_IN),
    "GET /audit": Ask(V.ADMINISTER),
    "GET /drafts": Ask(SIGNED_IN),
    "GET /environments": Ask(SIGNED_IN),
    "POST /environments": Ask(V.ADMINISTER, lambda w: {"slug": "canary"}),
    "GET /environments/{slug}": Ask(SIGNED_IN),
    "PATCH /environments/{slug}": Ask(V.ADMINISTER, lambda w: {"title": "x"}, if_match("environment")),
    "GET /environments/{slug}/servers": Ask(SIGNED_IN),
    "POST /environments/{slug}/servers": Ask(
        V.ADMINISTER,
        lambda w: {"name": "theirs", "address": "127.0.0.1:8000:8001", "runtime": RUNTIME},
        also=frozenset({422}),
    ),  # its platform is local
    "POST /environments/{slug}/servers/{name}/remove": Ask(V.ADMINISTER, reason, also=frozenset({404})),
    "GET /environments/{slug}/remove": Ask(V.ADMINISTER),
    "POST /environments/{slug}/remove": Ask(V.ADMINISTER, reason, lambda w: {"If-Match": "*"}),
    "POST /environments/{slug}/restore": Ask(V.ADMINISTER, reason, lambda w: {"If-Match": "*"}),
    "GET /environments/{slug}/models/{model}/objectives": Ask(V.READ),
    "GET /environments/{slug}/models/{model}/served": Ask(V.READ),
    "GET /environments/{slug}/models/{model}/served/history": Ask(V.READ),
    "GET /environments/{slug}/models/{model}/tenants": Ask(V.READ),
    "GET /events": Ask(SIGNED_IN),
    "GET /gate-runs/{id}": Ask(V.READ),
    "GET /gate-runs/{id}/wait": Ask(V.READ),
    "GET /gate-runs/{id}/log": Ask(V.READ),
    "POST /gate-runs/{id}/cancel": Ask(V.RUN_GATES, reason, if_match("gate_run")),
    "POST /judgements": Ask(V.JUDGE, counters),
    "POST /judgements/flagger": Ask(V.JUDGE, flagger, also=frozenset({409})),  # nothing passes without counters
    "GET /keys": Ask(SIGNED_IN),
    "POST /keys": Ask(V.ADMINISTER, lambda w: {"use": "releases"}),
    "GET /me": Ask(SIGNED_IN),
    "GET /models": Ask(SIGNED_IN),
    "POST /models": Ask(V.CREATE_MODEL, lambda w: {"slug": "another", "team": OURS, "objectives": OBJECTIVES}),
    "GET /models/{slug}": Ask(V.READ),
    "PATCH /models/{slug}": Ask(V.EDIT_MODEL, lambda w: {"title": "Another"}, lambda w: {"If-Match": '"1"'}),
    "GET /models/{slug}/aliases": Ask(V.READ),
    "GET /models/{slug}/aliases/{name}": Ask(V.READ, also=frozenset({404})),
    "PUT /models/{slug}/aliases/{name}": Ask(V.SET_ALIAS, lambda w: {"release": w.release.name}),
    "GET /models/{slug}/aliases/{name}/history": Ask(V.READ, also=frozenset({404})),
    "GET /models/{slug}/gate-policy:explain": Ask(V.READ),
    "GET /models/{slug}/golden-sets": Ask(V.READ),
    "POST /models/{slug}/golden-sets": Ask(
        V.EDIT_MODEL, lambda w: b'{"id": "1", "inputs": {"TEXT": "x"}, "label": 1}', kind="application/jsonl"
    ),
    "POST /models/{slug}/golden-sets:check": Ask(
        V.READ, lambda w: b'{"id": "1", "inputs": {"TEXT": "x"}, "label": 1}', kind="application/jsonl"
    ),
    "GET /models/{slug}/releases": Ask(V.READ),
    "POST /models/{slug}/releases": Ask(V.PUSH_RELEASE, lambda w: release_yaml() | {"model": MODEL}),
    "POST /models/{slug}/releases:check": Ask(V.READ, lambda w: {"document": ""}),
    f"GET {RELEASE}": Ask(V.READ),
    f"GET {RELEASE}/attestations": Ask(V.READ),
    f"GET {RELEASE}/diff": Ask(V.READ, query="against=r1"),
    f"GET {RELEASE}/files/{{path}}": Ask(V.READ, also=frozenset({404, 410})),  # the bytes are nowhere
    f"GET {RELEASE}/fit": Ask(V.READ),
    f"POST {RELEASE}/fit": Ask(V.READ, lambda w: {"labels": {}}),
    f"GET {RELEASE}/gate-runs": Ask(V.READ),
    f"POST {RELEASE}/gate-runs": Ask(V.RUN_GATES, lambda w: {}),
    f"GET {RELEASE}/headers": Ask(V.READ),
    f"GET {RELEASE}/replicas": Ask(V.READ),
    f"POST {RELEASE}/replicas": Ask(
        V.SCALE_RELEASE,
        lambda w: {"environment": w.environment.slug, "replicas": 2},
        lambda w: {"If-Match": "*"},
        also=frozenset({409}),  # no server of it is there
    ),
    f"POST {RELEASE}/replicas/replace": Ask(
        V.SCALE_RELEASE,
        lambda w: {"replica": 1},
        also=frozenset({404}),  # nor there
    ),
    "GET /models/{slug}/series": Ask(V.READ, query="environment=production"),
    "GET /models/{slug}/sleep": Ask(V.READ),
    "POST /models/{slug}/sleep": Ask(
        V.SCALE_RELEASE, sleeps_there, lambda w: {"If-Match": "*"}, also=frozenset({409})
    ),  # served nowhere
    "POST /models/{slug}/sleep/begin": Ask(V.SCALE_RELEASE, sleeps_there, also=frozenset({409})),
    "POST /models/{slug}/sleep/end": Ask(V.SCALE_RELEASE, sleeps_there, also=frozenset({409})),
    f"POST {RELEASE}/capacity-plan": Ask(V.READ, lambda w: {"peak_per_s": 10}),
    f"GET {RELEASE}/envelope": Ask(V.READ),
    f"GET {RELEASE}/measured-envelope": Ask(V.READ, also=frozenset({404})),  # nothing was measured
    f"GET {RELEASE}/mlbom": Ask(V.READ),
    f"GET {RELEASE}/disagreements": Ask(V.READ, query="against=r1"),
    f"GET {RELEASE}/notes": Ask(V.READ),
    f"POST {RELEASE}/notes": Ask(V.ANNOTATE_RELEASE, lambda w: {"text": "tried", "tags": ["a"]}),
    f"GET {RELEASE}/comments": Ask(V.READ),
    f"POST {RELEASE}/comments": Ask(V.ANNOTATE_RELEASE, lambda w: {"text": "tried", "section": "verdict"}),
    f"POST {RELEASE}/comments/{{comment_id}}/resolve": Ask(V.ANNOTATE_RELEASE, also=frozenset({404})),  # there is none
    f"POST {RELEASE}/restore": Ask(V.RETIRE_RELEASE, reason, if_match("release")),
    f"POST {RELEASE}/retire": Ask(V.RETIRE_RELEASE, reason, if_match("release")),
    f"GET {RELEASE}/signature": Ask(V.READ, also=frozenset({404})),  # sealed without one
    f"POST {RELEASE}/signature": Ask(V.PUSH_RELEASE),
    f"POST {RELEASE}/waivers": Ask(V.WAIVE_CODE, reason),
    "POST /models/{slug}/rollback": Ask(
        V.ROLL_BACK, lambda w: {"reason": "tried", "environment": w.environment.slug}, also=frozenset({404})
    ),
    "GET /gateways": Ask(SIGNED_IN),
    "POST /gateways": Ask(
        V.ADMINISTER,
        lambda w: {
            "name": "eu-2",
            "environment": "production",
            "http_url": "http://127.0.0.1:2",
            "grpc_address": "127.0.0.1:2",
        },
    ),
    "POST /gateways/{name}/drain": Ask(V.ADMINISTER, lambda w: {"is_confirmed": True}, lambda w: {"If-Match": "*"}),
    "POST /gateways/{name}/remove": Ask(V.ADMINISTER, reason, lambda w: {"If-Match": "*"}),
    "POST /gateways/{name}/resume": Ask(V.ADMINISTER, reason, lambda w: {"If-Match": "*"}),
    "GET /prometheus-targets": Ask(SIGNED_IN),
    "GET /nodes": Ask(SIGNED_IN),
    "GET /registry/collection": Ask(V.ADMINISTER),
    "POST /registry/collection": Ask(V.ADMINISTER),
    "GET /releases/{release_id}": Ask(V.READ),
    "DELETE /releases/{release_id}": Ask(V.PUSH_RELEASE),
    "PUT /releases/{release_id}/files/{path}": Ask(
        V.PUSH_RELEASE,
        lambda w: DATA,
        lambda w: {"X-Content-SHA256": hashlib.sha256(DATA).hexdigest()},
        kind="application/octet-stream",
    ),
    "POST /releases/{release_id}/seal": Ask(V.PUSH_RELEASE),
    "GET /reports/{digest}": Ask(V.READ),
    "GET /rollouts": Ask(SIGNED_IN),
    "POST /rollouts": Ask(V.START_ROLLOUT, start),
    f"GET {ROLLOUT}": Ask(V.READ),
    f"POST {ROLLOUT}/abort": rollout_verb(V.ABORT_ROLLOUT),
    f"POST {ROLLOUT}/advance": rollout_verb(V.ADVANCE_ROLLOUT),
    f"POST {ROLLOUT}/approve": rollout_verb(V.APPROVE_ROLLOUT),
    f"POST {ROLLOUT}/cancel": rollout_verb(V.ABORT_ROLLOUT),
    f"POST {ROLLOUT}/close-undo-window": rollout_verb(V.PROMOTE_NOW),
    f"GET {ROLLOUT}/decisions": Ask(V.READ),
    f"GET {ROLLOUT}/observations": Ask(V.READ),
    f"POST {ROLLOUT}/pause": rollout_verb(V.PAUSE_ROLLOUT),
    f"POST {ROLLOUT}/promote-now": rollout_verb(V.PROMOTE_NOW),
    f"POST {ROLLOUT}/reject": rollout_verb(V.APPROVE_ROLLOUT),
    f"GET {ROLLOUT}/replay": Ask(V.READ),
    f"GET {ROLLOUT}/post-mortem": Ask(V.READ, also=frozenset({409})),
    f"POST {ROLLOUT}/replay": Ask(V.READ, lambda w: {"policy": {}}),
    f"POST {ROLLOUT}/resume": rollout_verb(V.RESUME_ROLLOUT),
    f"POST {ROLLOUT}/roll-back": rollout_verb(V.ROLL_BACK),
    f"GET {ROLLOUT}/wait": Ask(V.READ),
    f"POST {ROLLOUT}/supersede": Ask(
        V.SUPERSEDE_ROLLOUT, lambda w: {"reason": "tried", "candidate": "r1"}, if_match("rollout")
    ),
    "POST /rollouts/preview": Ask(V.START_ROLLOUT, start),
    "GET /runtimes": Ask(SIGNED_IN),
    "GET /capabilities": Ask(SIGNED_IN),
    "GET /servers": Ask(SIGNED_IN),
    "GET /status": Ask(SIGNED_IN),
    "GET /teams": Ask(SIGNED_IN),
    "POST /teams": Ask(V.ADMINISTER, lambda w: {"slug": "another"}),
    "GET /teams/{slug}/members": Ask(V.READ),
    "POST /teams/{slug}/members": Ask(V.ADMINISTER, lambda w: {"username": "target", "role": "ci"}),
    "DELETE /teams/{slug}/members": Ask(V.ADMINISTER, query="username=target&role=model_team"),
    "POST /tokens": Ask(OPEN, lambda w: {"username": "target", "password": "a long pass phrase"}),
    "PUT /upload-parts/{upload}/{number}": Ask(BY_ADDRESS, lambda w: DATA, kind="application/octet-stream"),
    "POST /uploads": Ask(V.PUSH_RELEASE, lambda w: upload_body(str(w.draft.pk))),
    "GET /uploads/{upload_id}": Ask(V.READ),
    "DELETE /uploads/{upload_id}": Ask(V.PUSH_RELEASE),
    "POST /uploads/{upload_id}/parts:sign": Ask(
        V.PUSH_RELEASE, lambda w: {"numbers": [1], "sha256": [hashlib.sha256(DATA).hexdigest()]}
    ),
    "POST /uploads/{upload_id}:complete": Ask(V.PUSH_RELEASE),
    "GET /users": Ask(V.ADMINISTER),
    "POST /users": Ask(V.ADMINISTER, lambda w: {"username": "another", "roles": [{"team": OURS, "role": "ci"}]}),
    f"GET {USER}": Ask(V.ADMINISTER),
    f"PATCH {USER}": Ask(V.ADMINISTER, lambda w: {"is_admin": True}),
    f"POST {USER}/deactivate": Ask(V.ADMINISTER, reason),
    f"POST {USER}/reactivate": Ask(V.ADMINISTER, reason),
    f"PUT {USER}/password": Ask(V.ADMINISTER, lambda w: {"password": "another long pass phrase"}),
    f"GET {USER}/tokens": Ask(V.ADMINISTER),
    f"POST {USER}/tokens": Ask(V.ADMINISTER, lambda w: {"name": "tried", "verbs": ["read"]}),
    f"DELETE {USER}/tokens": Ask(V.ADMINISTER, query="name=tried", also=frozenset({404})),
    f"DELETE {USER}/tokens/{{token_id}}": Ask(V.ADMINISTER),
    f"POST {USER}/tokens/{{token_id}}/rotate": Ask(V.ADMINISTER, lambda w: {}),
    f"GET {USER}/sessions": Ask(V.ADMINISTER),
    f"DELETE {USER}/sessions/{{session_id}}": Ask(V.ADMINISTER, also=frozenset({404})),
    "POST /tokens:exchange": Ask(OPEN, lambda w: {"id_token": w.issuer.github_token()}),
    "POST /tokens:try": Ask(V.ADMINISTER, lambda w: {"id_token": w.issuer.github_token()}),
    "GET /issuers": Ask(V.ADMINISTER),
    "POST /issuers": Ask(V.ADMINISTER, lambda w: {"url": "https://login.example.com"}),
    f"GET {ISSUER}": Ask(V.ADMINISTER),
    f"PATCH {ISSUER}": Ask(V.ADMINISTER, lambda w: {"title": "x"}, if_match("issuer_row")),
    f"POST {ISSUER}/check": Ask(V.ADMINISTER),
    f"GET {ISSUER}/token-rules": Ask(V.ADMINISTER),
    f"POST {ISSUER}/token-rules": Ask(
        V.ADMINISTER,
        lambda w: {"title": "x", "claims": GITHUB_RULE, "username": w.token_rule.user.username, "verbs": ["ci"]},
    ),
    f"GET {ISSUER}/role-rules": Ask(V.ADMINISTER),
    f"POST {ISSUER}/role-rules": Ask(
        V.ADMINISTER, lambda w: {"claims": {"groups": "ml"}, "team": OURS, "role": "viewer"}
    ),
    f"GET {ISSUER}/identities": Ask(V.ADMINISTER),
    f"POST {ISSUER}/identities": Ask(V.ADMINISTER, lambda w: {"username": "target", "sub": "target-1"}),
    "GET /token-rules/{rule_id}": Ask(V.ADMINISTER),
    "PATCH /token-rules/{rule_id}": Ask(V.ADMINISTER, lambda w: {"title": "x"}, if_match("token_rule")),
    "DELETE /token-rules/{rule_id}": Ask(V.ADMINISTER, headers=if_match("token_rule")),
    "DELETE /role-rules/{rule_id}": Ask(V.ADMINISTER, also=frozenset({404})),
    "DELETE /identities/{identity_id}": Ask(V.ADMINISTER, also=frozenset({404})),
    "GET /webhooks": Ask(SIGNED_IN),
    "POST /webhooks": Ask(
        V.MANAGE_WEBHOOKS, lambda w: {"team": OURS, "target": "https://example.com/a", "verbs": ["rollout.*"]}
    ),
    f"GET {HOOK}": Ask(V.MANAGE_WEBHOOKS, is_hidden=True),
    f"PATCH {HOOK}": Ask(V.MANAGE_WEBHOOKS, lambda w: {"title": "x"}, if_match("webhook"), is_hidden=True),
    f"DELETE {HOOK}": Ask(V.MANAGE_WEBHOOKS, headers=if_match("webhook"), is_hidden=True),
    f"GET {HOOK}/deliveries": Ask(V.MANAGE_WEBHOOKS, is_hidden=True),
    f"GET {HOOK}/deliveries/{{delivery_id}}": Ask(V.MANAGE_WEBHOOKS, is_hidden=True),
    f"POST {HOOK}/deliveries/{{delivery_id}}/replay": Ask(V.MANAGE_WEBHOOKS, is_hidden=True),
    f"POST {HOOK}/replay": Ask(V.MANAGE_WEBHOOKS, lambda w: {"since": "2026-01-01T00:00:00Z"}, is_hidden=True),
    f"POST {HOOK}/rotate": Ask(V.MANAGE_WEBHOOKS, lambda w: {}, if_match("webhook"), is_hidden=True),
    f"POST {HOOK}/test": Ask(V.MANAGE_WEBHOOKS, is_hidden=True),
}


def operations() -> list[str]:
    return [
        f"{method.upper()} {path.removeprefix('/api/v1')}" for path, told in SCHEMA["paths"].items() for method in told
    ]


#: The columns of docs/access.md, by callers of the world.
COLUMNS = {
    "nobody": "nobody",
    "no role": "no role",
    **{role.value: role.value for role in Role},
    "release_manager of every team": "release_manager of every team",
    "model_team, scope read on ranker": "scoped token",
    "administrator": "administrator",
}


def _said(status: int) -> str:
    return {401: "signs in", 403: "no", 404: "hidden"}.get(status, "yes")


def test_the_table_has_every_operation_and_no_other() -> None:
    assert sorted(ASKS) == sorted(operations())


@pytest.mark.timeout(600)  # well over a thousand requests
def test_who_is_let_in_is_what_the_access_table_says(settings: Any) -> None:
    settings.WEBHOOKS_ALLOW_PRIVATE, settings.WEBHOOK_TIMEOUT_S = True, 0.1
    everybody = callers()
    wrong, asked, found = [], 0, {}
    with Issuer() as issuer:
        made = world(next(one.client for one in everybody if one.is_admin), issuer)
        ways = set()
        for operation, ask in ASKS.items():
            is_new = (way := _ways_in(operation, made)) not in ways
            ways.add(way)
            for caller in everybody:
                if caller.kind == "unknown" and caller.name != "nobody" and not is_new:
                    continue  # no token that ended opens a view with the same ways in
                status, body = _send(operation, ask, made, caller.client)
                asked += 1
                if caller.name in COLUMNS:
                    is_there = 404 not in ask.also or status != 404
                    let_in = 200 in _expected(operation, ask, caller)
                    found.setdefault(operation, {})[COLUMNS[caller.name]] = (
                        _said(status) if is_there else "yes" if let_in else "no"
                    )
                if status not in _expected(operation, ask, caller):
                    wrong.append(f"{operation} by {caller.name}: {status} {body[:200]!r}")
                elif caller.kind == "outsider" and status < 300 and ask.right is not OPEN and _names_ours(body):
                    wrong.append(f"{operation} tells {caller.name} of {MODEL}")
    assert not wrong, "\n".join(wrong)
    ended = sum(caller.kind == "unknown" for caller in everybody) - 1
    assert asked == len(ASKS) * (len(everybody) - ended) + len(ways) * ended
    assert (len(everybody), ended, len(ways)) == (20, 5, 3)
    access_matrix.section("operations", access_matrix.outcomes_table("operation", list(COLUMNS.values()), found))


def _ways_in(operation: str, made: World) -> tuple[type, ...]:
    """The classes by which the operation's view learns who asks."""
    view: Any = resolve(f"/api/v1{_filled(operation.split(' ')[1], made)}").func
    return tuple(view.cls.authentication_classes)


def _send(operation: str, ask: Ask, made: World, client: Client) -> tuple[int, bytes]:
    """(status, body) of the request, whose effects are undone."""
    method, path = operation.split(" ")
    body = ask.body(made)
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    address = f"/api/v1{_filled(path, made)}" + (f"?{ask.query}" if ask.query else "")
    with transaction.atomic():
        answer = client.generic(method, address, data, content_type=ask.kind, headers=ask.headers(made))
        content = b"".join(answer.streaming_content) if answer.streaming else answer.content  # type: ignore[attr-defined]
        transaction.set_rollback(True)
    return answer.status_code, content


#: What is called {name} in the addresses under these.
_NAMED = {"/aliases/": "champion", "/gateways/": "eu-1"}


def _filled(path: str, made: World) -> str:
    values = {
        "username": "target", "upload": uuid.uuid4().hex, "number": 1, "upload_id": made.upload_id,
        "release_id": made.draft.pk, "webhook_id": made.webhook.pk, "delivery_id": made.delivery.pk,
        "rollout_id": made.rollout.pk, "issuer_id": made.issuer_row.pk, "rule_id": made.token_rule.pk, "identity_id": 1,
        "id": made.gate_run.pk, "digest": made.report.digest, "model": MODEL,
        "token_id": made.token_id, "session_id": 1, "alarm_id": made.alarm.pk, "incident_id": made.incident.pk,
        "name": next((name for part, name in _NAMED.items() if part in path), made.release.name),
        "path": "artifact/model.onnx", "comment_id": 999,
        "slug": made.environment.slug if path.startswith("/environments") else OURS if "/teams" in path else MODEL,
    }  # fmt: skip
    return re.sub(r"{(\w+)}", lambda found: str(values[found[1]]), path)


#: Verbs of an environment itself, which take an administrator's own scope.
OF_NO_MODEL = {
    "POST /environments", "PATCH /environments/{slug}", "GET /environments/{slug}/remove",
    "POST /environments/{slug}/remove", "POST /environments/{slug}/restore", "POST /environments/{slug}/servers",
    "POST /environments/{slug}/servers/{name}/remove",
}  # fmt: skip


#: Rights that a role in any team gives: what is asked for is no team's.
OF_NO_TEAM = {V.JUDGE}


def model_of(operation: str) -> str | None:
    """The model that it is about, so that a scope of that model is enough; None where it is about more."""
    if operation == "POST /models":
        return "another"
    if operation in OF_NO_MODEL:
        return None
    noun = operation.split(" ")[1].split("/")[1].split(":")[0]
    of_models = {
        "models",
        "releases",
        "reports",
        "rollouts",
        "gate-runs",
        "uploads",
        "environments",
        "alarms",
        "incidents",
    }
    return MODEL if noun in of_models else None


def _expected(operation: str, ask: Ask, caller: Caller) -> set[int]:
    """The statuses that this caller may get. A refusal of the state is one for those who may: the door was open."""
    let_in = ({200, 201, 202, 204, 409, 412, 422, 428} | ask.also) - {401, 403}
    if ask.right is OPEN:
        return {201}
    if ask.right is BY_ADDRESS:
        return {403}
    if caller.kind == "unknown":
        return {401}
    if ask.right is SIGNED_IN:
        return {200}
    if caller.is_admin or (caller.role is not None and ask.right in MAY[caller.role]):
        return let_in if caller.scope.allows(str(ask.right), model_of(operation)) else {403, 404}
    if caller.name == "every role elsewhere" and ask.right in OF_NO_TEAM:
        return let_in
    if caller.kind == "outsider":
        return {403, 404}
    return {404} if ask.is_hidden else {403} | (ask.also & {404})  # what is not there is not there for anybody


def _names_ours(body: bytes) -> bool:
    return MODEL.encode() in body
