"""What a decision asks for besides its action: typed, so that no rule steers another by the name of a fact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ForgetEvidence:
    """The guard's evidence is of a server that was warming up, and is dropped."""

    guard: str

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"forget": self.guard}


@dataclass(frozen=True)
class EjectReplica:
    """The candidate's replica gets no more traffic, and another takes its place. `besides`: guards whose evidence is of it, as errors are."""

    replica: str
    besides: tuple[str, ...] = ()

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"set_aside": self.replica, "besides": list(self.besides)}


@dataclass(frozen=True)
class ReplaceStable:
    """Another replica of stable takes the place of this one. `is_aside`: this one gets no more traffic until then."""

    replica: str
    is_aside: bool

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"replace_stable": self.replica, "is_aside": self.is_aside}


@dataclass(frozen=True)
class RefuseForced:
    """The gateways refuse requests that force a release, until the rollout ends."""

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"refuse_forced": True}


Command = ForgetEvidence | EjectReplica | ReplaceStable | RefuseForced
