"""A dry check of a release that nobody sent yet: text and a list in, every mistake out."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.conf import settings

from ledger.adapters.apart import SMALL_BYTES, Apart, run_sized
from ledger.core.errors import Invalid
from registry.adapters.json_yaml import LONGEST_TEXT
from registry.adapters.pbtxt import read_config
from registry.adapters.release_document import judge
from registry.core.file_rules import CONFIG_FILES, path_problems
from registry.core.formats.findings import Findings
from registry.core.formats.heads import LONGEST_HEAD, MOST_PIECES, FileParts, inspect_head, joined
from registry.core.release_check import Checked, ModelTerms
from registry.core.schema import Problem
from registry.core.spec import refuse
from registry.models import ServedModel

#: Of all heads and pieces together, in bytes: in base64 and beside the longest text they fit into one body (2.5 MiB).
MOST_HEADS: Final = LONGEST_HEAD
#: Reading a character of YAML, or a file's name, takes as long as reading 16 bytes of other formats.
_WORK: Final = 16


def check_release(model: ServedModel, document: Any, files: Sequence[Mapping[str, Any]]) -> tuple[Checked, str | None]:
    """(mistakes and facts of this release of the model, the document as YAML). Nothing is stored.

    document: release.yaml as text or as JSON. files: [{path, size_bytes, sha256?, head?, pieces?}], `head` being the first bytes
    in base64 and `pieces` other ranges. Raises Invalid for what is too long to be checked.
    """
    if isinstance(document, str) and len(document) > LONGEST_TEXT:
        said = f"release.yaml has {len(document)} characters; {LONGEST_TEXT} are the most. Write less."
        raise Invalid("document_too_long", said)
    parts = _parts(files)
    findings = _findings(parts)
    configs = [
        read_config(whole, path)
        for path, (part, size) in parts.items()
        if path in CONFIG_FILES and (whole := part.whole(size)) is not None
    ]
    listed = [{key: file[key] for key in ("path", "size_bytes", "sha256") if key in file} for file in files]
    terms = ModelTerms(model.slug, model.contract, model.objectives, settings.MAX_UPLOAD_BYTES)
    chars = len(document) if isinstance(document, str) else len(json.dumps(document))
    found: tuple[Checked, str | None] = run_sized(
        _WORK * (chars + len(listed)), judge, document, listed, findings, configs, terms
    )
    return found


def _findings(parts: Mapping[str, tuple[FileParts, int]]) -> dict[str, Findings]:
    """path → findings in the parts of the file, if they are enough. Raises as `Apart.call` does."""
    found: dict[str, Findings | None] = {}
    with Apart() as apart:
        for path, (part, size) in parts.items():
            if sum(one.size_bytes for one, _ in parts.values()) <= SMALL_BYTES:
                found[path] = inspect_head(path, part, size)
            else:
                found[path] = apart.call(inspect_head, path, part, size)
    return {path: one for path, one in found.items() if one}


def _parts(files: Sequence[Mapping[str, Any]]) -> dict[str, tuple[FileParts, int]]:
    """path → (the parts of it that came along, its size). Raises Invalid."""
    found: dict[str, tuple[FileParts, int]] = {}
    problems: list[Problem] = []
    for i, file in enumerate(files):
        size = file.get("size_bytes")
        sent = [*([{"offset": 0, "base64": file["head"]}] if file.get("head") else []), *(file.get("pieces") or [])]
        if not sent or not isinstance(size, int) or path_problems(str(file.get("path"))):
            continue
        pieces = [(one["offset"], _decoded(one["base64"])) for one in sent]
        at = f"files[{i}].{'pieces' if file.get('pieces') else 'head'}"
        if any(data is None for _, data in pieces):
            problems.append(Problem(at, "it is not base64.", "Encode the bytes in base64."))
            continue
        made = joined([(offset, data) for offset, data in pieces if data is not None])
        if made is None or len(pieces) > MOST_PIECES:
            said = "two pieces overlap." if made is None else f"{len(pieces)} pieces are more than {MOST_PIECES}."
            problems.append(Problem(at, said, "Send each byte once, in fewer and longer pieces."))
            continue
        if made.size_bytes > LONGEST_HEAD:
            said = f"{made.size_bytes} bytes are more than {LONGEST_HEAD}."
            problems.append(Problem(at, said, "Send the header only."))
        found[str(file["path"])] = (made, size)
    if sum(part.size_bytes for part, _ in found.values()) > MOST_HEADS:
        problems.append(Problem("files", f"their heads have more than {MOST_HEADS} bytes.", "Send fewer of them."))
    refuse("invalid_check", "The list of files", problems)
    return found


def _decoded(text: Any) -> bytes | None:
    try:
        return base64.b64decode(str(text), validate=True)
    except (binascii.Error, ValueError):
        return None
