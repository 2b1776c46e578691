"""How a command names a rollout policy: a file or a preset."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sluicegate.client.documents import read_yaml


def add_policy_options(parser: argparse.ArgumentParser) -> None:
    """`--policy YAML` or `--preset NAME`, in place of the model's own policy."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--policy", type=Path, metavar="YAML", help="a policy other than the model's")
    either.add_argument("--preset", metavar="NAME", help="a preset as it is: careful, standard or fast")


def policy_in(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """The policy that was named; None for the model's own."""
    if arguments.policy:
        return read_yaml(arguments.policy)
    return {"preset": arguments.preset} if arguments.preset else None
