"""`sluicegate rollout post-mortem ID`: what is written down of an ended rollout, to keep or to send."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from sluicegate.cli import exits
from sluicegate.cli.errors import refuse
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "post-mortem",
        help="Write down an ended rollout: what, the clock, who was hit and told, what next",
        description="HTML is one file with its plots that needs nothing from elsewhere.",
    )
    parser.add_argument("rollout", type=int, metavar="ROLLOUT")
    parser.add_argument("--format", choices=["md", "html", "json"], default="md", help="md by default")
    parser.add_argument("-o", "--output", metavar="FILE", help="write it there instead of printing it")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    kind = arguments.format
    with connect(arguments.server) as client:
        wanted = "" if kind == "json" else f"?as={kind}"
        found = client.get(f"/rollouts/{arguments.rollout}/post-mortem{wanted}")
    text = json.dumps(found, indent=2, ensure_ascii=False) if kind == "json" else str(found["document"])
    if arguments.output is None:
        output.result(found, [text])
        return exits.OK
    try:
        Path(arguments.output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise refuse(f"{arguments.output} cannot be written: {error.strerror}.") from None
    output.result({"file": arguments.output}, [f"Written to {arguments.output}."])
    return exits.OK
