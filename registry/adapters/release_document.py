"""A release.yaml as text or JSON, as the candidate that is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from registry.adapters.json_yaml import MOST_VALUES, is_bounded, read_text, write_text
from registry.core.folder_rules import DOCUMENT
from registry.core.formats.findings import Findings
from registry.core.located import Located, TextPlace, first_of
from registry.core.pbtxt import ConfigFile
from registry.core.release_check import Candidate, Checked, ModelTerms, check
from registry.core.schema import Problem


def read_candidate(document: Any) -> Candidate:
    """The candidate without its files. `document`: release.yaml as text, or as JSON. Never raises."""
    if not isinstance(document, str):
        if is_bounded(document):
            return Candidate(document, [])
        said = Problem("", f"it has more than {MOST_VALUES} names and values.", "Write fewer.")
        return Candidate(None, [], yaml_problems=[Located(DOCUMENT, said)])
    read = read_text(document)
    told = [Located(DOCUMENT, Problem(one.field, f"{one.message}.", ""), one.place) for one in read.mistakes]
    if read.document is None and not told:
        told = [Located(DOCUMENT, Problem("", "it is empty.", "Write model, runtime and serving."), TextPlace(1, 1))]
    elif read.document is not None and not isinstance(read.document, dict):
        fix = "Write `name: value` lines: model, runtime, serving."
        told = [Located(DOCUMENT, Problem("", "it is not a mapping of fields.", fix), TextPlace(1, 1))]
    return Candidate(read.document, [], places=read.places, yaml_problems=told)


def judge(
    document: Any,
    files: Sequence[Mapping[str, Any]],
    findings: Mapping[str, Findings],
    configs: Sequence[ConfigFile],
    terms: ModelTerms,
) -> tuple[Checked, str | None]:
    """(result of `check` with its first mistakes, the document as YAML or None if it holds no fields).

    Pure, so that a child process can do it.
    """
    found = check(replace(read_candidate(document), files=files, findings=findings, configs=configs), terms)
    text = write_text(found.document) if found.document else None
    return replace(found, problems=tuple(first_of(found.problems))), text
