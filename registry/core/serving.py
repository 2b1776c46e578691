"""The serving configuration of a release: its fields, and the rules that hold between them.

Source of the cross-field rules: Triton 2.51 refuses or silently accepts these configurations; both were observed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from registry.core.schema import (
    INVALID,
    Field,
    Flag,
    Integer,
    Json,
    ListOf,
    Object,
    Problem,
    Record,
    TensorName,
    Text,
    may,
    need,
    repeated,
)
from registry.core.warmup_values import value_problem

#: Open Inference Protocol data type → Triton's name in config.pbtxt.
DATA_TYPES: dict[str, str] = {
    "BOOL": "TYPE_BOOL",
    "UINT8": "TYPE_UINT8",
    "UINT16": "TYPE_UINT16",
    "UINT32": "TYPE_UINT32",
    "UINT64": "TYPE_UINT64",
    "INT8": "TYPE_INT8",
    "INT16": "TYPE_INT16",
    "INT32": "TYPE_INT32",
    "INT64": "TYPE_INT64",
    "FP16": "TYPE_FP16",
    "BF16": "TYPE_BF16",
    "FP32": "TYPE_FP32",
    "FP64": "TYPE_FP64",
    "BYTES": "TYPE_STRING",
}
_OTHER_NAMES = {
    "STRING": "BYTES",
    "STR": "BYTES",
    "OBJECT": "BYTES",
    "FLOAT": "FP32",
    "FLOAT16": "FP16",
    "HALF": "FP16",
    "BFLOAT16": "BF16",
    "FLOAT32": "FP32",
    "DOUBLE": "FP64",
    "FLOAT64": "FP64",
    "INT": "INT32",
    "LONG": "INT64",
    "BOOLEAN": "BOOL",
}
LARGEST_BATCH = 65_536


class DataType:
    """A data type of the Open Inference Protocol; other systems' names for one are answered with the right one."""

    def read(self, value: Any, at: str, problems: list[Problem]) -> Any:
        if isinstance(value, str):
            if value in DATA_TYPES:
                return value
            bare = value.upper().removeprefix("TYPE_")
            meant = bare if bare in DATA_TYPES else _OTHER_NAMES.get(bare)
            if meant:
                problems.append(
                    Problem(at, f"{value!r} is not a data type of the Open Inference Protocol.", f"Write {meant}.")
                )
                return meant
        return Text(one_of=tuple(DATA_TYPES), says="a data type of the Open Inference Protocol").read(
            value, at, problems
        )


#: Sizes of one item; the gateway and numpy take 32 with the batch axis.
LARGEST_RANK = 31
TENSOR = Record(
    {
        "name": need(TensorName()),
        "data_type": need(DataType()),
        "dims": need(ListOf(Integer(1, 2**31 - 1, besides=(-1,)), most=LARGEST_RANK)),
    }
)
_DYNAMIC_BATCHING = Record(
    {
        "preferred_batch_size": may(ListOf(Integer(1, LARGEST_BATCH), most=32), []),
        "max_queue_delay_us": may(Integer(0, 60_000_000, unit="microseconds"), 0),
    },
    elsewhere={
        "max_queue_delay_microseconds": "Write max_queue_delay_us, also in microseconds.",
        "default_queue_policy": "Write serving.queue_policy.",
    },
)
_INSTANCES = Record(
    {"kind": need(Text(one_of=("cpu", "gpu"), says="an instance kind")), "count": may(Integer(1, 128), 1)}
)
_QUEUE_POLICY = Record(
    {
        "timeout_action": may(Text(one_of=("reject", "delay"), says="a timeout action"), "reject"),
        "default_timeout_us": may(Integer(0, 3_600_000_000, unit="microseconds; 0 is no timeout"), 0),
        "allow_timeout_override": may(Flag(), False),
        "max_queue_size": may(Integer(0, 1_000_000, unit="requests; 0 is no limit"), 0),
    }
)


class _WarmUpValues:
    """Values by input. One that cannot be JSON has its problem, and stays as None, so that it does not seem to be missing too."""

    def read(self, value: Any, at: str, problems: list[Problem]) -> Any:
        read = Object(Json()).read(value, at, problems)
        if read is INVALID:
            return INVALID
        return {name: read.get(name) for name in value if isinstance(name, str)}


_WARMUP = Record({"batch_size": may(Integer(1, LARGEST_BATCH), 1), "inputs": need(_WarmUpValues())})

_MEMBERS: dict[str, Field] = {
    "max_batch_size": need(Integer(0, LARGEST_BATCH, unit="items; 0 is a model without a batch axis")),
    "inputs": need(ListOf(TENSOR, least=1, most=200)),
    "outputs": need(ListOf(TENSOR, least=1, most=200)),
    "dynamic_batching": may(_DYNAMIC_BATCHING, None),
    "instance_group": may(ListOf(_INSTANCES, least=1, most=16), [{"kind": "cpu", "count": 1}]),
    "queue_policy": may(_QUEUE_POLICY, None),
    "warmup": may(ListOf(_WARMUP, most=50), []),
    "parameters": may(Object(Text(4000)), {}),
    "decoupled": may(Flag()),
    "interface": may(Text(20)),
    "options": may(Object(Json())),
}
SERVING = Record(
    _MEMBERS,
    elsewhere={
        "input": "Write inputs.",
        "output": "Write outputs.",
        "model_warmup": "Write warmup.",
        "backend": "Write runtime.backend.",
        "platform": "Write runtime.backend.",
        "name": "Write model, at the top.",
        "model_transaction_policy": "Write decoupled: true.",
    },
)


def sent_dims(dims: Sequence[int]) -> list[int]:
    """Sizes of one item as requests and answers have them: one number for each item, `[]`, is sent as `[1]`.

    Source: Triton 2.51 refuses a tensor without dims. Its `reshape` turns [n, 1] into the graph's [n].
    """
    return list(dims) or [1]


def instances_of(serving: Mapping[str, Any], kind: str = "") -> int:
    """How many model instances one server holds, of one kind or of all."""
    groups = serving.get("instance_group", [])
    return sum(g.get("count", 0) for g in groups if not kind or g.get("kind") == kind)


def lint(serving: Mapping[str, Any], at: str = "serving", *, backend: str = "") -> list[Problem]:
    """What contradicts what inside a serving configuration. Members that could not be read are passed over.

    `backend`: the one that runs it, where that is known.
    """
    return [
        *_batching(serving, at),
        *_names(serving, at),
        *_data_types(serving, at, backend),
        *_warmups(serving, at),
        *_streams(serving, at, backend),
    ]


def normal(serving: dict[str, Any]) -> dict[str, Any]:
    """The same configuration with what has no order put in order, so that two spellings have one digest.

    `decoupled` is there only where it is true: releases that were sealed before it could be said keep their digest.
    """
    serving = {name: value for name, value in serving.items() if name != "decoupled" or value}
    batching = serving.get("dynamic_batching")
    if batching and "preferred_batch_size" in batching:
        sizes = sorted(set(batching["preferred_batch_size"]))
        serving = {**serving, "dynamic_batching": {**batching, "preferred_batch_size": sizes}}
    return serving


def _batching(serving: Mapping[str, Any], at: str) -> list[Problem]:
    problems = []
    most = serving.get("max_batch_size")
    batching = serving.get("dynamic_batching")
    if batching and most == 0:
        problems.append(
            Problem(
                f"{at}.dynamic_batching",
                f"a model without a batch axis ({at}.max_batch_size 0) cannot be batched.",
                "Remove dynamic_batching, or give max_batch_size 1 or more.",
            )
        )
    elif batching and most is not None:
        for i, size in enumerate(batching.get("preferred_batch_size", [])):
            if size > most:
                problems.append(
                    Problem(
                        f"{at}.dynamic_batching.preferred_batch_size[{i}]",
                        f"{size} is more than {at}.max_batch_size, which is {most}.",
                        f"Write at most {most}, or raise max_batch_size.",
                    )
                )
    if serving.get("queue_policy") and "dynamic_batching" in serving and batching is None:
        problems.append(
            Problem(
                f"{at}.queue_policy",
                "the queue belongs to the dynamic batcher, and there is none.",
                "Add serving.dynamic_batching, or remove queue_policy.",
            )
        )
    return problems


def _names(serving: Mapping[str, Any], at: str) -> list[Problem]:
    return [
        Problem(f"{at}.{side}", f"the name {name!r} occurs twice.", "Give every tensor a name of its own.")
        for side in ("inputs", "outputs")
        for name in repeated(tensor.get("name") for tensor in serving.get(side, []) if tensor.get("name"))
    ]


def _data_types(serving: Mapping[str, Any], at: str, backend: str) -> list[Problem]:
    """BF16 tensors that cannot be served: numpy has no such type, in which agents warm up and the graph's runner works."""
    wheres = {"inputs": "no agent can warm it up"}
    if backend == "sluicegate-onnx":
        wheres["outputs"] = "the runtime cannot return it"
    return [
        Problem(
            f"{at}.{side}[{i}].data_type",
            f"numpy has no BF16, so {why}.",
            "Write FP32, and let the model convert it: a graph has a Cast there. Inside, BF16 may stay.",
        )
        for side, why in wheres.items()
        for i, tensor in enumerate(serving.get(side, []))
        if tensor.get("data_type") == "BF16"
    ]


def _warmups(serving: Mapping[str, Any], at: str) -> list[Problem]:
    problems = []
    most = serving.get("max_batch_size")
    known = [tensor.get("name") for tensor in serving.get("inputs", [])]
    for i, warmup in enumerate(serving.get("warmup", [])):
        if most is not None and warmup.get("batch_size", 1) > max(most, 1):
            problems.append(
                Problem(
                    f"{at}.warmup[{i}].batch_size",
                    f"{warmup['batch_size']} is more than {at}.max_batch_size, which is {most}.",
                    f"Write at most {max(most, 1)}.",
                )
            )
        if "inputs" not in serving or "inputs" not in warmup or None in known:
            continue
        for name in sorted(set(warmup["inputs"]) - set(known)):
            problems.append(
                Problem(
                    f"{at}.warmup[{i}].inputs.{name}",
                    "the model has no such input.",
                    f"Its inputs are {', '.join(known)}.",
                )
            )
        for name in sorted(set(known) - set(warmup["inputs"])):
            problems.append(Problem(f"{at}.warmup[{i}].inputs", f"the input {name!r} has no value.", f"Add {name}."))
        problems += _warmup_values(serving, warmup, f"{at}.warmup[{i}].inputs")
    return problems


def _warmup_values(serving: Mapping[str, Any], warmup: Mapping[str, Any], at: str) -> list[Problem]:
    """Values of one warm-up request that their inputs cannot take."""
    problems = []
    tensors = {tensor["name"]: tensor for tensor in serving["inputs"]}
    for name, value in warmup["inputs"].items():
        if name not in tensors:
            continue
        if found := _no_element(value if value is not None else []):
            said = f"{found} is no element of a tensor."
            fix = "Write numbers, texts, true or false, and lists of them; null for the whole input has it made up."
            problems.append(Problem(f"{at}.{name}", said, fix))
        elif {"data_type", "dims"} <= tensors[name].keys():
            most = serving.get("max_batch_size")
            batch_size = None if most is None else warmup.get("batch_size", 1) if most else 0
            if wrong := value_problem(value, tensors[name], batch_size):
                problems.append(Problem(f"{at}.{name}", *wrong))
    return problems


def _no_element(value: Any) -> str:
    """What no tensor holds, of a JSON value and what is inside it; empty where there is none."""
    if isinstance(value, (list, tuple)):
        return next((found for one in value if (found := _no_element(one))), "")
    return "null" if value is None else "an object" if isinstance(value, Mapping) else ""


def _streams(serving: Mapping[str, Any], at: str, backend: str) -> list[Problem]:
    """A release that answers in several responses answers in text: only of texts is it clear what they add up to."""
    if not serving.get("decoupled"):
        return []
    problems = [
        Problem(
            f"{at}.outputs[{i}].data_type",
            f"{tensor['data_type']} does not come in pieces; a release that streams ({at}.decoupled) answers in text.",
            "Write BYTES, or remove decoupled.",
        )
        for i, tensor in enumerate(serving.get("outputs", []))
        if tensor.get("data_type") not in ("BYTES", None)
    ]
    if backend == "sluicegate-onnx":
        says, fix = "a graph answers once, and cannot stream.", "Remove decoupled, or bring code (`backend: python`)."
        problems.append(Problem(f"{at}.decoupled", says, fix))
    return problems


def against_contract(serving: Mapping[str, Any], contract: Mapping[str, Any], at: str = "serving") -> list[Problem]:
    """Where a release's tensors break the model's contract. A contract without a side promises nothing for it.

    Names and data types must be equal; a dimension of -1 on either side fits any (what is answered is measured by the
    contract gate). Every tensor of the contract must be there; an output more is allowed, an input more is not,
    because no client would send it.
    """
    problems = []
    for side in ("inputs", "outputs"):
        wanted = {tensor["name"]: tensor for tensor in contract.get(side, [])}
        offered = {tensor["name"]: (i, tensor) for i, tensor in enumerate(serving[side])}
        for name, tensor in wanted.items():
            if name not in offered:
                problems.append(
                    Problem(
                        f"{at}.{side}", f"the model's contract has {name!r}, and this release lacks it.", f"Add {name}."
                    )
                )
            else:
                i, own = offered[name]
                problems += _against_tensor(own, tensor, f"{at}.{side}[{i}]")
        if side == "inputs" and wanted:
            problems += [
                Problem(
                    f"{at}.inputs[{i}].name",
                    f"the model's contract has no input {name!r}, so no client sends it.",
                    f"Its inputs are {', '.join(wanted)}.",
                )
                for name, (i, _) in offered.items()
                if name not in wanted
            ]
    return problems


def _against_tensor(own: Mapping[str, Any], wanted: Mapping[str, Any], at: str) -> list[Problem]:
    problems = []
    if own["data_type"] != wanted["data_type"]:
        problems.append(
            Problem(
                f"{at}.data_type",
                f"{own['data_type']} is not what the model's contract says.",
                f"Write {wanted['data_type']}.",
            )
        )
    sent, promised = sent_dims(own["dims"]), sent_dims(wanted["dims"])
    fits = len(sent) == len(promised) and all(-1 in (o, w) or o == w for o, w in zip(sent, promised, strict=True))
    if not fits:
        problems.append(
            Problem(f"{at}.dims", f"{own['dims']} is not what the model's contract says.", f"Write {wanted['dims']}.")
        )
    return problems
