"""One of everything that an address of the API can name, and the callers who ask for it: for `test_route_roles.py`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.test import Client
from django.utils import timezone

from accounts import actions as accounts
from accounts.core.access import EVERY_TEAM, Actor, Role, scope_from
from accounts.core.scope import WHOLE, Scope
from accounts.models import Issuer as IssuerRow
from accounts.models import Token, TokenRule, User
from insights.models import Incident
from ledger.actions import append_event
from notifications import actions as notifications
from notifications.actions.deliveries import collect
from notifications.models import Delivery, Webhook
from registry.models import Release
from rollouts.models import Alarm, Rollout
from serving.models import Environment, Gateway
from tests.support.servers.issuer import Issuer
from tests.support.worlds.alarm_setup import burning, paged
from tests.support.worlds.factories import make_environment, make_model, make_node, make_release, make_team, make_user
from tests.support.worlds.issuer_setup import configured, rule_for
from tests.support.worlds.registry_samples import CONTRACT, release_yaml
from tests.support.worlds.rollout_setup import OBJECTIVES, production, put, report_for, serves, started
from validators.actions import request_gate_run
from validators.models import GateRun, Report

OURS, THEIRS = "search", "ads"
MODEL = "ranker"
DATA = b"bytes of a file"


@dataclass(frozen=True)
class Caller:
    """Somebody who asks. `kind`: unknown (must get 401), outsider (no role in the team that owns everything), or insider."""

    name: str
    kind: str
    client: Client
    role: Role | None = None
    is_admin: bool = False
    scope: Scope = WHOLE


@dataclass(frozen=True)
class World:
    """What the addresses name. All of it belongs to the team `search`."""

    release: Release
    draft: Release
    upload_id: str
    gate_run: GateRun
    report: Report
    rollout: Rollout
    webhook: Webhook
    delivery: Delivery
    token_id: int
    environment: Environment
    issuer: Issuer
    issuer_row: IssuerRow
    token_rule: TokenRule
    alarm: Alarm
    incident: Incident


def callers() -> list[Caller]:
    """Everybody: nobody, those whom nothing lets in any more, each role here, all roles elsewhere, an administrator."""
    found = [Caller("nobody", "unknown", Client()), Caller("garbage", "unknown", _with("sg_garbage"))]
    revoked, expired, gone, left = (make_user(name, team=OURS) for name in ("revoked", "expired", "gone", "left"))
    found.append(Caller("revoked token", "unknown", _with(_token(revoked))))
    Token.objects.filter(user=revoked).update(revoked_at=timezone.now())
    found.append(Caller("expired token", "unknown", _with(_token(expired))))
    Token.objects.filter(user=expired).update(expires_at=timezone.now() - timedelta(seconds=1))
    page = Client()
    page.force_login(left)
    found += [
        Caller("deactivated, by token", "unknown", _with(_token(gone))),
        Caller("deactivated, by session", "unknown", page),
    ]
    for user in (gone, left):
        accounts.deactivate_user(actor=Actor.system("test"), username=user.username)
    found.append(Caller("no role", "outsider", _with(_token(make_user("norole")))))
    found.append(Caller("every role elsewhere", "outsider", _with(_token(with_every_role(THEIRS)))))
    for role in Role:
        ours = make_user(f"{role}-y", team=OURS, role=role)
        found.append(Caller(f"{role}", "insider", _with(_token(ours)), role))
    root = make_user("root", is_admin=True)
    found.append(Caller("administrator", "insider", _with(_token(root)), is_admin=True))
    everywhere = make_user("everywhere")
    accounts.grant_role(actor=Actor.system("test"), username="everywhere", team=EVERY_TEAM, role=Role.RELEASE_MANAGER)
    found.append(
        Caller("release_manager of every team", "insider", _with(_token(everywhere)), role=Role.RELEASE_MANAGER)
    )
    return [*found, *_scoped(root)]


def with_every_role(team: str) -> User:
    """A user who holds each role in the team: if all of them together open nothing, none of them does."""
    user = make_user("every-role", team=team, role=Role.VIEWER)
    for role in Role:
        accounts.grant_role(actor=Actor.system("test"), username=user.username, team=team, role=role)
    return user


#: Token owners (None: an administrator) and scopes: verbs, models, both. Which verbs and patterns a scope holds, and that it
#: adds nothing to a role, is `TestScope` of tests/core/test_access.py.
SCOPES = (
    (None, ["read"], None),
    (None, None, [MODEL]),
    (None, ["administer"], None),
    (Role.MODEL_TEAM, ["ci"], None),
    (Role.MODEL_TEAM, ["read"], [MODEL]),
)
#: The same for another model: such a token may see and change nothing of ours.
ELSEWHERE = ((None, None, ["another-model"]),)


def _scoped(root: User) -> list[Caller]:
    """Tokens that are narrower than their users."""
    found = []
    for number, (role, verbs, models) in enumerate([*SCOPES, *ELSEWHERE]):
        scope = scope_from(verbs, models)
        user = root if role is None else make_user(f"narrow-{number}", team=OURS, role=role)
        name = f"{role or 'administrator'}, scope {scope.text()}"
        client = _with(_token(user, scope))
        if number < len(SCOPES):
            found.append(Caller(name, "insider", client, role, role is None, scope))
        else:
            found.append(Caller(name, "outsider", client))
    return found


def _token(user: User, scope: Scope = WHOLE) -> str:
    return accounts.issue_token(user=user, name="test", actor=accounts.actor_for(user), scope=scope)


def _with(token: str) -> Client:
    return Client(headers={"Authorization": f"Bearer {token}"})


def world(root: Client, issuer: Issuer) -> World:
    """Made by the system and, over the API, by an administrator. `issuer` runs, and is configured."""
    make_node()
    make_environment("staging", is_routed=False)
    Gateway.objects.create(
        environment=production(), name="eu-1", http_url="http://127.0.0.1:1", grpc_address="127.0.0.1:1"
    )
    target = make_user("target", team=OURS, password="a long pass phrase")
    _token(target, scope_from(["read"], None))
    make_user("keeper", is_admin=True, password="a long pass phrase")
    model = make_model(MODEL, team=make_team(OURS), objectives=OBJECTIVES, contract=CONTRACT)
    stable, candidate = make_release(model), make_release(model)
    serves(stable)
    rollout = put(started(candidate=candidate), "shifting", step_index=0, weight_bp=500)
    draft = root.post(
        f"/api/v1/models/{MODEL}/releases", release_yaml() | {"model": MODEL}, content_type="application/json"
    ).json()
    upload = root.post("/api/v1/uploads", upload_body(draft["id"]), content_type="application/json").json()
    system = Actor.system("test")
    webhook, _ = notifications.create_webhook(
        actor=system, team=OURS, kind="webhook", target="http://127.0.0.1:9/hook", verbs=["*"], title=""
    )
    append_event(verb="route.set", subject_type="route", subject_id=1, actor=system, facts={"model": MODEL})
    collect()
    issuer_row = configured(issuer)
    return World(
        issuer=issuer,
        issuer_row=issuer_row,
        token_rule=rule_for(issuer_row),
        release=candidate,
        draft=Release.objects.get(pk=draft["id"]),
        upload_id=upload["upload_id"],
        gate_run=request_gate_run(actor=system, release=stable)[0],
        report=report_for(stable),
        rollout=rollout,
        webhook=webhook,
        delivery=Delivery.objects.filter(webhook=webhook).order_by("pk")[0],
        token_id=Token.objects.filter(user=target).order_by("pk")[0].pk,
        environment=rollout.environment,
        alarm=burning(model),
        incident=paged(),
    )


def upload_body(draft_id: str) -> dict[str, Any]:
    return {
        "release": draft_id,
        "path": "artifact/weights.data",
        "size_bytes": len(DATA),
        "sha256": hashlib.sha256(DATA).hexdigest(),
    }
