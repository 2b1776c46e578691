"""A dry check of a release that nobody sent yet: text and a list in, every mistake out."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from django.conf import settings

from ledger.core.errors import Invalid
from registry.adapters import pbtxt
from registry.adapters.json_yaml import LONGEST_TEXT, read_text
from registry.core.archive import DOCUMENT
from registry.core.file_rules import CONFIG_FILES, path_problems
from registry.core.formats.findings import Findings
from registry.core.formats.heads import LONGEST_HEAD, inspect_head
from registry.core.located import Located, TextPlace
from registry.core.release_check import Candidate, Checked, check
from registry.core.schema import Problem
from registry.core.spec import refuse
from registry.models import ServedModel

#: Of all heads together, in bytes.
MOST_HEADS: Final = 4 << 20
_CONFIG_PLACE: Final = re.compile(r"(?P<file>.+\.pbtxt):(?P<line>\d+):(?P<column>\d+)")


def check_release(model: ServedModel, document: Any, files: Sequence[Mapping[str, Any]]) -> Checked:
    """What is wrong with this release of the model, and what can be told of it already. Nothing is stored.

    document: release.yaml as text or as JSON. files: [{path, size_bytes, sha256?, head?}], `head` being the first bytes in
    base64. Raises Invalid for what is too long to be checked.
    """
    heads = _heads(files)
    findings = {path: one for path, (head, size) in heads.items() if (one := inspect_head(path, head, size))}
    listed = [{key: file[key] for key in ("path", "size_bytes", "sha256") if key in file} for file in files]
    candidate = _read(document, listed, findings)
    checked = check(candidate, model.slug, model.contract, settings.MAX_UPLOAD_BYTES, model.objectives)
    configs = {path: head for path, (head, size) in heads.items() if path in CONFIG_FILES and len(head) == size}
    if checked.spec is None or not configs:
        return checked
    problems = [one for path, head in configs.items() for one in _of_config(head, checked, path)]
    return checked if not problems else replace(checked, problems=(*checked.problems, *problems), digest=None)


def _read(document: Any, files: Sequence[Mapping[str, Any]], findings: Mapping[str, Findings]) -> Candidate:
    if not isinstance(document, str):
        return Candidate(document, files, findings)
    if len(document) > LONGEST_TEXT:
        said = f"release.yaml has {len(document)} characters; {LONGEST_TEXT} are the most. Write less."
        raise Invalid("document_too_long", said)
    read = read_text(document)
    told = [Located(DOCUMENT, Problem(one.field, f"{one.message}.", ""), one.place) for one in read.mistakes]
    if read.document is None and not told:
        told = [Located(DOCUMENT, Problem("", "it is empty.", "Write model, runtime and serving."), TextPlace(1, 1))]
    elif read.document is not None and not isinstance(read.document, dict):
        fix = "Write `name: value` lines: model, runtime, serving."
        told = [Located(DOCUMENT, Problem("", "it is not a mapping of fields.", fix), TextPlace(1, 1))]
    return Candidate(read.document, files, findings, read.places, told)


def _heads(files: Sequence[Mapping[str, Any]]) -> dict[str, tuple[bytes, int]]:
    """path → (its first bytes, its size), of those that came with them. Raises Invalid."""
    found: dict[str, tuple[bytes, int]] = {}
    problems: list[Problem] = []
    for i, file in enumerate(files):
        if not file.get("head") or path_problems(str(file.get("path"))):
            continue
        try:
            head = base64.b64decode(str(file["head"]), validate=True)
        except (binascii.Error, ValueError):
            problems.append(Problem(f"files[{i}].head", "it is not base64.", "Encode the first bytes in base64."))
            continue
        if len(head) > LONGEST_HEAD:
            said = f"{len(head)} bytes are more than {LONGEST_HEAD}."
            problems.append(Problem(f"files[{i}].head", said, "Send the first bytes only."))
        size = file.get("size_bytes")
        if isinstance(size, int):
            found[str(file["path"])] = (head, size)
    if sum(len(head) for head, _ in found.values()) > MOST_HEADS:
        problems.append(Problem("files", f"their heads have more than {MOST_HEADS} bytes.", "Send fewer of them."))
    refuse("invalid_check", "The list of files", problems)
    return found


def _of_config(head: bytes, checked: Checked, path: str) -> list[Located]:
    """What a config.pbtxt says that release.yaml does not, at its lines."""
    assert checked.spec is not None
    try:
        pbtxt.check(head, checked.spec, path)
    except Invalid as error:
        return [_at_line(Problem(**one)) for one in error.facts["errors"]]
    return []


def _at_line(problem: Problem) -> Located:
    place = _CONFIG_PLACE.fullmatch(problem.field)
    if place is None:
        return Located(problem.field, problem)
    return Located(place["file"], problem.at(""), TextPlace(int(place["line"]), int(place["column"])))
