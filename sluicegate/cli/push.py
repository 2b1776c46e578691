"""`sluicegate push`: a folder becomes a sealed release, or nothing at all."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from accounts.core.quantities import size_text
from sluicegate.cli import archives, check, checks, exits, gates, uploads
from sluicegate.cli.errors import CommandError, Problem, exit_code_of
from sluicegate.cli.folder import LocalFile, find_files, hash_files, read_document
from sluicegate.cli.output import Output, short
from sluicegate.cli.session import connect
from sluicegate.client import Client, ClientError
from sluicegate.client.names import model_path

#: What is answered when another push of the same folder sealed or discarded the draft, or ended an upload of it.
OVERTAKEN = frozenset({"no_such_release", "not_a_draft", "no_such_upload", "upload_gone", "upload_over"})
#: How often a push begins a draft.
TRIES = 4
STALE = 412
HELP = "Send a release folder: release.yaml, artifact/… and tokenizer/…"
ABOUT = """Reads DIR/release.yaml, hashes config.pbtxt and everything under artifact/ and tokenizer/, sends what the server lacks
in parts, several at once, and seals the release when every file was verified. A release is there as a whole or not at all:
if it is refused, the draft is discarded, unless another push goes on with it; if the connection or this command is lost,
pushing the same folder again goes on where it was. Pushing the same bytes twice, or twice at once, gives the same release.
Symbolic links are refused. In the place of a folder, DIR may be a .zip, .tar or .tar.gz of one: it is judged by its list,
unpacked into a temporary folder, and pushed from there."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("push", help=HELP, description=ABOUT)
    parser.add_argument("folder", type=Path, metavar="DIR", help="the release folder, or an archive of it")
    parser.add_argument("--model", help="the model it belongs to, when release.yaml should not decide")
    parser.add_argument(
        "--connections", type=int, default=0, metavar="N", help=f"parts sent at once ({uploads.CONNECTIONS})"
    )
    parser.add_argument("--check", action="store_true", help="only say what is wrong; send nothing")
    parser.add_argument("--wait", action="store_true", help="run the gates too, and wait for their verdict")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    if arguments.check:
        return check.run(arguments, output)
    with connect(arguments.server) as client:
        release = archives.with_folder(
            arguments.folder,
            lambda folder: push(client, folder, output, model=arguments.model, connections=arguments.connections),
        )
        name = f"{release['model']}/{release['name']}"
        if not arguments.wait:
            output.result(release, [f"{name} is sealed: {release['digest']}", f"Next: sluicegate gates {name} --wait"])
            return exits.OK
        output.say(f"{name} is sealed: {release['digest']}")
        gate_run = gates.wait(client, client.start_gates(name), output)
        output.result({**release, "gate_run": gate_run}, gates.verdict_lines(name, gate_run))
        return exits.of_verdict(gate_run["verdict"])


def push(
    client: Client, folder: Path, output: Output, *, model: str | None = None, connections: int = 0
) -> dict[str, Any]:
    """The sealed release as the server states it, with its `model` and `name` ("r2").

    A refusal leaves nothing, unless another push goes on with the draft. When the server or the store is away, what was
    sent stays for the next push. When another push sealed or discarded the draft meanwhile, it begins anew.
    """
    document = read_document(folder)
    slug = model or str(document.get("model", ""))
    if not slug:
        raise CommandError(
            f"{folder / 'release.yaml'} does not say which model it belongs to.",
            exit_code=exits.REFUSED,
            next_step="Add `model: NAME` to it, or use --model.",
        )
    found = find_files(folder)
    checks.refuse_lies({**document, "model": slug}, found)
    with output.progress("Hashing", is_bytes=True) as meter:
        files = hash_files(found, meter)
    announced = {**document, "model": slug, "files": [f.as_json() for f in files], "resume": True}
    for again in range(TRIES):
        draft, is_new = client.create(f"{model_path(slug)}/releases", announced)
        try:
            sealed = _filled_and_sealed(client, draft, files, output, connections)
            return {**sealed, "model": slug, "name": sealed.get("name") or f"r{sealed['number']}"}
        except BaseException as error:
            if getattr(error, "code", None) in OVERTAKEN and again < TRIES - 1:
                output.say("Another push of this folder ended its draft; this one goes on with a draft of its own.")
                continue
            _leave(client, draft, error, output, is_new=is_new)
            raise
    raise AssertionError("the last try raised or returned")


def _filled_and_sealed(
    client: Client, draft: dict[str, Any], files: list[LocalFile], output: Output, connections: int
) -> dict[str, Any]:
    _send(client, draft, files, output, connections)
    uploads.await_verified(client, draft["id"], output)
    sealed: dict[str, Any] = client.post(f"/releases/{draft['id']}/seal")
    return sealed


def _leave(client: Client, draft: dict[str, Any], error: BaseException, output: Output, *, is_new: bool) -> None:
    """Discards the draft, if this push alone made it and has it; else says what becomes of it."""
    if isinstance(error, ClientError) and exit_code_of(error) == exits.INFRASTRUCTURE:
        output.say("What was sent stays there: push the same folder again, and it goes on from here.")
        return
    try:
        if is_new:
            client.delete(f"/releases/{draft['id']}", version=draft["version"])
            output.say("The draft was discarded; nothing of this push is left.")
            return
    except Problem as problem:
        if problem.status != STALE:
            return  # it is gone, or what stopped the push stops this too
    except ClientError:
        return
    output.say(
        "The draft stays, because another push of this folder began it or goes on with it; unsealed, it ends by itself."
    )


def _send(client: Client, draft: dict[str, Any], files: list[LocalFile], output: Output, connections: int) -> None:
    waiting = set(draft["missing"])
    for file in files:
        state = "sending" if file.path in waiting else "already there"
        output.say(f"  {file.path}  {size_text(file.size_bytes)}  {short(file.sha256)}  {state}")
    uploads.send_files(client, draft["id"], [file for file in files if file.path in waiting], output, connections)
