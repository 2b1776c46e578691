"""`sluicegate judge`: the verdict on counters of any two releases."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from sluicegate.cli import exits
from sluicegate.cli.errors import CommandError
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect

_EXITS = {"passed": exits.OK, "failed": exits.FAILED, "inconclusive": exits.UNDER_WAY}


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "judge",
        help="Judge counters of a candidate against those of stable",
        description="Exit 0: passed; 1: failed; 4: inconclusive. An arm is a JSON file of points [seconds since 1970, bad, total], "
        "or two PromQL queries: the counter of bad requests and that of all.",
    )
    for arm in ("candidate", "stable"):
        parser.add_argument(
            f"--{arm}", nargs="+", required=arm == "candidate", metavar="FILE|QUERY", help="its counters"
        )
    parser.add_argument("--max-frac", type=float, help="the objective: share of bad requests; needed without --stable")
    parser.add_argument("--min-requests", type=int, default=0, help="of the candidate, to pass")
    parser.add_argument("--words", help="noun of the bad requests, such as errors")
    parser.add_argument(
        "--start", help="of queries: start of the window, the same in each call, as 2026-11-28T12:00:00Z"
    )
    parser.add_argument("--key", help="of queries, in place of --start: the first call with it starts the window")
    parser.add_argument("--step", type=int, default=15, metavar="S", help="of queries: seconds between readings (15)")
    parser.add_argument(
        "--timeout", type=float, default=0, metavar="S", help="ask again while inconclusive, this long (0)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    until = time.monotonic() + arguments.timeout
    with connect(arguments.server) as client:
        while True:
            found = client.post_again("/judgements", body_of(arguments))
            if found["verdict"] != "inconclusive" or time.monotonic() + arguments.step > until:
                break
            time.sleep(arguments.step)
    more = found["requests_to_go"]
    output.result(found, [f"{found['verdict']}: {found['sentence']}", *([f"{more} requests to go"] if more else [])])
    return _EXITS[found["verdict"]]


def body_of(arguments: argparse.Namespace) -> dict[str, Any]:
    given = {"max_frac": arguments.max_frac, "words": arguments.words, "start": arguments.start, "key": arguments.key}
    body = {name: value for name, value in given.items() if value is not None}
    arms = {name: _arm(named) for name in ("candidate", "stable") if (named := getattr(arguments, name))}
    return {**body, **arms, "min_requests": arguments.min_requests, "step_s": arguments.step}


def _arm(named: list[str]) -> dict[str, Any]:
    if len(named) == 2:
        return {"bad_query": named[0], "total_query": named[1]}
    try:
        return {"points": json.loads(Path(named[0]).read_text())}
    except (OSError, ValueError) as error:
        raise CommandError(f"{named[0]} is no JSON file of points: {error}", exit_code=exits.REFUSED) from None
