"""Plain functions that make what tests need. Every argument has a default; say only what the test is about."""

from __future__ import annotations

import hashlib
import itertools
import uuid
from typing import Any

from django.db import connection
from django.db.models import QuerySet
from django.utils import timezone

from accounts.core.access import Actor, Role
from accounts.models import Membership, Team, User
from ledger.core.canonical import canonical_bytes, sha256_of
from ledger.models import Event
from registry.core.lifecycle import FileRole, ReleaseState
from registry.models import Blob, Release, ReleaseFile, ServedModel
from registry.queries.declared import _DECLARED
from serving.models import Environment, Node, Replica, Server

_number = itertools.count(1)

RUNTIME = "sluicegate-local@sha256:" + "a" * 64
CONTRACT = {
    "inputs": [{"name": "TEXT", "data_type": "BYTES", "dims": [1]}],
    "outputs": [{"name": "probabilities", "data_type": "FP32", "dims": [2]}],
}
OBJECTIVES = {"errors_max_frac": 0.001, "slow": {"threshold_ms": 250, "max_frac": 0.01}}


def make_team(slug: str = "", **over: Any) -> Team:
    slug = slug or f"team-{next(_number)}"
    return Team.objects.get_or_create(slug=slug, defaults={"title": slug.title(), **over})[0]


def make_user(
    username: str = "",
    *,
    team: Team | str | None = None,
    role: Role = Role.MODEL_TEAM,
    is_admin: bool = False,
    password: str | None = None,
) -> User:
    """A user, with one role in the team where a team is given."""
    user = User(username=username or f"user-{next(_number)}", is_superuser=is_admin)
    user.set_password(password)
    user.save()
    if team is not None:
        its_team = team if isinstance(team, Team) else make_team(team)
        Membership.objects.create(user=user, team=its_team, role=role.value)
    return user


def make_actor(role: Role = Role.MODEL_TEAM, *, team: Team | str = "search", name: str = "") -> Actor:
    """The actor of a new user with one role."""
    from accounts.actions import actor_for

    return actor_for(make_user(name, team=team, role=role))


def make_admin(name: str = "") -> Actor:
    from accounts.actions import actor_for

    return actor_for(make_user(name, is_admin=True))


def make_model(slug: str = "", *, team: Team | None = None, **over: Any) -> ServedModel:
    columns: dict[str, Any] = {
        "title": "A model", "contract": CONTRACT, "objectives": OBJECTIVES, "gate_policy": {}, "rollout_policy": {},
        **over,
    }  # fmt: skip
    return ServedModel.objects.create(
        slug=slug or f"model-{next(_number)}", team=team or make_team("search"), **columns
    )


def make_blob(data: bytes | None = None) -> Blob:
    """A row only: the bytes are not stored anywhere."""
    data = data if data is not None else f"blob {next(_number)}".encode()
    sha256 = hashlib.sha256(data).hexdigest()
    return Blob.objects.get_or_create(sha256=sha256, defaults={"size_bytes": len(data), "store_key": sha256})[0]


def make_release(
    model: ServedModel | None = None,
    *,
    number: int | None = None,
    author: User | None = None,
    state: ReleaseState = ReleaseState.SEALED,
    **over: Any,
) -> Release:
    """A sealed release with one artifact file, or a draft. Its manifest is canonical and its digest is right."""
    model = model or make_model()
    release = Release.objects.create(
        id=uuid.uuid4(), model=model, author=author, **({"spec": over.pop("spec")} if "spec" in over else {})
    )
    blob = make_blob()
    ReleaseFile.objects.create(release=release, path="artifact/model.onnx", role=FileRole.ARTIFACT.value, blob=blob)
    if state == ReleaseState.DRAFT:
        return release
    model.last_number = number or model.last_number + 1
    model.save(update_fields=["last_number"])
    manifest = canonical_bytes(make_manifest(model.slug, blob))
    columns = {
        "state": state.value, "number": model.last_number, "manifest": manifest.decode(), "digest": sha256_of(manifest),
        "sealed_at": timezone.now(), **over,
    }  # fmt: skip
    Release.objects.filter(pk=release.pk).update(**columns)
    release.refresh_from_db()
    return release


def make_manifest(slug: str, blob: Blob) -> dict[str, Any]:
    return {
        "schema": "sluicegate/manifest/v2",
        "model": slug,
        "files": [{"path": "artifact/model.onnx", "role": "artifact", "sha256": blob.sha256, "size_bytes": blob.size_bytes}],
        "runtime": {"image": RUNTIME, "server": "triton", "backend": "sluicegate-onnx"},
        "serving": {
            "max_batch_size": 16, **CONTRACT, "dynamic_batching": {"preferred_batch_size": [4, 8], "max_queue_delay_us": 2000},
            "instance_group": [{"kind": "cpu", "count": 1}], "queue_policy": None, "warmup": [], "parameters": {},
        },
        "envelope": {},
        "provenance": {},
    }  # fmt: skip


def make_environment(slug: str = "", **over: Any) -> Environment:
    slug = slug or f"environment-{next(_number)}"
    return Environment.objects.get_or_create(slug=slug, defaults={"title": slug.title(), **over})[0]


def resealed(release: Release, **manifest: Any) -> Release:
    """The release with another manifest, as a factory would have made it."""
    text = canonical_bytes({**make_manifest(release.model.slug, release.files.get().blob), **manifest})
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE registry_release DISABLE TRIGGER USER")
        cursor.execute(
            "UPDATE registry_release SET manifest = %s, digest = %s WHERE id = %s",
            [text.decode(), sha256_of(text), release.pk],
        )
        cursor.execute("ALTER TABLE registry_release ENABLE TRIGGER USER")
    release.refresh_from_db()
    _DECLARED.pop(release.pk, None)  # a process remembers what a sealed release declares
    return release


def make_node(name: str = "local", **over: Any) -> Node:
    runtime = {"image": RUNTIME, "server": "triton", "backends": ["sluicegate-onnx", "python"], "versions": {}}
    return Node.objects.get_or_create(name=name, defaults={"runtimes": [runtime], "seen_at": timezone.now(), **over})[0]


def make_replica(release: Release | None = None, environment: Environment | None = None, **over: Any) -> Replica:
    return Replica.objects.create(
        release=release or make_release(),
        environment=environment or make_environment("production"),
        node=make_node(),
        **over,
    )


def make_server(replica: Replica | None = None, **over: Any) -> Server:
    """A server's row; nothing listens on its ports. The first has port 1, and each other an address of its own."""
    columns = {
        "http_port": 1 + 10 * Server.objects.count(),
        "grpc_port": 2,
        "metrics_port": 3,
        "pid": 4,
        "folder": "nowhere",
        "is_serving": True,
        **over,
    }
    return Server.objects.create(replica=replica or make_replica(), **columns)


def events_of(subject_type: str, subject_id: str | int) -> QuerySet[Event]:
    """What happened to one thing, newest first."""
    return Event.objects.filter(subject_type=subject_type, subject_id=str(subject_id)).order_by("-seq")
