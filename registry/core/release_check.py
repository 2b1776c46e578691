"""A release that is not there yet, judged as far as its release.yaml and the list of its files tell. Nothing is stored.

What the seal would refuse is found here with its file, line and column; what only whole files tell is left to the seal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from registry.core import envelope_suggestion, file_lint, manifest
from registry.core.archive import DOCUMENT
from registry.core.file_rules import path_problems, role_of, waivers_needed
from registry.core.files import read_files
from registry.core.formats.findings import Findings
from registry.core.located import Located, TextPlace, in_document
from registry.core.schema import Problem
from registry.core.serving import SERVING, against_contract
from registry.core.spec import RUNTIME, Spec, read_spec
from registry.core.timeouts import against_objectives

_NO_DIGEST: Final = "0" * 64
_NO_TEXT: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]|^.{10001}", re.DOTALL)


@dataclass(frozen=True)
class Candidate:
    """What is known of a release before it is sent.

    `files`: [{path, size_bytes, sha256?}]; `findings`: what the first bytes of some of them say; `yaml_problems`: mistakes of
    the text itself, which `document` was read from.
    """

    document: Any
    files: Sequence[Mapping[str, Any]]
    findings: Mapping[str, Findings] = field(default_factory=dict)
    places: Mapping[str, TextPlace] = field(default_factory=dict)
    yaml_problems: Sequence[Located] = ()


@dataclass(frozen=True)
class Checked:
    """Every mistake, and what can be told already. `digest`: of the release, once every sha256 is known and nothing is wrong."""

    problems: tuple[Located, ...]
    document: Mapping[str, Any] | None = None  # as it was read
    spec: Spec | None = None
    digest: str | None = None
    waivers: tuple[str, ...] = ()
    suggested_envelope: Mapping[str, Any] | None = None
    suggested_serving: Mapping[str, Any] | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)  # the facts in the header of the engine plan


def check(
    candidate: Candidate,
    slug: str,
    contract: Mapping[str, Any],
    max_bytes: int,
    objectives: Mapping[str, Any] | None = None,
) -> Checked:
    """All that can be said. `slug`, `contract` and `objectives` are the model's, `max_bytes` the most that one file may have."""
    document = candidate.document if isinstance(candidate.document, Mapping) else {}
    spec, found = read_spec(document)
    if document.get("model") not in (None, slug):
        said = f"{repr(document['model'])[:80]} is not the model that this is for."
        found = [*found, Problem("model", said, f"Write {slug}, or choose the other model.")]
    if spec is not None:
        found = [*found, *against_contract(spec.serving, contract)]
        found = [*found, *against_objectives(spec.serving, spec.envelope, objectives or {})]
    listed, of_files = _files(candidate, spec, max_bytes)
    known = {
        file["path"]: (file["size_bytes"], candidate.findings[file["path"]].facts)
        for file in listed
        if file["path"] in candidate.findings
    }
    sizes = {file["path"]: (file["size_bytes"], known.get(file["path"], (0, {}))[1]) for file in listed}
    if spec is not None and not of_files:
        crossed = file_lint.lint(spec.serving, spec.envelope, spec.backend, sizes)
        found = [*found, *(one for one in crossed if not one.field.startswith("files."))]
        of_files += [_of_file(one) for one in crossed if one.field.startswith("files.")]
    told = {one.problem.field for one in candidate.yaml_problems if one.problem.field}
    in_text = in_document([one for one in found if one.field not in told], DOCUMENT, candidate.places)
    if candidate.yaml_problems and not isinstance(candidate.document, Mapping):
        in_text = []  # nothing could be read, so nothing is missing either
    problems = (*candidate.yaml_problems, *_in_order(in_text), *of_files)
    is_hashed = spec is not None and not problems and bool(listed) and all(f.get("sha256") for f in candidate.files)
    return Checked(
        problems,
        candidate.document if isinstance(candidate.document, Mapping) else None,
        spec,
        _digest(spec, listed, file_lint.external_data(sizes)) if spec is not None and is_hashed else None,
        tuple(sorted(waivers_needed(sizes.keys() - file_lint.external_data(sizes)))),
        _envelope_of(document, sizes) if listed else None,
        _serving_of(contract, candidate.findings),
        file_lint.plan_facts({path: facts for path, (_, facts) in known.items()}),
    )


def _files(candidate: Candidate, spec: Spec | None, max_bytes: int) -> tuple[list[dict[str, Any]], list[Located]]:
    """(the files as a draft announces them, every mistake of theirs)."""
    # What cannot even be announced is told by itself, so that it does not hide the mistakes of the others.
    unsafe = [str(file.get("path")) for file in candidate.files if _NO_TEXT.search(str(file.get("path")))]
    asked = [
        {**file, "sha256": file.get("sha256") or _NO_DIGEST}
        for file in candidate.files
        if file.get("path") not in unsafe
    ]
    listed, problems = read_files(asked, spec.backend if spec else None, max_bytes)
    found = [Located(path, problem) for path in unsafe for problem in path_problems(path)]
    found += [_listed_at(problem, asked) for problem in problems]
    if not asked and not unsafe:
        fix = "Add what the server loads, such as artifact/model.onnx."
        found.append(Located("", Problem("files", "there is no file under artifact/.", fix)))
    found += [Located(path, problem) for path, one in candidate.findings.items() for problem in one.problems]
    return listed, found


def _listed_at(problem: Problem, files: Sequence[Mapping[str, Any]]) -> Located:
    """A mistake of `files[i].path` as one of that file."""
    number, bracket, rest = problem.field.removeprefix("files[").partition("]")
    if problem.field.startswith("files[") and bracket and number.isdigit() and int(number) < len(files):
        return Located(str(files[int(number)].get("path", "")), problem.at(rest.lstrip(".") or "path"))
    return Located("", problem)


def _of_file(problem: Problem) -> Located:
    return Located(problem.field.removeprefix("files."), problem.at("path"))


def _in_order(problems: Sequence[Located]) -> list[Located]:
    """From the top of the text to its end."""
    return sorted(problems, key=lambda one: (one.place.line, one.place.column) if one.place else (0, 0))


def _digest(spec: Spec, listed: Sequence[Mapping[str, Any]], data: frozenset[str]) -> str:
    files = [
        manifest.File(f["path"], role_of(f["path"], is_data=f["path"] in data), f["sha256"], f["size_bytes"])
        for f in listed
    ]
    return manifest.text_and_digest(spec, files)[1]


def _envelope_of(
    document: Mapping[str, Any], files: Mapping[str, tuple[int, Mapping[str, Any]]]
) -> dict[str, Any] | None:
    """A suggestion, also where the envelope is what is wrong: then most of all."""
    problems: list[Problem] = []
    serving = SERVING.read(document.get("serving"), "serving", problems)
    runtime = RUNTIME.read(document.get("runtime"), "runtime", [])
    backend = runtime.get("backend") if isinstance(runtime, dict) else None
    if problems or not isinstance(serving, dict) or backend is None:
        return None
    return envelope_suggestion.suggested(serving, backend, files)


def _serving_of(contract: Mapping[str, Any], findings: Mapping[str, Findings]) -> dict[str, Any] | None:
    """The tensors to begin with: what the model promises, else what the graph says (its first dimension being the batch's)."""
    if contract.get("inputs") and contract.get("outputs"):
        return {"inputs": contract["inputs"], "outputs": contract["outputs"]}
    graph = next((one.facts for one in findings.values() if one.kind == "onnx" and "inputs" in one.facts), None)
    if graph is None or any(dims in ([], [-2]) for side in ("inputs", "outputs") for *_, dims in graph[side]):
        return None
    return {
        side: [{"name": name, "data_type": data_type, "dims": dims[1:]} for name, data_type, dims in graph[side]]
        for side in ("inputs", "outputs")
    }
