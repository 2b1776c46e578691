"""`sluicegate registry gc`: what would be collected and why, and with --run, collecting it; `release retire` and `restore`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from accounts.core.quantities import size_text
from sluicegate.cli import exits
from sluicegate.cli.output import Output, short
from sluicegate.cli.session import connect
from sluicegate.client import Client
from sluicegate.client.names import release_path

ABOUT = """Shows what collection would do, with a reason for every item; nothing is changed. With --run it is done: bytes that nothing
needs are marked, and those whose time is over are deleted. Until then a retired release can be had back: release restore."""
COLUMNS = ("fate", "what", "which", "size", "why")
#: What a run reports, added up over its calls.
COUNTS = ("drafts", "marked", "restored", "deleted", "freed_bytes")


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verbs = commands.add_parser("registry", help="Look after the registry's bytes").add_subparsers(
        metavar="VERB", required=True
    )
    parser = verbs.add_parser("gc", help="Show, or with --run collect, bytes that nothing needs", description=ABOUT)
    parser.add_argument("--run", action="store_true", dest="is_run", help="do it (administrators)")
    parser.add_argument("--all", action="store_true", dest="is_all", help="show what stays, too, and why")
    parser.set_defaults(run=run_gc)


def add_release_verbs(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verbs below `release`."""
    for verb, text in (
        ("retire", "Say that nothing may use it any more; its bytes are collected after a while"),
        ("restore", "Take a retirement back, while the bytes are there"),
    ):
        parser = verbs.add_parser(verb, help=text)
        parser.add_argument("release", metavar="RELEASE")
        parser.add_argument("--reason", required=True)
        parser.set_defaults(run=run_decide, verb=verb)


def run_decide(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        base = release_path(arguments.release)
        version = client.get(base)["version"]
        done = client.post(f"{base}/{arguments.verb}", {"reason": arguments.reason}, version=version)
    back = f"sluicegate release restore {arguments.release} --reason TEXT"
    said = {
        "retire": f"{arguments.release} is retired. To take it back: {back}",
        "restore": f"{arguments.release} is sealed again, as it was.",
    }
    output.result(done, [said[arguments.verb]])
    return exits.OK


def run_gc(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        if arguments.is_run:
            return _collect(client, output)
        plan, items = _plan(client, is_all=arguments.is_all)
    if output.as_json:
        output.result({"totals": plan["totals"], "items": items})
        return exits.OK
    rows = ([i["fate"], i["kind"], _name(i), size_text(i["size_bytes"]), i["reason"]] for i in items)
    output.table(items, COLUMNS, rows, empty="There is nothing to collect.")
    for line in _totals(plan["totals"]):
        output.say(line)
    output.say("Nothing was changed. To collect: sluicegate registry gc --run")
    return exits.OK


def _plan(client: Client, *, is_all: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    first = client.get("/registry/collection", all=int(is_all))
    return first, list(_items(client, first, is_all=is_all))


def _items(client: Client, page: dict[str, Any], *, is_all: bool) -> Iterator[dict[str, Any]]:
    seen = 0
    while True:
        yield from page["items"]
        seen += len(page["items"])
        if not page["more"]:
            return
        page = client.get("/registry/collection", all=int(is_all), **{"from": seen})


def _totals(totals: dict[str, dict[str, int]]) -> Iterator[str]:
    for fate, counts in totals.items():
        if counts["releases"] or counts["blobs"]:
            yield f"{fate}: {counts['releases']} releases, {counts['blobs']} blobs, {size_text(counts['bytes'])}"


def _name(item: dict[str, Any]) -> str:
    return item["subject"] if item["kind"] == "release" else short(item["subject"])


def _collect(client: Client, output: Output) -> int:
    """Calls until nothing is left; a call that does nothing while something is left ends it, for the rest is held by others."""
    done = dict.fromkeys(COUNTS, 0)
    while True:
        step = client.post("/registry/collection")
        for name in COUNTS:
            done[name] += step[name]
        if not step["left"] or not any(step[name] for name in COUNTS):
            break
    told = {**done, "left": step["left"]}
    output.result(
        told,
        [
            f"{done['drafts']} abandoned drafts discarded, {done['marked']} blobs marked, {done['restored']} marks taken away, "
            f"{done['deleted']} blobs deleted, {size_text(done['freed_bytes'])} freed."
        ],
    )
    return exits.OK
