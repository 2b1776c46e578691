"""`sluicegate release diff`: prints the server's comparison of two releases."""

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

_SIGNS = {"added": "+", "removed": "-", "changed": "~", "renamed": "»"}
#: Printed changes; --json has all, with each tensor, token and measured value.
_MOST_LINES = 40


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "diff",
        help="Compare two releases: files, configuration, tensors, tokenizer and what their gates measured",
        description="Shows the changes from OLD to NEW. Warns if more than one part changes at once.",
    )
    parser.add_argument("old", metavar="OLD")
    parser.add_argument("new", metavar="NEW")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        told = diff(client, arguments.old, arguments.new)
    output.result({"old": arguments.old, "new": arguments.new, "diff": told, **_flat(told)}, lines(told))
    return exits.OK


def diff(client: Client, old: str, new: str) -> dict[str, Any]:
    """The server's comparison of both releases."""
    release_path(old)  # a name that cannot be one is refused here
    told: dict[str, Any] = client.get(f"{release_path(new)}/diff", against=old)
    return told


def _flat(told: dict[str, Any]) -> dict[str, Any]:
    """The rows that scripts ask for most, at the top."""
    return {"is_same": told["is_same"], "changes": told["changes"], "warning": told["coupled"]["warning"]}


def lines(told: dict[str, Any]) -> list[str]:
    """One line for each change, such as `~ files artifact/model.onnx  1f0c… 86.7 MiB → 7a2b… 21.9 MiB`, then the rest."""
    names = [f"{told[side]['model']}/{told[side]['name']}" for side in ("old", "new")]
    if told["is_same"]:
        return [f"{names[0]} and {names[1]} are the same bytes."]
    found = [*_changes(told), *_tensors(told), *_tokenizers(told), *_gates(told)]
    if told["coupled"]["warning"]:
        found.append(f"Warning: {told['coupled']['warning']}")
    return found


def _changes(told: dict[str, Any]) -> Iterator[str]:
    for change in told["changes"][:_MOST_LINES]:
        yield f"{_SIGNS[change['kind']]} {change['part']} {change['field']}  {_sides(change)}"
    more = len(told["changes"]) - _MOST_LINES + told["changes_left_off"]
    if more > 0:
        yield f"… and {more} more changes; --json lists them."


def _sides(change: dict[str, Any]) -> str:
    if change["kind"] == "renamed":
        return f"was {change['old']['path']}"
    return " → ".join(_shown(change["part"], change[side]) for side in ("old", "new") if change[side] is not None)


def _shown(part: str, value: Any) -> str:
    if part == "files":
        return f"{short(value['sha256'])} {size_text(value['size_bytes'])}"
    text = str(value)
    return text if len(text) <= 120 else f"{text[:117]}…"


def _tensors(told: dict[str, Any]) -> Iterator[str]:
    for one in told["tensors"]:
        counts = ", ".join(f"{one[kind]} {kind}" for kind in ("changed", "added", "removed") if one[kind])
        yield f"tensors ({one['format']}): {counts or 'the same names, types and shapes'}; {one['same']} the same"
    yield from (f"tensors of {path} are not known: {why}." for path, why in sorted(told["unread"].items())[:5])


def _tokenizers(told: dict[str, Any]) -> Iterator[str]:
    for path, found in told["tokenizers"].items():
        if "unknown" in found:
            yield f"{path}: {found['unknown']}"
            continue
        size = found["vocabulary"]
        yield (
            f"{path}: {size['old']} → {size['new']} tokens; {size['added']} added, {size['removed']} removed, "
            f"{size['changed']} changed"
        )


def _gates(told: dict[str, Any]) -> Iterator[str]:
    for gate in told["gates"]:
        yield f"gate {gate['gate']}: {gate['old'] or 'not run'} → {gate['new'] or 'not run'}"
    yield from (f"  {one['gate']} {one['metric']}: {one['says']}" for one in told["metrics"])
    if told["agreement"]:
        share = told["agreement"]
        yield f"  equal answers: {share['value']:.2%} ({share['low']:.2%} to {share['high']:.2%}) of {share['n']}"
