"""A folder becomes a sealed release, or nothing at all: `Client.push`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accounts.core.quantities import size_text
from sluicegate.client import checks, uploads
from sluicegate.client.connection import Connection
from sluicegate.client.errors import ClientError, Problem, is_passing, refuse
from sluicegate.client.folder import LocalFile, ReleaseFolder, hash_files, read_folder
from sluicegate.client.names import model_path
from sluicegate.client.progress import Progress

#: What is answered when another push of the same folder sealed or discarded the draft, or ended an upload of it.
OVERTAKEN = frozenset({"no_such_release", "not_a_draft", "no_such_upload", "upload_gone", "upload_over"})
#: How often a push begins a draft.
TRIES = 4
STALE = 412


def push(
    client: Connection,
    folder: Path | ReleaseFolder,
    *,
    model: str | None = None,
    connections: int = 0,
    progress: Progress,
) -> dict[str, Any]:
    """The sealed release as the server states it, with its `model` and `name` ("r2"). Raises Mistake with all mistakes of the folder.

    A refusal leaves nothing, unless another push goes on with the draft. When the server or the store is away, what was
    sent stays for the next push. When another push sealed or discarded the draft meanwhile, it begins anew.
    """
    folder = folder if isinstance(folder, ReleaseFolder) else read_folder(folder)
    verdict = checks.judge(client, folder, model)
    _refuse_mistakes(verdict)
    slug = verdict.slug
    if folder.left_out:
        progress.say(folder.left_out_words())
    with progress.progress("Hashing", is_bytes=True) as meter:
        files = hash_files(folder.files, meter)
    document = verdict.checked.document or {}
    announced = {**document, "model": slug, "files": [f.as_json() for f in files], "resume": True}
    for again in range(TRIES):
        draft, is_new = client.create(f"{model_path(slug)}/releases", announced)
        try:
            sealed = _filled_and_sealed(client, draft, files, progress, connections)
            return {**sealed, "model": slug, "name": sealed.get("name") or f"r{sealed['number']}"}
        except BaseException as error:
            if getattr(error, "code", None) in OVERTAKEN and again < TRIES - 1:
                progress.say("Another push of this folder ended its draft. This push goes on with a draft of its own.")
                continue
            _leave(client, draft, error, progress, is_new=is_new)
            raise
    raise AssertionError("the last try raised or returned")


def _refuse_mistakes(verdict: checks.Verdict) -> None:
    """Raises Mistake with every mistake, in the order that `check` prints."""
    if not verdict.problems:
        return
    count = "1 mistake" if len(verdict.problems) == 1 else f"{len(verdict.problems)} mistakes"
    raise refuse(
        f"The release folder has {count}; nothing was sent.", code="invalid_files", errors=list(verdict.problems)
    )


def _filled_and_sealed(
    client: Connection, draft: dict[str, Any], files: list[LocalFile], progress: Progress, connections: int
) -> dict[str, Any]:
    _send(client, draft, files, progress, connections)
    uploads.await_verified(client, draft["id"], progress)
    sealed: dict[str, Any] = client.post(f"/releases/{draft['id']}/seal")
    return sealed


def _leave(
    client: Connection, draft: dict[str, Any], error: BaseException, progress: Progress, *, is_new: bool
) -> None:
    """Discards the draft, if this push alone made it and has it; else reports its fate."""
    if is_passing(error):
        progress.say("Uploaded parts stay on the server. Push the same folder again to resume.")
        return
    try:
        if is_new:
            client.delete(f"/releases/{draft['id']}", version=draft["version"])
            progress.say("The draft was discarded; nothing of this push is left.")
            return
    except Problem as problem:
        if problem.status != STALE:
            return  # it is gone, or what stopped the push stops this too
    except ClientError:
        return
    progress.say(
        "The draft stays, because another push of this folder began it or goes on with it; unsealed, it ends by itself."
    )


def _send(
    client: Connection, draft: dict[str, Any], files: list[LocalFile], progress: Progress, connections: int
) -> None:
    waiting = set(draft["missing"])
    for file in files:
        state = "sending" if file.path in waiting else "already there"
        progress.say(f"  {file.path}  {size_text(file.size_bytes)}  {file.sha256[:12]}  {state}")
    uploads.send_files(client, draft["id"], [file for file in files if file.path in waiting], progress, connections)
