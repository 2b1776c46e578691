"""`sluicegate release note` and `sluicegate release comments`: what people say of a release, outside its digest."""

from __future__ import annotations

import argparse
from typing import Any

from sluicegate.cli import exits
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect
from sluicegate.client.names import release_path


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "note",
        help="Show or write a release's note and tags, which are outside its digest",
        description="Without --text and --tag, shows the note and its history. With either, writes the note from now on: "
        "what is left out of text and tags stays as it is.",
    )
    parser.add_argument("release", metavar="RELEASE")
    parser.add_argument("--text", help="plain text; '' takes it back")
    parser.add_argument(
        "--tag", action="append", metavar="TAG", help="such as precision=int8; repeat it; '' takes all back"
    )
    parser.set_defaults(run=run_note)
    parser = verbs.add_parser("comments", help="List the comments on a release's comparisons, write or resolve one")
    parser.add_argument("release", metavar="RELEASE")
    parser.add_argument("--open", action="store_true", help="only those that nobody has resolved")
    parser.add_argument("--write", metavar="TEXT", help="write one")
    parser.add_argument("--section", default="verdict", help="verdict, metrics, golden, configuration, code or tensors")
    parser.add_argument("--against", metavar="rN", help="the older release of the comparison")
    parser.add_argument("--file", default="", metavar="PATH", help="a file of the release, such as artifact/model.py")
    parser.add_argument("--line", type=int, metavar="N")
    parser.add_argument("--resolve", type=int, metavar="ID", help="settle this one")
    parser.set_defaults(run=run_comments)


def run_note(arguments: argparse.Namespace, output: Output) -> int:
    address = f"{release_path(arguments.release)}/notes"
    with connect(arguments.server) as client:
        notes = list(client.pages(address))
        now: dict[str, Any] = notes[0] if notes else {"version": 0, "text": "", "tags": []}
        if arguments.text is not None or arguments.tag is not None:
            tags = now["tags"] if arguments.tag is None else [tag for tag in arguments.tag if tag]
            text = now["text"] if arguments.text is None else arguments.text
            written = client.post(address, {"text": text, "tags": tags}, version=now["version"])
            output.result(written, [f"{arguments.release} has its note {written['version']}."])
            return exits.OK
    lines = [f"{note['at']}  {note['written_by']}  {_shown(note)}" for note in notes]
    output.result({"release": arguments.release, "notes": notes}, lines or ["Nobody has written a note."])
    return exits.OK


def _shown(note: dict[str, Any]) -> str:
    return (
        "  ".join(part for part in (" ".join(f"[{tag}]" for tag in note["tags"]), note["text"]) if part)
        or "(taken back)"
    )


def run_comments(arguments: argparse.Namespace, output: Output) -> int:
    address = f"{release_path(arguments.release)}/comments"
    with connect(arguments.server) as client:
        if arguments.resolve is not None:
            settled = client.post(f"{address}/{arguments.resolve}/resolve")
            output.result(settled, [f"Comment {settled['id']} is resolved."])
            return exits.OK
        if arguments.write is not None:
            said = {"text": arguments.write, "section": arguments.section, "path": arguments.file}
            if arguments.against:
                said["against"] = arguments.against.rpartition("/")[2]
            if arguments.line:
                said["line"] = arguments.line
            written = client.post(address, said)
            output.result(written, [f"Comment {written['id']} is written."])
            return exits.OK
        found = list(client.pages(address, open="true" if arguments.open else "false"))
    rows = ([one["id"], _place(one), one["written_by"], one["resolved_by"] or "open", one["text"]] for one in found)
    output.table(found, ("id", "about", "by", "resolved by", "text"), rows, empty="There are no comments.")
    return exits.OK


def _place(comment: dict[str, Any]) -> str:
    place = f"{comment['path']}:{comment['line']}" if comment["line"] else comment["path"]
    return f"{comment['section']} {place}".strip()
