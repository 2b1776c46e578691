"""The mistakes of a release folder, found before anything is sent: `check` prints them, and `push` refuses a folder that has any.

The list comes from `registry.core.release_check`, which the server calls too. This side reads whole files; the server adds
its own knowledge: the model, and the runtimes that nodes offer. Without the server the rest is judged, and open checks are named.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from registry.adapters.json_yaml import LONGEST_TEXT, write_text
from registry.adapters.release_document import read_candidate
from registry.core.file_rules import CONFIG_FILES, LONGEST_CONFIG_BYTES, path_problems
from registry.core.folder_rules import DOCUMENT, MOST_MEMBERS
from registry.core.formats import HEAD_BYTES, inspect
from registry.core.formats.findings import Findings
from registry.core.kinds import BACKEND_FILES
from registry.core.located import Located
from registry.core.pbtxt import ConfigFile
from registry.core.release_check import Candidate, Checked, ModelTerms, check
from registry.core.schema import INVALID, Problem
from registry.core.spec import SLUG
from sluicegate.client.connection import Connection
from sluicegate.client.errors import ClientError, is_passing
from sluicegate.client.errors import Problem as Refusal
from sluicegate.client.folder import ReleaseFolder, open_file
from sluicegate.client.names import model_path

#: What the server alone knows, of its answer.
_OF_SERVER: Final = ("is_offered", "runs_nowhere", "runtimes", "warnings")
#: Of a config.pbtxt that is sent along, in bytes.
_LONGEST_SENT: Final = 256 << 10
_UNAUTHORIZED: Final = 401
_NOT_FOUND: Final = 404


@dataclass(frozen=True)
class Verdict:
    """The mistakes of a folder. `problems` has the form of the API; `server`: its answer, {} without one.

    `facts`: path → (bytes, facts of its header). `not_checked`: open checks, in words.
    """

    slug: str
    problems: tuple[Mapping[str, Any], ...]
    checked: Checked
    facts: Mapping[str, tuple[int, Mapping[str, Any]]]
    server: Mapping[str, Any] = field(default_factory=dict)
    not_checked: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The answer of `releases:check`; without a server, as much of it as this side knows."""
        checked = self.checked
        own = {
            "digest": None,
            "waivers_needed": list(checked.waivers),
            "is_offered": None,
            "runs_nowhere": "",
            "runtimes": [],
            "plan_tensorrt": checked.plan.get("tensorrt"),
            "plan_flavour": checked.plan.get("flavour"),
            "warnings": [],
            "suggested_serving": checked.suggested_serving,
            "document": dict(checked.document) if checked.document is not None else None,
            "text": write_text(dict(checked.document)) if checked.document else None,
        }
        told = {"problems": list(self.problems), "is_fine": not self.problems, "not_checked": list(self.not_checked)}
        return {**own, **{name: self.server[name] for name in _OF_SERVER if name in self.server}, **told}


def judge(client: Connection | None, folder: ReleaseFolder, model: str | None = None) -> Verdict:
    """Every mistake of the folder. `model` replaces the name in release.yaml; without a client the server is not asked.

    Raises Mistake for a file that cannot be read, and Problem if the server refuses for another reason than the release.
    """
    text, candidate = _read(folder, model)
    document = candidate.document if isinstance(candidate.document, Mapping) else {}
    named = document.get("model")
    slug = model or (named if isinstance(named, str) else "")
    candidate, listed, not_checked = _with_files(candidate, folder)
    terms, why = _terms(client, slug)
    checked = check(candidate, terms)
    server: Mapping[str, Any] = {}
    if client is not None and not why and text is not None:
        server, why = _answer(client, slug, document if model else text, listed)
    not_checked = ([] if server else not_checked) + why
    sizes = {file["path"]: file["size_bytes"] for file in candidate.files}
    return Verdict(
        slug,
        tuple(_merged([one.as_json() for one in checked.problems], server.get("problems", []))),
        checked,
        {path: (sizes[path], one.facts) for path, one in candidate.findings.items()},
        server,
        tuple(dict.fromkeys(not_checked)),
    )


#: What only the server can judge.
NEEDS_SERVER: Final = ("the model's contract and objectives", "whether a node can run it")
_NO_PROTOBUF: Final = "config.pbtxt, which needs the server"


def _read(folder: ReleaseFolder, model: str | None) -> tuple[str | None, Candidate]:
    """(the text of release.yaml, the candidate without its files); None as text if there is none that can be sent."""
    nothing = Candidate(None, [], folder_problems=folder.problems)
    if folder.document is None:
        return None, nothing
    with open_file(folder.document) as file:
        data = file.read(4 * LONGEST_TEXT + 1)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        problem = Located(DOCUMENT, Problem("", "the text is not UTF-8.", "Save the file as UTF-8."))
        return None, replace(nothing, folder_problems=(problem, *folder.problems))
    candidate = replace(read_candidate(text), folder_problems=folder.problems)
    if model and isinstance(candidate.document, Mapping):
        candidate = replace(candidate, document={**candidate.document, "model": model})
    return text if len(text) <= LONGEST_TEXT else None, candidate


def _with_files(candidate: Candidate, folder: ReleaseFolder) -> tuple[Candidate, list[dict[str, Any]], list[str]]:
    """(the candidate with its files as they lie here, the list that is sent, the open checks)."""
    listed: list[dict[str, Any]] = []
    sent: list[dict[str, Any]] = []
    findings: dict[str, Findings] = {}
    configs: list[ConfigFile] = []
    not_checked: list[str] = []
    for path, source in folder.files:
        with open_file(source) as file:
            size = os.fstat(file.fileno()).st_size
            one: dict[str, Any] = {"path": path, "size_bytes": size}
            listed.append({**one})
            if path in CONFIG_FILES and size <= LONGEST_CONFIG_BYTES:
                data = file.read(LONGEST_CONFIG_BYTES)
                one |= {"head": base64.b64encode(data).decode()} if size <= _LONGEST_SENT else {}
                read = _config(data, path)
                configs += [read] if read is not None else []
                not_checked += [_NO_PROTOBUF] if read is None else []
            elif path == BACKEND_FILES["tensorrt"]:
                one["head"] = base64.b64encode(file.read(HEAD_BYTES)).decode()
            if not path_problems(path):
                findings[path] = inspect(path, file, size)
        sent.append(one)
    return replace(candidate, files=listed, findings=findings, configs=configs), sent, not_checked


def _config(data: bytes, path: str) -> ConfigFile | None:
    """The config.pbtxt as it was read; None if Triton's protobuf is not installed, as with the light client."""
    try:
        from registry.adapters.pbtxt import read_config  # the client's own packages do not have it
    except ImportError:
        return None
    return read_config(data, path)


def _terms(client: Connection | None, slug: str) -> tuple[ModelTerms, list[str]]:
    """(the terms of the model, the checks that stay open without them)."""
    if client is None or SLUG.read(slug, "", []) is INVALID:
        return ModelTerms(), list(NEEDS_SERVER)
    try:
        found = client.get(model_path(slug))
    except ClientError as error:
        if isinstance(error, Refusal) and error.status == _NOT_FOUND:
            said = f"there is no model {slug!r} that you may read."
            fix = "Create it (`sluicegate model create`), write the right name, or ask for a role in its team."
            return ModelTerms(problem=Problem("model", said, fix)), list(NEEDS_SERVER)
        return ModelTerms(), _unless_it_matters(error)
    return ModelTerms(slug, found["contract"], found["objectives"]), []


def _answer(
    client: Connection, slug: str, document: Any, files: list[dict[str, Any]]
) -> tuple[Mapping[str, Any], list[str]]:
    """(the server's own check, the checks that stay open without it)."""
    if len(files) > MOST_MEMBERS:
        return {}, []  # which is a mistake that is known already
    try:
        return client.post(f"{model_path(slug)}/releases:check", {"document": document, "files": files}), []
    except ClientError as error:
        return {}, _unless_it_matters(error)


def _unless_it_matters(error: ClientError) -> list[str]:
    """What cannot be checked without the server that did not answer, or does not know the caller. Raises other errors."""
    is_stranger = isinstance(error, Refusal) and error.status == _UNAUTHORIZED
    if not is_stranger and not is_passing(error):
        raise error
    return [*NEEDS_SERVER, error.message]


def _merged(own: list[dict[str, Any]], others: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mistakes of both sides in one order, each once: those of release.yaml first.

    The server may find mistakes that this side cannot: its own limits, or a config.pbtxt without Triton's protobuf.
    """
    known = {(one["file"], one["field"], one["message"]) for one in own}
    more = [one for one in others if (one["file"], one["field"], one["message"]) not in known]
    every = [*own, *more]
    return [one for one in every if one["file"] == DOCUMENT] + [one for one in every if one["file"] != DOCUMENT]
