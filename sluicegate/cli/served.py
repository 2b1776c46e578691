"""`sluicegate served MODEL --env E --at T`: which releases served then, at which weights, and why."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from sluicegate.cli import exits
from sluicegate.cli.output import Output, short
from sluicegate.cli.session import connect
from sluicegate.cli.webhook import moment_of

COLUMNS = ("since", "served", "why", "by")


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "served",
        help="Tell what served a model at a time, at which weights, and why",
        description="Read from the hash-chained log of events, which `sluicegate audit verify` checks.",
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--env", "--environment", default="production", metavar="E", dest="environment")
    when = parser.add_mutually_exclusive_group()
    when.add_argument(
        "--at", metavar="TIME", help="2026-03-01T12:00:00Z (UTC if no zone), or 30m, 2h, 3d ago; now if left out"
    )
    when.add_argument("--history", action="store_true", help="every change instead, newest first")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="of --history")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    path = f"/environments/{quote(arguments.environment, safe='')}/models/{quote(arguments.model, safe='')}/served"
    with connect(arguments.server) as client:
        if arguments.history:
            moves = list(client.pages(f"{path}/history", limit=arguments.limit))
            rows = ([move["at"], shares(move["arms"]), move["reason"], move["actor"]] for move in moves)
            output.table(moves, COLUMNS, rows, empty=f"Nothing was ever routed in {arguments.environment}.")
            return exits.OK
        at = {"at": moment_of(arguments.at, datetime.now(UTC)).isoformat()} if arguments.at else {}
        told = client.get(path, **at)
    output.result(told, lines(told))
    return exits.OK


def shares(arms: list[dict[str, Any]]) -> str:
    """`r14 5 %, r13 95 %`; a release that is only there to be compared has 0 %."""
    return ", ".join(f"{arm['release']} {arm['weight_pct']:g} %" for arm in reversed(arms)) or "nothing"


def lines(told: dict[str, Any]) -> Iterator[str]:
    where = f"{told['model']} in {told['environment']} at {told['at']}"
    if not told["arms"]:
        yield from unserved(told, where)
        return
    yield f"{where}: {shares(told['arms'])}"
    for arm in told["arms"]:
        yield f"  {arm['role']:<9} {arm['release']:<6} {arm['weight_pct']:g} %  {short(arm['digest'])}"
    yield from since(told)
    rollout = told["rollout"]
    if rollout:
        decision = rollout["decision"]
        said = f": {decision['action']}, {decision['reason']}" if decision else ""
        yield f"rollout {rollout['id']} of {rollout['candidate']}{'' if rollout['under_way'] else ' (ended)'}{said}"
    if told["observed"] and told["observed"]["candidate_pct"] is not None:
        yield f"counted by the gateways: {told['observed']['candidate_pct']:g} % on the candidate"
    yield event(told)


def unserved(told: dict[str, Any], where: str) -> Iterator[str]:
    """Nothing was routed: not yet, or no longer."""
    if not told["since"]:
        yield f"{where}: nothing was routed" + (f" before {told['until']}." if told["until"] else ".")
        return
    yield f"{where}: nothing was routed any more"
    yield from since(told)
    yield event(told)


def since(told: dict[str, Any]) -> Iterator[str]:
    yield f"since {told['since']}, {'until ' + told['until'] if told['until'] else 'and still'}"
    yield f"why: {told['reason']} [{told['actor']}]"


def event(told: dict[str, Any]) -> str:
    intact = "intact" if told["event"]["is_intact"] else "NOT what was written: run sluicegate audit verify"
    return f"event {told['event']['seq']} {told['event']['hash'][:12]}, {intact}"
