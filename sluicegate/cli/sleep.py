"""`sluicegate sleep`: letting models that nobody asks give their memory back, and waking them."""

from __future__ import annotations

import argparse
from typing import Any

from sluicegate.cli import exits
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect
from sluicegate.client.names import model_path

COLUMNS = ("environment", "state", "since", "unload after", "yields after", "wakes by", "memory", "note")


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("sleep", help="Let models that nobody asks give their memory back, and wake them")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    show = verbs.add_parser("show", help="Show whether a model sleeps, and when it may")
    show.add_argument("model", metavar="MODEL")
    show.set_defaults(run=run_show)
    rule = verbs.add_parser("rule", help="Say when a model may sleep; what is left out is off")
    rule.add_argument("--unload-after", type=int, metavar="SECONDS", help="without a request (never)")
    rule.add_argument(
        "--yields-after",
        type=int,
        metavar="SECONDS",
        help="without a request, where something else needs its room (never)",
    )
    rule.add_argument("--by-hand", action="store_true", help="requests do not wake it")
    begin = verbs.add_parser("begin", help="Unload its servers now; gateways answer 503 with Retry-After")
    end = verbs.add_parser("end", help="Wake it: load its servers again")
    for verb, run in ((rule, run_rule), (begin, run_begin), (end, run_end)):
        verb.add_argument("model", metavar="MODEL")
        verb.add_argument("--environment", default="production", metavar="ENVIRONMENT", help="(production)")
        verb.add_argument("--reason", default="", help="told in the log")
        verb.set_defaults(run=run)


def run_show(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        found = client.get(f"{model_path(arguments.model)}/sleep")["results"]
    output.table(
        found, COLUMNS, map(_row, found), empty=f"{arguments.model} is served nowhere. A rollout brings it there."
    )
    return exits.OK


def run_rule(arguments: argparse.Namespace, output: Output) -> int:
    body = {
        **_where(arguments),
        "unload_after_s": arguments.unload_after,
        "yields_after_s": arguments.yields_after,
        "loads_on_demand": not arguments.by_hand,
    }
    with connect(arguments.server) as client:
        found = client.post(f"{model_path(arguments.model)}/sleep", body, is_any_version=True)
    after = found["unload_after_s"]
    said = (
        f"is unloaded in {found['environment']} after {after} s without a request"
        if after
        else "never sleeps by itself"
    )
    more = (
        f"; where something else needs its room, after {found['yields_after_s']} s" if found["yields_after_s"] else ""
    )
    output.result(found, [f"{arguments.model} {said}{more}."])
    return exits.OK


def run_begin(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        found = client.post(f"{model_path(arguments.model)}/sleep/begin", _where(arguments))
    asked = (
        f"callers are told to ask again after {found['retry_after_s']} s"
        if found["loads_on_demand"]
        else "only a person wakes it"
    )
    output.result(found, [f"{arguments.model} is {found['state']} in {found['environment']}; {asked}."])
    return exits.OK


def run_end(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        found = client.post(f"{model_path(arguments.model)}/sleep/end", _where(arguments))
    said = f"{arguments.model} is {found['state']} in {found['environment']}."
    output.result(found, [said, f"See it answer: sluicegate sleep show {arguments.model}"])
    return exits.OK


def _where(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"environment": arguments.environment, "reason": arguments.reason}


def _row(one: dict[str, Any]) -> list[Any]:
    held = f"{one['measured_mib']} MiB" if one["measured_mib"] is not None else f"{one['declared_mib']} MiB declared"
    note = one["kept_awake"] or one["trouble"] or one["state_reason"]
    return [
        *(one["environment"], one["state"], one["state_since"] or "-", _seconds(one["unload_after_s"])),
        *(_seconds(one["yields_after_s"]), "requests" if one["loads_on_demand"] else "hand", held, note),
    ]


def _seconds(value: int | None) -> str:
    return "never" if value is None else f"{value} s"
