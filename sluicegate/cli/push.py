"""`sluicegate push`: a folder becomes a sealed release, or nothing at all."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sluicegate.cli import exits, gates
from sluicegate.cli.client import Client
from sluicegate.cli.errors import CommandError
from sluicegate.cli.folder import LocalFile, chunks_of, find_files, hash_files, read_document
from sluicegate.cli.naming import model_path
from sluicegate.cli.output import Meter, Output, bytes_text, short
from sluicegate.cli.session import connect

HELP = "Send a release folder: release.yaml, artifact/… and tokenizer/…"
ABOUT = """Reads DIR/release.yaml, hashes config.pbtxt and everything under artifact/ and tokenizer/, sends what the server lacks,
and seals the release. If anything fails, the draft is discarded: a release is there as a whole or not at all.
Pushing the same bytes twice gives the same release. Symbolic links are refused."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("push", help=HELP, description=ABOUT)
    parser.add_argument("folder", type=Path, metavar="DIR", help="the release folder")
    parser.add_argument("--model", help="the model it belongs to, when release.yaml should not decide")
    parser.add_argument("--wait", action="store_true", help="run the gates too, and wait for their verdict")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        release = push(client, arguments.folder, output, model=arguments.model)
        name = f"{release['model']}/{release['name']}"
        if not arguments.wait:
            output.result(release, [f"{name} is sealed: {release['digest']}", f"Next: sluicegate gates {name} --wait"])
            return exits.OK
        output.say(f"{name} is sealed: {release['digest']}")
        validation = gates.wait(client, gates.request(client, name), output)
        output.result({**release, "validation": validation}, gates.verdict_lines(name, validation))
        return exits.of_verdict(validation["verdict"])


def push(client: Client, folder: Path, output: Output, *, model: str | None = None) -> dict[str, Any]:
    """The sealed release as the server states it, with its `model` and `name` ("r2"). A failure leaves nothing."""
    document = read_document(folder)
    slug = model or str(document.get("model", ""))
    if not slug:
        raise CommandError(
            f"{folder / 'release.yaml'} does not say which model it belongs to.",
            exit_code=exits.REFUSED,
            next_step="Add `model: NAME` to it, or use --model.",
        )
    found = find_files(folder)
    with output.progress("Hashing", is_bytes=True) as meter:
        files = hash_files(found, meter)
    draft = client.post(
        f"{model_path(slug)}/releases", {**document, "model": slug, "files": [f.as_json() for f in files]}
    )
    try:
        _send(client, draft, files, output)
        sealed: dict[str, Any] = client.post(f"/releases/{draft['id']}/seal", version=draft.get("version"))
    except BaseException:
        with suppress(CommandError):
            client.delete(f"/releases/{draft['id']}")
            output.say("The draft was discarded; nothing of this push is left.")
        raise
    return {**sealed, "model": slug, "name": sealed.get("name") or f"r{sealed['number']}"}


def _send(client: Client, draft: dict[str, Any], files: list[LocalFile], output: Output) -> None:
    missing = set(draft["missing"])
    for file in files:
        state = "sending" if file.path in missing else "already there"
        output.say(f"  {file.path}  {bytes_text(file.size_bytes)}  {short(file.sha256)}  {state}")
    to_send = [file for file in files if file.path in missing]
    total, sent = sum(file.size_bytes for file in to_send), 0
    with output.progress("Sending", is_bytes=True) as meter:
        for file in to_send:
            stream = _counted(file, meter, sent, total)
            client.put_stream(
                f"/releases/{draft['id']}/files/{quote(file.path)}",
                stream,
                size_bytes=file.size_bytes,
                sha256=file.sha256,
            )
            sent += file.size_bytes


def _counted(file: LocalFile, meter: Meter, before: int, total: int) -> Iterator[bytes]:
    for chunk in chunks_of(file.source):
        yield chunk
        before += len(chunk)
        meter(before, total)
