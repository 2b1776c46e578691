"""The verbs of gateways: register one, take users from it and give them back, take it off the list."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from django.db import transaction

from accounts.core.access import EVERY_TEAM, Actor, Verb, require, require_version
from ledger.actions import append_event
from ledger.core.errors import Invalid, StateChanged
from ledger.core.verbs import EventVerb
from ledger.queries import clock
from serving.environments.actions.locks import lock_open, notify_routes
from serving.environments.core.addresses import UNIX, Address
from serving.environments.core.reasons import LONGEST_REASON
from serving.models import Environment, Gateway
from serving.traffic.adapters.envoy_bootstrap import bootstrap
from serving.traffic.core.gateway_setup import GatewaySetup
from serving.traffic.core.gateway_standing import SEEN_WITHIN_S


def register_gateway(
    *, actor: Actor, environment: Environment, name: str, admin_url: str, http_url: str, grpc_address: str
) -> Gateway:
    """The gateway by this name, with these addresses; known ones are updated.

    Raises Refused, Invalid, StateChanged: the environment is retired, or the gateway is another's.
    """
    with transaction.atomic():
        require(actor, Verb.ADMINISTER, "")
        _check_addresses(admin_url, http_url, grpc_address)
        lock_open(environment)
        wanted = {
            "environment": environment,
            "admin_url": admin_url,
            "http_url": http_url,
            "grpc_address": grpc_address,
        }
        gateway, is_new = Gateway.objects.get_or_create(name=name, defaults=wanted)
        if not is_new:  # perhaps since a moment ago, by who asked for the same at the same time
            gateway = Gateway.objects.select_for_update(no_key=True).get(pk=gateway.pk)
            _refuse_to_move(gateway, environment)
            if all(getattr(gateway, key) == value for key, value in wanted.items()):
                return gateway
            for key, value in {**wanted, "version": gateway.version + 1}.items():
                setattr(gateway, key, value)
            gateway.save(update_fields=[*wanted, "version"])
        append_event(
            verb=EventVerb.GATEWAY_REGISTERED,
            subject_type="gateway",
            subject_id=gateway.pk,
            actor=actor,
            reason="",
            facts={"name": name, "environment": environment.slug, "http_url": http_url, "grpc_address": grpc_address},
        )
        notify_routes()
    return gateway


@transaction.atomic
def add_gateway(
    *, actor: Actor, environment: Environment, setup: GatewaySetup, http_url: str, grpc_address: str
) -> tuple[Gateway, dict[str, Any]]:
    """The gateway, and the JSON to start its Envoy with. Of a known one counters are read where they were, unless `setup` says where.

    Raises Refused, Invalid, StateChanged, and nothing is registered then.
    """
    require(actor, Verb.ADMINISTER, "")
    if not environment.is_routed:
        raise Invalid(
            "environment_not_routed",
            f"{environment.slug} has no gateways: gates talk to its servers directly. Name an environment that has users.",
        )
    setup = _as_known(setup, environment)
    gateway = register_gateway(
        actor=actor,
        environment=environment,
        name=setup.name,
        admin_url=setup.counters_url,
        http_url=http_url,
        grpc_address=grpc_address,
    )
    heap_bytes = None if setup.heap_mib is None else setup.heap_mib << 20
    try:
        return gateway, bootstrap(
            setup.name,
            setup.control_planes,
            setup.admin_address,
            setup.tls,
            setup.counters,
            heap_bytes=heap_bytes,
            relay=setup.relay,
        )
    except ValueError as error:
        raise Invalid("gateway_setup", f"{str(error)[:1].upper()}{str(error)[1:]}.") from None


def _as_known(setup: GatewaySetup, environment: Environment) -> GatewaySetup:
    known = Gateway.objects.filter(name=setup.name, environment=environment).first()
    if known is None or not known.admin_url or setup.admin or setup.counters:
        return setup
    try:
        return setup.read_at(known.admin_url)
    except ValueError as error:
        raise Invalid("gateway_setup", str(error)) from None


@transaction.atomic
def drain_gateway(
    *, actor: Actor, gateway: Gateway, reason: str, is_confirmed: bool, expected_version: int | None = None
) -> Gateway:
    """The gateway, which says from now on that it is not ready (503 at /v2/health/ready), and goes on answering whoever still asks it.

    Connections that are open are told to end within Envoy's drain time. Idempotent. Raises Refused, Stale, and Invalid("not_confirmed")
    where no other gateway of the environment is ready and `is_confirmed` is not said.
    """
    found = _locked(actor, gateway, expected_version, reason)
    if found.drained_at is not None:
        return found
    since = clock.now() - timedelta(seconds=SEEN_WITHIN_S)
    others = Gateway.objects.filter(environment=found.environment_id, drained_at=None, seen_at__gte=since)
    if not is_confirmed and not others.exclude(pk=found.pk).exists():
        raise Invalid(
            "not_confirmed",
            f"No other gateway of {found.environment.slug} is ready: without {found.name} users may reach none. "
            f"If that is meant: sluicegate api POST /gateways/{found.name}/drain is_confirmed:=true --if-match '*'",
        )
    return _written(actor, found, EventVerb.GATEWAY_DRAINED, reason, clock.now())


@transaction.atomic
def resume_gateway(*, actor: Actor, gateway: Gateway, reason: str = "", expected_version: int | None = None) -> Gateway:
    """The gateway, which says again that it is ready. Idempotent. Raises Refused, Stale, Invalid."""
    found = _locked(actor, gateway, expected_version, reason)
    if found.drained_at is None:
        return found
    return _written(actor, found, EventVerb.GATEWAY_RESUMED, reason, None)


@transaction.atomic
def remove_gateway(*, actor: Actor, gateway: Gateway, reason: str, expected_version: int | None = None) -> None:
    """Takes a gateway that is silent off the list: no control plane talks to one of its name until it is registered again.

    Raises Refused, Stale, Invalid, and StateChanged("gateway_in_use") while it speaks to a control plane.
    """
    found = _locked(actor, gateway, expected_version, reason)
    now = clock.now()
    if found.seen_at is not None and now - found.seen_at < timedelta(seconds=SEEN_WITHIN_S):
        raise StateChanged(
            "gateway_in_use",
            f"{found.name} is connected. Drain it, stop its Envoy when nobody asks it any more, and remove it {SEEN_WITHIN_S:g} s later.",
            gateway=found.name,
        )
    key = found.pk
    found.delete()
    _tell(EventVerb.GATEWAY_REMOVED, found, key, actor, reason)
    notify_routes()  # the servers' bounds are shared among those that are left


def record_refused_stream(gateway_id: int, *, actor: Actor, peer: str, reason: str) -> None:
    """An event for somebody who came to the control plane as a gateway and was turned away. `peer`: from where."""
    with transaction.atomic():
        gateway = Gateway.objects.filter(pk=gateway_id).first()
        if gateway is not None:
            append_event(
                verb=EventVerb.GATEWAY_STREAM_REFUSED,
                subject_type="gateway",
                subject_id=gateway.pk,
                actor=actor,
                reason=reason,
                facts={"name": gateway.name, "peer": peer},
            )


def _locked(actor: Actor, gateway: Gateway, expected_version: int | None, reason: str) -> Gateway:
    """The gateway's row for an administrator, locked until the transaction ends."""
    require(actor, Verb.ADMINISTER, EVERY_TEAM)
    found = (
        Gateway.objects.select_for_update(no_key=True, of=("self",)).select_related("environment").get(pk=gateway.pk)
    )
    require_version(found.version, expected_version, f"Gateway {found.name}")
    if len(reason) > LONGEST_REASON:
        raise Invalid("reason_too_long", f"The reason has {len(reason)} characters; {LONGEST_REASON} are the most.")
    return found


def _written(actor: Actor, gateway: Gateway, verb: str, reason: str, drained_at: datetime | None) -> Gateway:
    gateway.drained_at, gateway.version = drained_at, gateway.version + 1
    gateway.drained_by, gateway.drain_reason = (actor.name, reason.strip()) if drained_at else ("", "")
    gateway.save(update_fields=["drained_at", "drained_by", "drain_reason", "version"])
    _tell(verb, gateway, gateway.pk, actor, reason)
    notify_routes()
    return gateway


def _tell(verb: str, gateway: Gateway, key: int, actor: Actor, reason: str) -> None:
    facts = {"name": gateway.name, "environment": gateway.environment.slug}
    append_event(verb=verb, subject_type="gateway", subject_id=key, actor=actor, reason=reason.strip(), facts=facts)


def _refuse_to_move(gateway: Gateway, environment: Environment) -> None:
    """What it routes is of its environment: one that went to another would go on serving users here, and no rollback would reach it."""
    if gateway.environment_id == environment.pk:
        return
    was = gateway.environment.slug
    raise StateChanged(
        "gateway_in_use",
        f"{gateway.name} is a gateway of {was}, and a name is of one gateway. Choose another name; or drain it, stop "
        f"its Envoy, take it off the list (sluicegate api POST /gateways/{gateway.name}/remove --if-match '*'), and "
        f"register it for {environment.slug} then.",
        gateway=gateway.name,
    )


def _check_addresses(admin_url: str, http_url: str, grpc_address: str) -> None:
    if admin_url.startswith(UNIX):
        try:
            Address.at(admin_url)
        except ValueError as error:
            raise Invalid("gateway_address", f"admin_url: {error}.", field="admin_url") from None
        admin_url = http_url
    for field, value in (("admin_url", admin_url), ("http_url", http_url), ("grpc_address", f"//{grpc_address}")):
        try:
            parts = urlsplit(value)
            schemes = {"admin_url": {"http", "https"}, "http_url": {"http"}, "grpc_address": {""}}[field]
            more = parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None
            is_right = bool(parts.hostname and parts.port) and parts.scheme in schemes and not more
        except ValueError:
            is_right = False
        if not is_right:
            shape = "host:port" if field == "grpc_address" else "http://host:port"
            raise Invalid("gateway_address", f"{field} must be {shape}, not {value.removeprefix('//')!r}.", field=field)
