"""`sluicegate check`: every mistake of a release folder, with its file, line and column, before anything is sent."""

from __future__ import annotations

import argparse
import base64
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from registry.adapters.json_yaml import read_text
from registry.core.file_rules import BACKEND_FILES, CONFIG_FILES, path_problems
from registry.core.formats import HEAD_BYTES, inspect
from registry.core.formats.heads import LONGEST_HEAD
from registry.core.gpu_memory import Files, estimate
from registry.core.spec import read_spec
from sluicegate.cli import archives, exits
from sluicegate.cli.errors import CommandError, refuse
from sluicegate.cli.fit import memory_lines
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect
from sluicegate.client import Client
from sluicegate.client.documents import text_of
from sluicegate.client.folder import DOCUMENT, find_files, open_file
from sluicegate.client.names import model_path

ABOUT = """Reads DIR/release.yaml and the headers of the files beside it, and asks the server what the seal would refuse: fields,
types, names, formats, the model's contract, config.pbtxt. Every mistake is printed at once, each as FILE:LINE:COLUMN, and for a
release that asks for a GPU an estimate of its memory. Nothing is hashed, sent or stored. Exit 3 where something is wrong."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "check", help="Every mistake of a release folder at once, sending nothing", description=ABOUT
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="the release folder, or an archive of it")
    parser.add_argument("--model", help="the model it belongs to, when release.yaml should not decide")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """For `sluicegate check` and `sluicegate push --check`."""
    with connect(arguments.server) as client:
        told = archives.with_folder(arguments.folder, lambda folder: checked(client, folder, arguments.model))
    lines = [_line(one) for one in told["problems"]]
    count = f"{len(lines)} mistake{'s' * (len(lines) != 1)}"
    said = (
        f"{arguments.folder} has {count}; nothing was sent."
        if lines
        else f"{arguments.folder} is fine, as far as can be told."
    )
    if told["is_offered"] is False:
        lines.append(
            "release.yaml: no node offers runtime.image with runtime.backend now. `sluicegate runtimes` lists the offered ones."
        )
    lines += [f"warning: {one}" for one in told["warnings"]]
    lines += memory_lines(told["gpu_memory_estimate"])
    output.result(told, [*lines, said])
    return exits.REFUSED if told["problems"] else exits.OK


def checked(client: Client, folder: Path, model: str | None) -> dict[str, Any]:
    """The server's word on the folder, with what only whole files tell. Raises CommandError where there is nothing to check."""
    text = text_of(folder / DOCUMENT) if (folder / DOCUMENT).is_file() else ""
    document = read_text(text).document
    slug = model or (str(document.get("model", "")) if isinstance(document, dict) else "")
    if not slug:
        raise CommandError(
            f"{folder / DOCUMENT} does not say which model it belongs to.",
            exit_code=exits.REFUSED,
            next_step="Add `model: NAME` to it, or use --model.",
        )
    if not text.strip():
        raise refuse(
            f"{folder / DOCUMENT} is empty or not there.", "Write one; examples/sentiment/build.py makes examples."
        )
    found = find_files(folder)
    files, local, facts = _files(found)
    told: dict[str, Any] = client.post(f"{model_path(slug)}/releases:check", {"document": text, "files": files})
    known = {(one["file"], one["message"]) for one in told["problems"]}
    more = [one for one in local if (one["file"], one["message"]) not in known]
    return {
        **told,
        "problems": [*told["problems"], *more],
        "is_fine": not told["problems"] and not more,
        "gpu_memory_estimate": _gpu_memory(document, facts),
    }


def _gpu_memory(document: Any, facts: Files) -> dict[str, Any] | None:
    """The estimate by the files here; None for a release.yaml with mistakes, or one that asks for no GPU."""
    spec = read_spec(document)[0] if isinstance(document, dict) else None
    found = None if spec is None else estimate(spec.backend, spec.serving, spec.envelope, facts)
    return None if found is None else found.as_json()


def _files(found: Sequence[tuple[str, Path]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Files]:
    """(the list that is sent, every problem of whole files, the facts in their headers). Of their contents config.pbtxt and the plan's
    beginning are sent: the rest is read here."""
    files, problems, facts = [], [], dict[str, tuple[int, Mapping[str, Any]]]()
    for path, source in found:
        with open_file(source) as file:
            size = os.fstat(file.fileno()).st_size
            one: dict[str, Any] = {"path": path, "size_bytes": size}
            if path in CONFIG_FILES and size <= LONGEST_HEAD:
                one["head"] = base64.b64encode(file.read(LONGEST_HEAD)).decode()
            elif path == BACKEND_FILES["tensorrt"]:
                one["head"] = base64.b64encode(file.read(HEAD_BYTES)).decode()
            if not path_problems(path):
                findings = inspect(path, file, size)
                facts[path] = size, findings.facts
                problems += [
                    {"file": path, "line": None, "column": None, **problem.as_json()} for problem in findings.problems
                ]
        files.append(one)
    return files, problems, facts


def _line(one: dict[str, Any]) -> str:
    place = f":{one['line']}:{one['column']}" if one["line"] else ""
    field = f" {one['field']}:" if one["field"] and one["field"] != one["file"] else ""
    return f"{one['file'] or '.'}{place}:{field} {one['message']} {one['fix']}".strip()
