"""Rules that a release's server kind adds to release.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from registry.core.kinds import KINDS
from registry.core.kinds.kind import ServerKind
from registry.core.kinds.texts import SERVING
from registry.core.schema import Problem

#: Members of `serving` that belong to servers of tensors.
_OF_TENSORS: Final = ("dynamic_batching", "queue_policy", "decoupled", "parameters")


def completed(document: Any) -> Any:
    """Returns the document with the fields that are the same for every text model."""
    kind = _kind_in(document)
    if kind is None or not kind.interfaces or not isinstance(document.get("serving"), dict):
        return document
    return {**document, "serving": {**SERVING, "options": {}, **document["serving"]}}


def lint(runtime: Mapping[str, Any], serving: dict[str, Any]) -> list[Problem]:
    """Returns every contradiction. Completes `serving.options` with their defaults."""
    kind = KINDS.get(runtime.get("server", ""))
    if kind is None:
        return []
    return [
        *_backend(kind, runtime.get("backend")),
        *_interface(kind, serving),
        *_options(kind, serving),
        *_instances(kind, serving),
    ]


def _kind_in(document: Any) -> ServerKind | None:
    runtime = document.get("runtime") if isinstance(document, dict) else None
    server = runtime.get("server") if isinstance(runtime, dict) else None
    return KINDS.get(server) if isinstance(server, str) else None


def _backend(kind: ServerKind, backend: Any) -> list[Problem]:
    owner = next((one.name for one in KINDS.values() if backend in one.backends), "")
    if not owner or backend in kind.backends:
        return []  # an unknown one is refused already
    said = f"{backend!r} is no backend of {kind.name}."
    fix = f"Write runtime.server {owner}, or runtime.backend {_one_of(kind.backends)}."
    return [Problem("runtime.backend", said, fix)]


def _interface(kind: ServerKind, serving: Mapping[str, Any]) -> list[Problem]:
    asked = serving.get("interface")
    if not kind.interfaces:
        said = f"{kind.name} serves tensors, and has no such setting."
        given = [name for name in ("interface", "options") if serving.get(name) is not None]
        return [Problem(f"serving.{name}", said, "Remove it.") for name in given]
    problems = []
    if asked not in kind.interfaces:
        said = f"{asked!r} is no interface of {kind.name}." if asked else "the interface of the model is missing."
        problems.append(Problem("serving.interface", said, f"Write {_one_of(kind.interfaces)}."))
    for name, value in SERVING.items():
        if name in serving and serving[name] != value:
            said = f"a release on {kind.name} takes one text and answers with one text."
            problems.append(Problem(f"serving.{name}", said, "Remove it."))
    given = [name for name in _OF_TENSORS if serving.get(name)]
    return problems + [
        Problem(f"serving.{name}", f"{kind.name} has no such setting; it batches by itself.", "Remove it.")
        for name in given
    ]


def _options(kind: ServerKind, serving: dict[str, Any]) -> list[Problem]:
    problems: list[Problem] = []
    if kind.interfaces and isinstance(serving.get("options"), dict):
        serving["options"] = kind.options.read(serving["options"], "serving.options", problems)
    return problems


def _instances(kind: ServerKind, serving: Mapping[str, Any]) -> list[Problem]:
    said = f"the serving environment of {kind.name} computes on the processor alone."
    return [
        Problem(f"serving.instance_group[{at}].kind", said, "Write cpu.")
        for at, group in enumerate(serving.get("instance_group", []))
        if group.get("kind") == "gpu" and not kind.has_gpu
    ]


def _one_of(names: Mapping[str, Any]) -> str:
    return " or ".join(names)
