"""Servers that their owners run: their address, and how their tensors differ from those that a release declares."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from posixpath import normpath
from typing import Any

from registry.core.serving import sent_dims

#: How releases get there: its owner puts them there, or their files go into the load request. Any other value is the absolute path
#: of the server's model repository on the agent's machine.
NOTHING, REQUEST = "nothing", "request"

_IMAGE = re.compile(r"[^@\s]+@sha256:[0-9a-f]{64}")
#: A tensor: its name, its type in the protocol, and its dims without the batch axis.
Stated = tuple[str, str, Sequence[int]]


@dataclass(frozen=True)
class StaticServer:
    """Where one is reached, over HTTP and gRPC."""

    host: str
    http_port: int
    grpc_port: int

    @classmethod
    def at(cls, text: str) -> StaticServer:
        """From `host:http:grpc`, such as 10.20.0.7:8000:8001. Raises ValueError."""
        host, *ports = text.split(":")
        if not host or len(ports) != 2 or not all(one.isdecimal() and 0 < int(one) < 65_536 for one in ports):
            raise ValueError(f"{text!r} is not address:HTTP port:gRPC port, such as 10.20.0.7:8000:8001")
        return cls(host, int(ports[0]), int(ports[1]))

    def __str__(self) -> str:
        return f"{self.host}:{self.http_port}:{self.grpc_port}"


def mistakes(loads: str, runtime: str, *, root: str) -> list[tuple[str, str]]:
    """Returns (field, sentence) for each value with which a server cannot be listed.

    Args:
        root: the folder below which model repositories lie (SLUICEGATE_STATIC_FOLDER); empty: none is shared.
    """
    found = []
    if loads not in (NOTHING, REQUEST) and not _is_below(loads, root):
        shared = f"a folder below {root}" if root else "a folder below SLUICEGATE_STATIC_FOLDER, which is not set"
        found.append(("loads", f"{loads[:200]!r} is neither {NOTHING!r}, {REQUEST!r}, nor {shared}."))
    if len(runtime) > 300 or not _IMAGE.fullmatch(runtime):
        found.append(
            (
                "runtime",
                f"{runtime[:200]!r} is no image by digest, such as company/triton@sha256:<64 hex digits>. "
                "Releases for this server are sealed for it.",
            )
        )
    return found


def _is_below(folder: str, root: str) -> bool:
    return (
        bool(root) and len(folder) <= 300 and folder == normpath(folder) and folder.startswith(f"{root.rstrip('/')}/")
    )


def share_files(one: str, other: str) -> bool:
    """Whether two values of `loads` are the same folder, or one folder lies in the other."""
    is_folder = one.startswith("/") and other.startswith("/")
    return is_folder and (f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/"))


def differences(serving: Mapping[str, Any], inputs: Sequence[Stated], outputs: Sequence[Stated]) -> list[str]:
    """How what a server states contradicts a release's `serving`, a sentence each.

    A size that the server leaves open (-1) contradicts none. An output more than was declared is none of ours.
    """
    if not inputs and not outputs:
        return ["It states neither inputs nor outputs, so that there is nothing to compare."]
    found = []
    for side, stated in (("input", inputs), ("output", outputs)):
        said = {name: (kind, tuple(dims)) for name, kind, dims in stated}
        wanted = {one["name"]: (one["data_type"], tuple(sent_dims(one["dims"]))) for one in serving[f"{side}s"]}
        for name, one in wanted.items():
            if name not in said:
                found.append(f"It states no {side} {name}.")
            elif not _agree(said[name], one):
                found.append(f"Its {side} {name} is {_worded(said[name])}, and {_worded(one)} is declared.")
        if side == "input":
            found += [
                f"It asks for the input {name}, which is not declared." for name in sorted(set(said) - set(wanted))
            ]
    return found


def _agree(said: tuple[str, tuple[int, ...]], wanted: tuple[str, tuple[int, ...]]) -> bool:
    (kind, dims), (wanted_kind, wanted_dims) = said, wanted
    same_rank = kind == wanted_kind and len(dims) == len(wanted_dims)
    return same_rank and all(dim in (-1, want) for dim, want in zip(dims, wanted_dims, strict=True))


def _worded(tensor: tuple[str, tuple[int, ...]]) -> str:
    return f"{tensor[0]}{list(tensor[1])}"
