"""`sluicegate check`: every mistake of a release folder, with its file, line and column, before anything is sent."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from registry.core.gpu_memory import estimate
from sluicegate.cli import exits
from sluicegate.cli.envelope import memory_lines
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect, find_token, server_url
from sluicegate.client.checks import Verdict, judge
from sluicegate.client.errors import place_of
from sluicegate.client.folder import ReleaseFolder, read_folder

ABOUT = """Reads DIR/release.yaml and the headers of the files beside it, and prints every mistake that `push` would refuse, each as
FILE:LINE:COLUMN: fields, types, names, formats, the graph's inputs and outputs, warm-up values, the model's contract, config.pbtxt.
It also shows whether a node can run the release, and estimates its GPU memory. Nothing is hashed, sent or stored. Without a server
or a sign-in it prints the mistakes that this machine can find, and names the checks that are open. Exit 3 if something is wrong."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "check", help="Every mistake of a release folder at once, sending nothing", description=ABOUT
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="the release folder")
    parser.add_argument("--model", help="the model it belongs to, when release.yaml should not decide")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """For `sluicegate check` and `sluicegate push --check`."""
    told = _answer(read_folder(arguments.folder), arguments)
    lines = [f"{place_of(one)}: {one['message']} {one['fix']}".strip() for one in told["problems"]]
    lines += [f"warning: {one}" for one in told["warnings"]]
    lines += memory_lines(told["gpu_memory_estimate"])
    lines += [told["left_out_words"]] if told["left_out_words"] else []
    lines += [f"Not checked: {one.rstrip('.')}." for one in told["not_checked"]]
    del told["left_out_words"]
    output.result(told, [*lines, *_summary(str(arguments.folder), told)])
    return exits.REFUSED if told["problems"] else exits.OK


def _summary(folder: str, told: dict[str, Any]) -> list[str]:
    if told["problems"]:
        count = len(told["problems"])
        return [f"{folder} has {count} mistake{'s' * (count != 1)}; nothing was sent."]
    if told["runs_nowhere"]:
        return [f"{folder} has no mistake, and can be pushed, but not run: {told['runs_nowhere']}"]
    if told["not_checked"]:
        return [f"{folder} has no mistake, as far as it was checked."]
    return [f"{folder} is fine, by the files here."]


def _answer(folder: ReleaseFolder, arguments: argparse.Namespace) -> dict[str, Any]:
    """The answer of `releases:check`, with the estimate of GPU memory and the paths that are left out."""
    url = server_url(arguments.server)
    if find_token(url):
        with connect(arguments.server) as client:
            verdict = judge(client, folder, arguments.model)
        not_checked = list(verdict.not_checked)
    else:
        verdict = judge(None, folder, arguments.model)
        not_checked = [*verdict.not_checked, f"the rest, as you are not signed in to {url} (`sluicegate login`)"]
    return {
        **verdict.as_json(),
        "not_checked": not_checked,
        "gpu_memory_estimate": _gpu_memory(verdict),
        "left_out": list(folder.left_out),
        "left_out_words": folder.left_out_words(),
    }


def _gpu_memory(verdict: Verdict) -> dict[str, Any] | None:
    """The estimate by the files here; None for a release.yaml with mistakes, or without a GPU."""
    spec = verdict.checked.spec
    found = None if spec is None else estimate(spec.backend, spec.serving, spec.envelope, verdict.facts)
    return None if found is None else found.as_json()
