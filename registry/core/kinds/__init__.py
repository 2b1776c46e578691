"""The server kinds that releases may name, one file each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from registry.core.kinds.kind import Codec, ServerKind
from registry.core.kinds.llamacpp import LLAMACPP
from registry.core.kinds.openai import OPENAI
from registry.core.kinds.triton import TRITON

KINDS: Final[Mapping[str, ServerKind]] = {kind.name: kind for kind in (TRITON, LLAMACPP, *OPENAI)}
#: Kind of a release that names none.
DEFAULT: Final = TRITON.name
#: Path of the file that each backend loads.
BACKEND_FILES: Final[dict[str, str]] = {
    name: backend.entry for kind in KINDS.values() for name, backend in kind.backends.items()
}
#: Every value of `spoken_by`.
SPOKEN: Final = frozenset({"", *(f"{kind.name}/{one}" for kind in KINDS.values() for one in kind.interfaces)})


def kind_of(manifest: Mapping[str, Any]) -> ServerKind:
    """The server kind that a manifest names. Raises KeyError for an unknown kind."""
    return KINDS[(manifest.get("runtime") or {}).get("server", DEFAULT)]


#: Backends that manifests of an older schema name otherwise.
_RENAMED: Final[Mapping[str, Mapping[str, str]]] = {"sluicegate/manifest/v1": {"onnxruntime": "sluicegate-onnx"}}


def backend_of(manifest: Mapping[str, Any]) -> str:
    """Returns the backend that runs a release, by its name today; "" if a manifest names none."""
    named = str((manifest.get("runtime") or {}).get("backend", ""))
    return _RENAMED.get(manifest.get("schema", ""), {}).get(named, named)


def runtime_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a manifest's `runtime` with the backend's name of today. A release.yaml is read alike."""
    stated = manifest.get("runtime") or {}
    return {**stated, "backend": backend_of(manifest)} if stated else {}


def spoken_by(manifest: Mapping[str, Any]) -> str:
    """Returns the protocol of a release's server: `kind/interface`, or "" for the Open Inference Protocol."""
    interface = manifest["serving"].get("interface")
    return f"{kind_of(manifest).name}/{interface}" if interface else ""


def spoken(speaks: str) -> tuple[ServerKind, Codec]:
    """Returns the kind and the codec of a value of `spoken_by`. Raises KeyError, ValueError."""
    name, interface = speaks.split("/")
    return KINDS[name], KINDS[name].interfaces[interface]


def tells_live(name: str) -> bool:
    """Whether silence of this server's liveness call means that its process is frozen. False for a server of no known kind."""
    return name in KINDS and KINDS[name].tells_live
