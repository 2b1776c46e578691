"""What the commands share that tell what they would do before they do it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from sluicegate.cli.output import Output
from sluicegate.cli.settings_values import require_yes


def is_agreed(
    arguments: argparse.Namespace, output: Output, plan: dict[str, Any], says: Sequence[str], what_happens: str
) -> bool:
    """Tells the plan, and asks on a terminal. Where nobody can be asked, and there is no `--yes`, the plan is the result.

    Raises CommandError after a no. What is done is told with `is_done: true`.
    """
    if not arguments.yes and not (sys.stdin.isatty() and not output.as_json):
        output.result({**plan, "is_done": False}, [*says, "Nothing was done; add --yes."])
        return False
    for line in says:
        output.say(line)
    require_yes(arguments, what_happens)
    return True


def consent(arguments: argparse.Namespace, plan: dict[str, Any]) -> dict[str, Any]:
    """What is sent along: the digest of what somebody read before a yes, so that nothing else is done; with `--yes` nobody read it."""
    return {"is_confirmed": True} if arguments.yes else {"plan_digest": plan["plan_digest"]}
