"""What ends a command: the client's errors, and those that the command line finds by itself."""

from __future__ import annotations

from typing import Any

from sluicegate.cli import exits
from sluicegate.client.errors import ClientError, Expired, LostSight, Problem, Unreachable

__all__ = ["CommandError", "Problem", "Unreachable", "exit_code_of", "refuse"]


class CommandError(ClientError):
    """A local error, with the command's exit code."""

    def __init__(self, message: str, *, exit_code: int, next_step: str = "", **facts: Any) -> None:
        super().__init__(message, next_step=next_step, **facts)
        self.exit_code = exit_code


def exit_code_of(error: ClientError) -> int:
    """With which code a command ends that this error stopped."""
    if isinstance(error, CommandError):
        return error.exit_code
    if isinstance(error, LostSight):
        return exits.UNDER_WAY
    if isinstance(error, Expired):
        return exits.INFRASTRUCTURE
    if isinstance(error, Problem):
        # the command ends as the release's earlier rollout did: asking again is no mistake
        is_known = error.code == "tried_before"
        return exits.of_rollout(error.facts.get("state", "")) if is_known else exits.of_status(error.status)
    return exits.INFRASTRUCTURE if isinstance(error, Unreachable) else exits.REFUSED


def refuse(message: str, next_step: str = "", **facts: Any) -> CommandError:
    """A local check failed before a request."""
    return CommandError(message, exit_code=exits.REFUSED, next_step=next_step, **facts)
