"""A release.yaml as text or JSON, as the candidate that is judged."""

from __future__ import annotations

from typing import Any

from registry.adapters.json_yaml import read_text
from registry.core.folder_rules import DOCUMENT
from registry.core.located import Located, TextPlace
from registry.core.release_check import Candidate
from registry.core.schema import Problem


def read_candidate(document: Any) -> Candidate:
    """The candidate without its files. `document`: release.yaml as text, or as JSON. Never raises."""
    if not isinstance(document, str):
        return Candidate(document, [])
    read = read_text(document)
    told = [Located(DOCUMENT, Problem(one.field, f"{one.message}.", ""), one.place) for one in read.mistakes]
    if read.document is None and not told:
        told = [Located(DOCUMENT, Problem("", "it is empty.", "Write model, runtime and serving."), TextPlace(1, 1))]
    elif read.document is not None and not isinstance(read.document, dict):
        fix = "Write `name: value` lines: model, runtime, serving."
        told = [Located(DOCUMENT, Problem("", "it is not a mapping of fields.", fix), TextPlace(1, 1))]
    return Candidate(read.document, [], places=read.places, yaml_problems=told)
