"""What the server would refuse at the seal, found before anything is sent: files that lie, and what contradicts release.yaml."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from registry.core import file_lint
from registry.core.file_rules import path_problems
from registry.core.formats import inspect
from registry.core.schema import Problem
from registry.core.spec import read_spec
from sluicegate.client.errors import refuse
from sluicegate.client.folder import open_file


def refuse_lies(document: Mapping[str, Any], found: Sequence[tuple[str, Path]]) -> None:
    """Raises Mistake with every mistake. What only the server can judge, such as the contract, is left to it."""
    problems: list[Problem] = []
    known: dict[str, tuple[int, Mapping[str, Any]]] = {}
    for path, source in found:
        if path_problems(path):
            continue  # the server reports it, together with the mistakes of release.yaml
        with open_file(source) as file:
            size = os.fstat(file.fileno()).st_size
            findings = inspect(path, file, size)
        problems += findings.problems
        known[path] = (size, findings.facts)
    spec, _ = read_spec(document)
    if spec is not None and not problems:
        problems += file_lint.lint(spec.serving, spec.envelope, spec.backend, known)
    if problems:
        count = "1 mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
        raise refuse(
            f"The release folder has {count}; nothing was sent.",
            code="invalid_files",
            errors=[problem.as_json() for problem in problems],
        )
