"""`sluicegate rollout replay ID`: what another policy would have decided, beside what happened."""

from __future__ import annotations

import argparse
from typing import Any

from accounts.core.quantities import weight_text
from sluicegate.cli import exits
from sluicegate.cli.output import Output, short
from sluicegate.cli.policies import add_policy_options, policy_in
from sluicegate.cli.session import connect

_HOLD = "hold"


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "replay",
        help="Judge a stored rollout by another policy",
        description="State and weight are those that were: a policy that would have rolled back at some tick is still asked "
        "about the ticks after it. Without an option the model's own policy of today is asked. Changes nothing.",
    )
    parser.add_argument("rollout", type=int, metavar="ROLLOUT")
    add_policy_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    policy = policy_in(arguments)
    path = f"/rollouts/{arguments.rollout}/replay"
    with connect(arguments.server) as client:
        found = client.get(path) if policy is None else client.post(path, {"policy": policy})
    output.result(found, lines(found))
    return exits.OK


def lines(found: dict[str, Any]) -> list[str]:
    """What the policy would have said, then what happened."""
    whose = "its own policy" if found["is_own_policy"] else f"policy {short(found['policy_digest'])}"
    told = [f"Rollout {found['rollout']} under {whose}, {found['ticks']} ticks:"]
    if all(turn["action"] == _HOLD for turn in found["turns"]):
        told.append(f"  it would have held throughout. {_last(found)}".rstrip())
    else:
        told += _stages(found["turns"])
    if found["not_counted"]:
        told.append(f"! not counted in this history, so nothing bad is found there: {', '.join(found['not_counted'])}")
    happened = found["happened"]
    told += ["", f"What happened: {happened['state']}. {happened['reason']}".rstrip()]
    told += [
        f"  {_time(one['at'])}  {one['action']}  {one['reason']}  [{one['actor']}]" for one in happened["decisions"]
    ]
    return told


def _stages(turns: list[dict[str, Any]]) -> list[str]:
    """What it would have done in each stage. Of holds the last one, where the rollout then went on all the same."""
    told: list[str] = []
    for turn, after in zip(turns, [*turns[1:], None], strict=True):
        if turn["action"] != _HOLD:
            told.append(_line(turn))
        elif after is not None and _stage(after) != _stage(turn):
            told.append(f"{_line(turn)} It would still have held when the rollout went on.")
    return told


def _stage(turn: dict[str, Any]) -> tuple[str, int]:
    return turn["state"], turn["step_index"]


def _line(turn: dict[str, Any]) -> str:
    at = f"tick {turn['tick']}, {weight_text(turn['weight_bp'])}"
    return f"  {_time(turn['at'])}  {turn['action']} ({turn['code']}, {at})  {turn['reason']}"


def _last(found: dict[str, Any]) -> str:
    return str(found["turns"][-1]["reason"]) if found["turns"] else ""


def _time(at: str) -> str:
    return at[11:19]
