"""config.pbtxt as text: rendered from the serving configuration, and the line and column of each field in one.

Reading its meaning needs Triton's protobuf and lives in `registry.adapters.pbtxt`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from registry.core.pbtxt_advice import backend_fix
from registry.core.schema import Problem
from registry.core.serving import DATA_TYPES, sent_dims


def render(serving: Mapping[str, Any], model: str, *, backend: str = "") -> str:
    """The config.pbtxt of a release: `serving` in normal form, `model` the folder that Triton finds it in.

    Warm-up is left out: the agent warms the server by real inference and checks the answers.
    """
    lines = [f"name: {_quoted(model)}"]
    if backend:
        lines.append(f"backend: {_quoted(backend)}")
    lines.append(f"max_batch_size: {serving['max_batch_size']}")
    for side in ("inputs", "outputs"):
        lines += _tensors(side.removesuffix("s"), serving[side], has_batch_axis=serving["max_batch_size"] != 0)
    lines += _batching(serving.get("dynamic_batching"), serving.get("queue_policy"))
    for group in serving.get("instance_group") or []:
        lines.append(f"instance_group {{ kind: KIND_{group['kind'].upper()} count: {group['count']} }}")
    for key, value in sorted((serving.get("parameters") or {}).items()):
        lines.append(f"parameters {{ key: {_quoted(key)} value {{ string_value: {_quoted(value)} }} }}")
    if serving.get("decoupled"):
        lines.append("model_transaction_policy { decoupled: true }")
    return "\n".join(lines) + "\n"


def _tensors(side: str, tensors: Iterable[Mapping[str, Any]], *, has_batch_axis: bool) -> list[str]:
    """A line for each. Without a batch axis Triton refuses an empty `reshape`, and the runner does its work."""
    return [
        f"{side} {{ name: {_quoted(t['name'])} data_type: {DATA_TYPES[t['data_type']]} dims: {sent_dims(t['dims'])}"
        f"{'' if t['dims'] or not has_batch_axis else ' reshape { shape: [] }'} }}"
        for t in tensors
    ]


def _batching(batching: Mapping[str, Any] | None, queue: Mapping[str, Any] | None) -> list[str]:
    if batching is None:
        return []
    lines = ["dynamic_batching {"]
    if batching["preferred_batch_size"]:
        lines.append(f"  preferred_batch_size: [ {', '.join(map(str, batching['preferred_batch_size']))} ]")
    lines.append(f"  max_queue_delay_microseconds: {batching['max_queue_delay_us']}")
    if queue is not None:
        lines += [
            "  default_queue_policy {",
            f"    timeout_action: {queue['timeout_action'].upper()}",
            f"    default_timeout_microseconds: {queue['default_timeout_us']}",
            f"    allow_timeout_override: {str(queue['allow_timeout_override']).lower()}",
            f"    max_queue_size: {queue['max_queue_size']}",
            "  }",
        ]
    return [*lines, "}"]


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _quoted(text: str) -> str:
    return (
        '"'
        + "".join(_ESCAPES.get(c, c if c.isprintable() else "".join(f"\\{b:03o}" for b in c.encode())) for c in text)
        + '"'
    )


@dataclass(frozen=True)
class FieldPosition:
    """Position of a field's name: line and column, both from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.line}:{self.column}"


_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)|(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|(?P<word>[\w.+\-/]+)|(?P<mark>.)""",
    re.DOTALL,
)


def places(text: str) -> dict[str, FieldPosition]:
    """Every field of a protobuf text, such as `input[0].dims`, with its position.

    Messages are numbered, also in `[{…}, {…}]` and when there is only one; a repeated scalar keeps its first place.
    The text must be well-formed; anything else gives some places and no error.
    """
    found: dict[str, FieldPosition] = {}
    counts: dict[str, int] = {}
    within: list[tuple[str, bool]] = [("", False)]  # what is open: its path, and whether it is a list
    name, previous, line, line_start = "", "", 1, 0
    named = FieldPosition(1, 1)
    for match in _TOKEN.finditer(text):
        kind, token = match.lastgroup, match.group()
        (path, is_list), place = within[-1], FieldPosition(line, match.start() - line_start + 1)
        if kind == "word" and previous != ":" and not is_list:
            name = f"{path}.{token}" if path else token
            found.setdefault(name, place)
            named = place
        elif kind == "mark" and token in "{<":
            counts[name] = counts.get(name, -1) + 1
            within.append((f"{name}[{counts[name]}]", False))
            found.setdefault(within[-1][0], place if is_list else named)
        elif kind == "mark" and token == "[":
            within.append((name, True))
        elif kind == "mark" and token in "}>]" and len(within) > 1:
            within.pop()
            name = path if is_list else path.rpartition("[")[0]
        previous = previous if kind == "space" else token
        line += token.count("\n")
        if "\n" in token:
            line_start = match.start() + token.rindex("\n") + 1
    return found


@dataclass(frozen=True)
class Config:
    """An uploaded config.pbtxt. `stated` has only what the file says, in the words of `serving`; `places` where."""

    name: str
    backend: str
    stated: dict[str, Any]
    places: dict[str, FieldPosition]

    def place(self, field: str) -> str:
        """`4:1`, of the field or of its parent; `1:1` when neither is there."""
        while field:
            if field in self.places:
                return str(self.places[field])
            field = field.rpartition("[")[0] if field.endswith("]") else field.rpartition(".")[0]
        return "1:1"


_BACKEND_OF = {
    "onnxruntime_onnx": "sluicegate-onnx",
    "onnxruntime": "sluicegate-onnx",
    "tensorrt_plan": "tensorrt",
    "pytorch_libtorch": "pytorch",
}
#: The words of `serving` → the field of Triton's ModelConfig that says the same, longest first.
_THEIRS = {
    "queue_policy": "dynamic_batching[0].default_queue_policy[0]",
    "dynamic_batching": "dynamic_batching[0]",
    "inputs": "input",
    "outputs": "output",
    "max_queue_delay_us": "max_queue_delay_microseconds",
    "default_timeout_us": "default_timeout_microseconds",
    "decoupled": "model_transaction_policy[0].decoupled",
}
#: What `serving` means where it says nothing, of members that it keeps only where they say something.
_UNSAID = {"decoupled": False}


def field_in_config(field: str) -> str:
    """`serving.inputs[0].name` → `input[0].name`: where config.pbtxt says the same."""
    parts = re.split(r"([.\[])", field.removeprefix("serving."))
    return "".join(_THEIRS.get(part, part) for part in parts)


def problem_in_config(config: Config, path: str, field: str, message: str, fix: str) -> Problem:
    """A problem at the line and column where the file states the field, such as `config.pbtxt:4:1`."""
    return Problem(f"{path}:{config.place(field)}", message, fix)


@dataclass(frozen=True)
class ConfigFile:
    """A config.pbtxt that came along: `config` is None if its text cannot be parsed. Problems have fields such as `config.pbtxt:4:1`."""

    path: str
    config: Config | None
    problems: tuple[Problem, ...] = ()


def disagreements(
    config: Config,
    serving: Mapping[str, Any],
    model: str,
    backend: str | None,
    path: str,
    mistaken: Collection[str] = (),
) -> list[Problem]:
    """Contradictions between an uploaded config.pbtxt and release.yaml, each with line and column. Silence agrees.

    Members of `serving` that are `mistaken`, and a backend of None, are compared with nothing.
    """
    problems = []
    if config.name and config.name != model:
        problems.append(
            problem_in_config(
                config,
                path,
                "name",
                f"name {config.name!r} is not the model's name.",
                f"Write {model}, or remove the line.",
            )
        )
    theirs = _BACKEND_OF.get(config.backend, config.backend)
    if config.backend and backend is not None and theirs != backend:
        field = "backend" if "backend" in config.places else "platform"
        problems.append(
            problem_in_config(
                config,
                path,
                field,
                f"{field} {config.backend!r} contradicts runtime.backend, which is {backend}.",
                backend_fix(theirs),
            )
        )
    for word, stated in config.stated.items():
        if word in mistaken:
            continue
        own = serving.get(word, _UNSAID.get(word))
        if word in ("inputs", "outputs") and serving.get("max_batch_size") == 0:
            stated = _of_one_rank(stated, own or [])
        if stated != own:
            ours, mine, theirs = _first_difference(f"serving.{word}", stated, own)
            field = field_in_config(ours)
            problems.append(
                problem_in_config(
                    config,
                    path,
                    field,
                    f"{shown(field)} is {mine}, and {ours} in release.yaml is {theirs}.",
                    "Make the two equal, or remove config.pbtxt: it is generated from release.yaml.",
                )
            )
    return problems


def _of_one_rank(stated: list[dict[str, Any]], own: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The file's tensors; `[1]` and `[]` are one thing without a batch axis, and are written as release.yaml has them."""
    same = [
        {**theirs, "dims": ours["dims"]}
        if "dims" in ours and sent_dims(theirs["dims"]) == sent_dims(ours["dims"])
        else theirs
        for theirs, ours in zip(stated, own, strict=False)
    ]
    return [*same, *stated[len(same) :]]


def shown(field: str) -> str:
    """The field as people write it: only repeated messages keep their number."""
    return re.sub(r"(dynamic_batching|queue_policy|model_transaction_policy|optimization)\[0\]", r"\1", field)


def _first_difference(at: str, stated: Any, ours: Any) -> tuple[str, Any, Any]:
    """(field, the file's value, release.yaml's value) at the innermost field that differs first."""
    if isinstance(stated, dict) and isinstance(ours, dict) and at != "serving.parameters":
        for key in stated:
            if stated[key] != ours.get(key):
                return _first_difference(f"{at}.{key}", stated[key], ours.get(key))
    if isinstance(stated, list) and isinstance(ours, list) and len(stated) == len(ours):
        for i, (one, other) in enumerate(zip(stated, ours, strict=True)):
            if one != other and isinstance(one, dict):
                return _first_difference(f"{at}[{i}]", one, other)
    return at, stated, ours
