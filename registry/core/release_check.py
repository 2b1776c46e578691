"""The one list of mistakes of a release that is not sealed yet. Every door calls it: the command line, REST, the upload page.

It is pure: callers read the files, and pass what these say of themselves (`formats.inspect`, `pbtxt.ConfigFile`). The command line
reads whole files. The server reads the beginnings that it was sent, and all files again at the seal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from registry.core import file_lint, manifest
from registry.core.file_rules import code_files, config_size_problems, path_problems, role_of, waivers_needed
from registry.core.files import read_files
from registry.core.folder_rules import DOCUMENT
from registry.core.formats.findings import LARGEST, Findings
from registry.core.lifecycle import FileRole
from registry.core.located import Located, TextPlace, in_document
from registry.core.partial_spec import PartialSpec, read_partial
from registry.core.pbtxt import ConfigFile, disagreements
from registry.core.schema import Problem
from registry.core.serving import against_contract
from registry.core.spec import Spec
from registry.core.timeouts import against_objectives

_NO_DIGEST: Final = "0" * 64
_NO_TEXT: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]|^.{10001}", re.DOTALL)
_CONFIG_PLACE: Final = re.compile(r"(?P<file>.+\.pbtxt):(?P<line>\d+):(?P<column>\d+)")


@dataclass(frozen=True)
class Candidate:
    """A release before it is sealed.

    `files`: [{path, size_bytes, sha256?}]; `findings`: what some of them say of themselves; `configs`: those that are a
    config.pbtxt. `yaml_problems`: mistakes of the text that `document` was read from; `folder_problems`: of the folder itself.
    """

    document: Any
    files: Sequence[Mapping[str, Any]]
    findings: Mapping[str, Findings] = field(default_factory=dict)
    places: Mapping[str, TextPlace] = field(default_factory=dict)
    yaml_problems: Sequence[Located] = ()
    folder_problems: Sequence[Located] = ()
    configs: Sequence[ConfigFile] = ()


@dataclass(frozen=True)
class ModelTerms:
    """The terms of a model for its releases. Without a slug the model is not known, and nothing of it is compared.

    `max_bytes` is the largest file that the installation takes. `problem`: why the model itself cannot be had.
    """

    slug: str = ""
    contract: Mapping[str, Any] = field(default_factory=dict)
    objectives: Mapping[str, Any] = field(default_factory=dict)
    max_bytes: int = LARGEST
    problem: Problem | None = None


@dataclass(frozen=True)
class Checked:
    """Every mistake, and what can be told already. `digest`: of the release, once every sha256 is known and nothing is wrong."""

    problems: tuple[Located, ...]
    document: Mapping[str, Any] | None = None  # as it was read
    spec: Spec | None = None
    digest: str | None = None
    waivers: tuple[str, ...] = ()
    suggested_serving: Mapping[str, Any] | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)  # the facts in the header of the engine plan


def check(candidate: Candidate, terms: ModelTerms) -> Checked:
    """Every mistake: those of release.yaml in the order of its text, of the folder, of its files by path, of config.pbtxt."""
    document = candidate.document if isinstance(candidate.document, Mapping) else {}
    partial = read_partial(document)
    findings = file_lint.as_named(candidate.findings)
    listed, of_files = _files(candidate, findings, partial.backend, terms.max_bytes)
    known = {
        file["path"]: (file["size_bytes"], findings[file["path"]].facts) for file in listed if file["path"] in findings
    }
    sizes = {file["path"]: (file["size_bytes"], known.get(file["path"], (0, {}))[1]) for file in listed}
    crossed = against_files(partial, sizes)
    found = [*of_document(partial, document, terms), *(one for one in crossed if not one.field.startswith("files."))]
    told = {one.problem.field for one in candidate.yaml_problems if one.problem.field}
    in_text = in_document([one for one in found if one.field not in told], DOCUMENT, candidate.places)
    if candidate.yaml_problems and not isinstance(candidate.document, Mapping):
        in_text = []  # nothing could be read, so nothing is missing either
    if candidate.document is None and any(one.file == DOCUMENT for one in candidate.folder_problems):
        in_text = []  # there is no text
    problems = _once(
        [
            *candidate.yaml_problems,
            *_in_order(in_text),
            *candidate.folder_problems,
            *of_files,
            *(_of_file(one) for one in crossed if one.field.startswith("files.")),
            *_of_configs(candidate.configs, partial, terms.slug or str(document.get("model", ""))),
        ]
    )
    spec = partial.spec
    data = file_lint.external_data(sizes)
    roles = {path: role_of(path, is_data=path in data) for path in sizes}
    is_hashed = spec is not None and not problems and bool(listed) and all(f.get("sha256") for f in candidate.files)
    return Checked(
        problems,
        candidate.document if isinstance(candidate.document, Mapping) else None,
        spec,
        manifest.text_and_digest(spec, _manifest_files(listed, roles))[1] if spec is not None and is_hashed else None,
        tuple(sorted(waivers_needed(code_files({"path": path, "role": role} for path, role in roles.items())))),
        _serving_of(terms.contract, findings),
        file_lint.plan_facts({path: facts for path, (_, facts) in known.items()}),
    )


def of_document(partial: PartialSpec, document: Mapping[str, Any], terms: ModelTerms) -> list[Problem]:
    """The mistakes of a release.yaml by itself, and against its model."""
    problems = [*partial.problems, *([terms.problem] if terms.problem else [])]
    if terms.slug and document.get("model") not in (None, terms.slug):
        said = f"{repr(document['model'])[:80]} is not the model that this is for."
        problems.append(Problem("model", said, f"Write {terms.slug}, or choose the other model."))
    compared = against_contract(partial.serving, terms.contract)
    compared += against_objectives(partial.serving, partial.envelope, terms.objectives)
    return [*problems, *partial.certain(compared)]


def against_files(partial: PartialSpec, files: Mapping[str, tuple[int, Mapping[str, Any]]]) -> list[Problem]:
    """What release.yaml and the files contradict in each other. `files`: path → (bytes, facts; {} if the header was not read)."""
    return partial.certain(file_lint.lint(partial.serving, partial.envelope, partial.backend or "", files))


def _of_configs(configs: Sequence[ConfigFile], partial: PartialSpec, slug: str) -> list[Located]:
    """Mistakes of a config.pbtxt by itself, and against release.yaml, at its lines."""
    problems = list[Problem]()
    for one in sorted(configs, key=lambda one: one.path):
        problems += one.problems
        if one.config is not None:
            model = slug or one.config.name
            problems += disagreements(one.config, partial.serving, model, partial.backend, one.path, partial.mistaken)
    return [_at_line(problem) for problem in problems]


def _at_line(problem: Problem) -> Located:
    place = _CONFIG_PLACE.fullmatch(problem.field)
    if place is None:
        return Located(problem.field, problem)
    return Located(place["file"], problem.at(""), TextPlace(int(place["line"]), int(place["column"])))


def _once(problems: Iterable[Located]) -> tuple[Located, ...]:
    return tuple(dict.fromkeys(problems))


def _files(
    candidate: Candidate, findings: Mapping[str, Findings], backend: str | None, max_bytes: int
) -> tuple[list[dict[str, Any]], list[Located]]:
    """(the files as a draft announces them, every mistake of theirs)."""
    # What cannot even be announced is told by itself, so that it does not hide the mistakes of the others.
    files = sorted(candidate.files, key=lambda file: str(file.get("path")))
    unsafe = [str(file.get("path")) for file in files if _NO_TEXT.search(str(file.get("path")))]
    asked = [{**file, "sha256": file.get("sha256") or _NO_DIGEST} for file in files if file.get("path") not in unsafe]
    listed, problems = read_files(asked, backend, max_bytes)
    found = [Located(path, problem) for path in unsafe for problem in path_problems(path)]
    found += [_listed_at(problem, asked) for problem in problems]
    if not asked and not unsafe:
        fix = "Add what the server loads, such as artifact/model.onnx."
        found.append(Located("", Problem("files", "there is no file under artifact/.", fix)))
    for file in listed:
        found += [Located(file["path"], one) for one in config_size_problems(file["path"], file["size_bytes"])]
    for path in sorted(findings):
        found += [Located(path, problem) for problem in findings[path].problems]
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


def _manifest_files(listed: Sequence[Mapping[str, Any]], roles: Mapping[str, FileRole]) -> list[manifest.File]:
    return [manifest.File(f["path"], roles[f["path"]], f["sha256"], f["size_bytes"]) for f in listed]


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
