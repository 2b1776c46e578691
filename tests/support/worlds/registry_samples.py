"""What the registry's tests share: a good release.yaml to spoil, people, a model and a release on its way."""

from __future__ import annotations

import copy
import hashlib
import io
from typing import Any

from accounts.actions import actor_for
from accounts.core.access import Actor, Role
from accounts.models import User
from registry import actions
from registry.core import oms
from registry.models import Release, ServedModel
from registry.signing.installation_keys import known_keys
from registry.signing.public_keys import PublicKey, signer_of
from tests.support.worlds.factories import make_user
from tests.support.worlds.model_files import onnx_file

IMAGE = "triton-local@sha256:" + "a" * 64
ONNX = onnx_file()
CONTRACT: dict[str, Any] = {
    "inputs": [{"name": "text", "data_type": "BYTES", "dims": [1]}],
    "outputs": [{"name": "probabilities", "data_type": "FP32", "dims": [2]}],
}
_SPEC: dict[str, Any] = {
    "model": "sentiment",
    "runtime": {"image": IMAGE, "server": "triton", "backend": "sluicegate-onnx"},
    "serving": {
        "max_batch_size": 16,
        **CONTRACT,
        "dynamic_batching": {"preferred_batch_size": [4, 8], "max_queue_delay_us": 1000},
        "instance_group": [{"kind": "cpu", "count": 1}],
        "queue_policy": None,
        "warmup": [{"batch_size": 1, "inputs": {"text": "warm"}}],
        "parameters": {"max_tokens": "128"},
    },
    "envelope": {"host": {"memory_mib_min": 512}, "limits": {"max_batch_size": 16}},
    "provenance": {"git_commit": "4f2a9c1", "notes": "The first."},
}


def release_yaml(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """A good document with changes by dotted path, such as {"serving.max_batch_size": -1}; ... removes the member."""
    document = copy.deepcopy(_SPEC)
    for path, value in (changes or {}).items():
        *parents, last = path.split(".")
        inside = document
        for part in parents:
            inside = inside[int(part)] if isinstance(inside, list) else inside.setdefault(part, {})
        if value is ...:
            del inside[last]
        elif isinstance(inside, list):
            inside[int(last)] = value
        else:
            inside[last] = value
    return document


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def announced(**files: bytes) -> list[dict[str, Any]]:
    """The `files` of a draft; `__` in a keyword is a slash and `_` before the ending a dot: artifact__model_onnx."""
    return [{"path": file_path(name), "sha256": sha256(data), "size_bytes": len(data)} for name, data in files.items()]


def file_path(name: str) -> str:
    folder, _, file = name.rpartition("__")
    return f"{folder}/{'.'.join(file.rsplit('_', 1))}"


def person(name: str, role: Role = Role.MODEL_TEAM, team: str = "vision") -> User:
    """A user with one role in a team."""
    return make_user(name, team=team, role=role)


def developer(name: str = "dev") -> Actor:
    return actor_for(person(name, Role.MODEL_TEAM))


def served_model(actor: Actor, **over: Any) -> ServedModel:
    settings: dict[str, Any] = {
        "slug": "sentiment",
        "team": "vision",
        "contract": CONTRACT,
        "objectives": {},
        "gate_policy": {},
        "rollout_policy": {},
    }
    return actions.create_model(actor=actor, **settings | over)[0]


def draft_with(
    actor: Actor, model: ServedModel, data: bytes = ONNX, changes: dict[str, Any] | None = None, **more: bytes
) -> Release:
    """A draft that holds artifact/model.onnx and more files, ready to be sealed."""
    release, _ = actions.create_draft(actor=actor, model=model, spec=release_yaml(changes))
    for path, content in {"artifact/model.onnx": data, **{file_path(n): d for n, d in more.items()}}.items():
        put(actor, release, path, content)
    return release


def put(actor: Actor, release: Release, path: str, data: bytes) -> None:
    actions.add_file(
        actor=actor, release=release, path=path, sha256=sha256(data), stream=io.BytesIO(data), size_bytes=len(data)
    )


def verified_bundle(text: str) -> tuple[bytes, PublicKey]:
    """(payload, key) of a bundle that a key of this installation signed. Raises oms.BundleError."""
    bundle = oms.read_bundle(text)
    return bundle.payload, signer_of(bundle, [known.public for known in known_keys()])
