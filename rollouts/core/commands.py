"""Requests of a decision besides its action: typed, so that no rule steers another by the name of a fact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Command:
    """Every rule's state may obey it (`RuleState.obeyed`). `facts`: its part of the decision's facts."""

    @property
    def facts(self) -> Mapping[str, Any]:
        return {}


@dataclass(frozen=True)
class ForgetEvidence(Command):
    """Evidence of these guards is dropped. `has_scatter`: with how the candidate's counts scattered."""

    guards: tuple[str, ...]
    has_scatter: bool = False


class ForgetReplica(ForgetEvidence):
    """The evidence was of one replica, and so may the failures of late be."""


@dataclass(frozen=True)
class ForgetFirst(Command):
    """The candidate has a newer server: its first attempts are counted from here on."""
