"""What the files of a release say of themselves, against what release.yaml says of them.

Only what cannot be is refused: a tensor that no graph has, weights that the declared memory cannot hold. Whether the
release answers rightly is for the gates.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from operator import eq
from typing import Any, Final

from registry.core.engine_flavour import FLAVOURS, STANDARD, declared_flavour
from registry.core.file_rules import can_be_data, format_problems, graph_folders
from registry.core.folder_rules import added_part
from registry.core.formats.findings import Findings
from registry.core.kinds import BACKEND_FILES
from registry.core.schema import Problem, TensorName

#: What the runtime's own tokenizing makes of the input `text`. Source: serving/runner/onnx_runner.py.
TEXT: Final = "text"
MADE_BY_TOKENIZER: Final = frozenset({"input_ids", "attention_mask", "token_type_ids"})
TOKENIZER: Final = "tokenizer/tokenizer.json"
#: Data types of one family become each other without a new meaning; across families no server casts.
_FAMILIES: Final[dict[str, str]] = {
    **dict.fromkeys(("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"), "whole numbers"),
    **dict.fromkeys(("FP16", "BF16", "FP32", "FP64"), "floating point"),
    "BOOL": "true or false",
    "BYTES": "text",
}
#: Needs no quotes in YAML.
_PLAIN: Final = re.compile(r"[A-Za-z_/][\w./-]*", re.ASCII)
#: Kinds of value that a graph may have, and a request cannot.
_OTHER: Final = {"OTHER": "a sequence, a map or an optional value"}
#: A table of one row for each token, by the names that published models give it.
_WORD_TABLE: Final = re.compile(
    r"(^|[./_])(word_embeddings|embed_tokens|tok_embeddings|token_embd|wte)(\.weight|\.w)?$"
)
_WEIGHTS: Final = (".onnx", ".data", ".safetensors", ".gguf", ".plan", ".pt")


def lint(
    serving: Mapping[str, Any],
    envelope: Mapping[str, Any],
    backend: str,
    files: Mapping[str, tuple[int, Mapping[str, Any]]],
) -> list[Problem]:
    """Every contradiction. `files`: path → (size in bytes, the facts of `registry.core.formats`)."""
    problems = []
    if backend == "sluicegate-onnx" and BACKEND_FILES[backend] in files:
        problems += _graph(serving, files[BACKEND_FILES[backend]][1], has_tokenizer=TOKENIZER in files)
    for path, (_, facts) in files.items():
        problems += _external(path, facts.get("external", {}), files)
    problems += _formats(files)
    return [*problems, *_plan(envelope, files), *_vocabulary(files), *_room(envelope, backend, files)]


def _graph(serving: Mapping[str, Any], facts: Mapping[str, Any], *, has_tokenizer: bool) -> list[Problem]:
    """The served tensors against the graph's own."""
    if "inputs" not in facts:
        return []
    problems = list[Problem]()
    proposed = set[str]()
    graph = {name: (data_type, dims) for name, data_type, dims in facts["inputs"]}
    tokenizes = has_tokenizer and any(t["name"] == TEXT and t["data_type"] == "BYTES" for t in serving["inputs"])
    served = {tensor["name"] for tensor in serving["inputs"]}
    made = MADE_BY_TOKENIZER if tokenizes else frozenset()
    sides = [("inputs", graph), ("outputs", {name: (data_type, dims) for name, data_type, dims in facts["outputs"]})]
    for side, known in sides:
        free = sorted(known.keys() - {tensor["name"] for tensor in serving[side]} - made)
        for i, tensor in enumerate(serving[side]):
            at = f"serving.{side}[{i}]"
            if tensor["name"] in known:
                problems += _tensor(tensor, known[tensor["name"]], serving["max_batch_size"], at)
            elif not (tokenizes and side == "inputs" and tensor["name"] == TEXT):
                said = f"artifact/model.onnx has no {side[:-1]} {tensor['name']!r}."
                near = _nearest(tensor["name"], free)
                fix = _naming(near) if near else "Remove this one."
                if tensor["name"] == TEXT and not has_tokenizer and MADE_BY_TOKENIZER & known.keys():
                    near, fix = "", f"Add {TOKENIZER}, with which the runtime makes them of texts."
                if near:
                    free.remove(near)
                    proposed |= {near} if side == "inputs" else set()
                problems.append(Problem(f"{at}.name", said, f"{fix} Its {side} are {_listed(known)}."))
    return problems + [_undeclared(name) for name in sorted(graph.keys() - served - made - proposed)]


def _nearest(name: str, free: list[str]) -> str:
    """The one of the `free` names, which are declared nowhere yet, that `name` may mean; empty if there is none."""
    return next(iter(difflib.get_close_matches(name, free, n=1, cutoff=0.0)), "")


def _naming(near: str) -> str:
    return wrong[0].fix if (wrong := _name_problems(near)) else f"Write {in_yaml(near)}."


def _undeclared(name: str) -> Problem:
    said = f"artifact/model.onnx takes an input {name!r}, and serving declares none of that name."
    wrong = _name_problems(name)
    fix = wrong[0].fix if wrong else f"Add {in_yaml(name)}, or export the graph without it."
    return Problem("serving.inputs", said, fix)


def _name_problems(name: str) -> list[Problem]:
    problems: list[Problem] = []
    TensorName().read(name, "", problems)
    return problems


def in_yaml(name: str) -> str:
    """The name as release.yaml has it: in quotes unless it is plain."""
    return name if _PLAIN.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _tensor(served: Mapping[str, Any], graph: tuple[str, list[int]], most: int, at: str) -> list[Problem]:
    data_type, dims = graph
    problems = []
    if data_type == "BF16":
        said = f"{served['name']!r} is BF16 in artifact/model.onnx, and the runtime has no such type at its ends."
        fix = "Export the graph with a Cast there, to or from FP32. Inside, BF16 may stay."
        return [Problem(f"{at}.data_type", said, fix)]
    if data_type not in _FAMILIES:
        said = f"{served['name']!r} is {_OTHER.get(data_type, data_type)} in artifact/model.onnx, which no request carries."
        fix = "Export the graph with a tensor of a plain data type there (skl2onnx: zipmap=False), or leave the output out."
        return [Problem(f"{at}.data_type", said, fix)]
    families = _FAMILIES.get(served["data_type"]), _FAMILIES.get(data_type)
    if None not in families and families[0] != families[1]:
        problems.append(
            Problem(
                f"{at}.data_type",
                f"{served['data_type']} is {families[0]}, and artifact/model.onnx says {data_type}.",
                f"Write {data_type}.",
            )
        )
    if dims == [-2]:  # unknown in the graph
        return problems
    if most and not dims:
        said = (
            f"{served['name']!r} has no dimension in artifact/model.onnx, so that it has none for {most} items either."
        )
        fix = (
            "Write max_batch_size 0 and the whole shape in each dims, or export the graph with a batch dimension there."
        )
        return [*problems, Problem("serving.max_batch_size", said, fix)]
    batch, own = (dims[:1], dims[1:]) if most else ([], dims)
    if most and batch and batch[0] not in (-1, most):
        problems.append(
            Problem(
                "serving.max_batch_size",
                f"{most} items do not fit {served['name']!r}, whose first dimension artifact/model.onnx fixes at {batch[0]}.",
                "Write max_batch_size 0 and the whole shape in each dims, or export the graph with a free batch dimension.",
            )
        )
    if len(own) != len(served["dims"]) or any(
        -1 not in (a, b) and a != b for a, b in zip(own, served["dims"], strict=True)
    ):
        has = f"{own} after its batch dimension" if most else f"{own}"
        fix = f"Write {[size or -1 for size in own]}."
        problems.append(Problem(f"{at}.dims", f"{served['dims']} does not fit {has} in artifact/model.onnx.", fix))
    return problems


def external_data(files: Mapping[str, tuple[int, Mapping[str, Any]]]) -> frozenset[str]:
    """The files that a graph names as its external data, without pickles."""
    named = {
        f"{path.rpartition('/')[0]}/{name}" for path, (_, facts) in files.items() for name in facts.get("external", {})
    }
    return frozenset(
        path for path in named & files.keys() if can_be_data(path) and files[path][1].get("is_plain", True)
    )


def as_named(findings: Mapping[str, Findings]) -> dict[str, Findings]:
    """The findings of a release's files by path. Data that a graph names is held to no format, whatever its own name promises.

    A file with a pickle's name is left as it is: its facts say whether it is data.
    """
    named = external_data({path: (0, one.facts) for path, one in findings.items()})
    return {
        path: Findings(one.kind) if path in named and one.problems and one.can_be_data and one.kind != "pickle" else one
        for path, one in findings.items()
    }


def _formats(files: Mapping[str, tuple[int, Mapping[str, Any]]]) -> list[Problem]:
    """Files of an unknown format that no graph names. Files beside an unread graph are passed over: it may name them."""
    named = external_data(files)
    unread = graph_folders(path for path, (_, facts) in files.items() if "external" not in facts and path not in named)
    return [
        problem.at(f"files.{path}")
        for path in files
        if path not in named and not any(path.startswith(folder) for folder in unread)
        for problem in format_problems(path)
    ]


def _external(path: str, wanted: Mapping[str, int], files: Mapping[str, tuple[int, Any]]) -> list[Problem]:
    folder, problems = path.rpartition("/")[0], []
    for name, size in wanted.items():
        place = f"{folder}/{name}"
        if place not in files:
            said, fix = f"{path} keeps weights in {place}, which is not in the release.", f"Add {place}."
            if added_part(place) or not can_be_data(place):
                why = "are left out" if added_part(place) else "are code, or a server's own"
                fix = f"Export the graph with another name for them, such as model.onnx_data: files of this name {why}."
            problems.append(Problem(f"files.{path}", said, fix))
        elif files[place][0] < size:
            problems.append(
                Problem(
                    f"files.{place}",
                    f"{place} has {files[place][0]} bytes, and {path} reads as far as byte {size}.",
                    "Send the two files of one export.",
                )
            )
    return problems


def _plan(envelope: Mapping[str, Any], files: Mapping[str, tuple[int, Mapping[str, Any]]]) -> list[Problem]:
    """The declared engine against the plan's own header, as far as both state it: 10.3 agrees with 10.3.0.26."""
    engine, plan = envelope.get("engine", {}), plan_facts({path: facts for path, (_, facts) in files.items()})
    path, declared = BACKEND_FILES["tensorrt"], declared_flavour(envelope)
    own = FLAVOURS.get(plan.get("flavour", ""), declared)
    if own is not declared:
        stated = "envelope.engine.flavour is" if "flavour" in engine else "without envelope.engine.flavour it is"
        said = f"{path} is a plan of {own.product}, and {stated} {declared.name} ({declared.product})."
        fix = f"Write {own.name} if the runtime has {own.product}, or send a plan of {declared.product}."
        return [Problem("envelope.engine.flavour", said, fix)]
    problems = []
    stated, told = engine.get("builder_version"), plan.get("tensorrt")
    if stated and told and not all(map(eq, map(int, stated.split(".")), map(int, told.split(".")))):
        said = f"{stated} is not what built {path}, which says {told} in its header."
        problems.append(Problem("envelope.engine.builder_version", said, f'Write "{told}", or leave it out.'))
    built, found = engine.get("built_on", {}).get("compute_capability"), plan.get("compute_capabilities")
    if built and found and built not in found:
        said = f"{built} is not what {path} was built for: its header has {', '.join(found)}."
        fix = f'Write "{found[0]}", or build the plan for {built}.'
        problems.append(Problem("envelope.engine.built_on.compute_capability", said, fix))
    return problems


def plan_facts(files: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """The facts in the header of the release's engine plan; empty if it has no plan, or its header was not read. `files`: path → facts.

    Headers that were remembered before TensorRT for RTX was known lack the flavour, and are of TensorRT itself.
    """
    facts = files.get(BACKEND_FILES["tensorrt"])
    return {"flavour": STANDARD.name, **facts} if facts else {}


def _vocabulary(files: Mapping[str, tuple[int, Mapping[str, Any]]]) -> list[Problem]:
    """A token whose number is beyond the table of embeddings makes the server read past it, or fail."""
    largest = files.get(TOKENIZER, (0, {}))[1].get("tokenizer", {}).get("largest_id")
    if largest is None:
        return []
    for path, (_, facts) in files.items():
        for name, _, shape in facts.get("tensors", []):
            if len(shape) == 2 and _WORD_TABLE.search(name):
                rows = max(shape) if path.endswith(".gguf") else shape[0]
                if largest >= rows:
                    return [
                        Problem(
                            f"files.{TOKENIZER}",
                            f"it gives a token the number {largest}, and {name} in {path} has {rows} rows.",
                            "Send the tokenizer that the model was trained with, or a model whose table fits it.",
                        )
                    ]
    return []


def weights_bytes(files: Mapping[str, tuple[int, Any]]) -> int:
    """Of all files that hold weights: by their names, or because a graph names them."""
    named = external_data(files)
    return sum(
        size
        for path, (size, _) in files.items()
        if path in named or (path.startswith("artifact/") and path.endswith(_WEIGHTS))
    )


def _room(envelope: Mapping[str, Any], backend: str, files: Mapping[str, tuple[int, Any]]) -> list[Problem]:
    """Declared memory and disk that cannot hold the bytes that are sealed. A python backend may load less than all."""
    problems = []
    total = sum(size for size, _ in files.values())
    weights = weights_bytes(files)
    host, accelerator = envelope.get("host", {}), envelope.get("accelerator", {})
    disk = host.get("disk_mib")
    if disk is not None and disk << 20 < total:
        problems.append(_small("envelope.host.disk_mib", disk, "files", total))
    if backend == "python":
        return problems
    if accelerator.get("vendor", "none") != "none":
        devices = max(accelerator.get("count", 1), 1)
        workspace = envelope.get("engine", {}).get("workspace_mib", 0) if backend == "tensorrt" else 0
        what = f"weights and a workspace of {workspace} MiB on each device" if workspace else "weights"
        size = weights + devices * (workspace << 20)
        for name in ("memory_mib_min", "memory_mib_peak_declared"):
            memory = accelerator.get(name)
            if memory is not None and (memory * devices) << 20 < size:
                problems.append(_small(f"envelope.accelerator.{name}", memory, what, size, devices))
    elif host.get("memory_mib_min") is not None and host["memory_mib_min"] << 20 < weights:
        problems.append(_small("envelope.host.memory_mib_min", host["memory_mib_min"], "weights", weights))
    return problems


def _small(at: str, declared: int, what: str, size: int, devices: int = 1) -> Problem:
    least = -(-size // (devices << 20))
    on = f" on each of {devices} devices" if devices > 1 else ""
    return Problem(
        at, f"{declared} MiB{on} cannot hold the {what}, which are {size} bytes.", f"Ask for at least {least}."
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
