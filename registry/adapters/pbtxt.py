"""The adapter to Triton's own configuration format: an uploaded config.pbtxt, read with Triton's protobuf."""

from __future__ import annotations

from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from registry.core.pbtxt import Config, ConfigFile, disagreements, field_in_config, places, problem_in_config, shown
from registry.core.pbtxt_advice import advice_for
from registry.core.schema import Problem
from registry.core.serving import DATA_TYPES, SERVING, lint
from registry.core.spec import Spec, refuse

_OIP_OF = {theirs: ours for ours, theirs in DATA_TYPES.items()}
_KNOWN = {
    "ModelConfig": {
        "name",
        "backend",
        "platform",
        "max_batch_size",
        "input",
        "output",
        "dynamic_batching",
        "instance_group",
        "parameters",
        "model_transaction_policy",
        "optimization",
    },
    "ModelOptimizationPolicy": set(),
    "ModelInput": {"name", "data_type", "dims"},
    "ModelOutput": {"name", "data_type", "dims"},
    "ModelDynamicBatching": {"preferred_batch_size", "max_queue_delay_microseconds", "default_queue_policy"},
    "ModelInstanceGroup": {"kind", "count"},
    "ModelTransactionPolicy": {"decoupled"},
}


def read_config(data: bytes, path: str) -> ConfigFile:
    """The file as Triton's protobuf reads it, with every mistake of its own. Never raises."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        problem = Problem(f"{path}:1:1", "the text is not UTF-8.", "Save the file as UTF-8.")
        return ConfigFile(path, None, (problem,))
    message = pb.ModelConfig()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        place = f"{error.GetLine() or 1}:{error.GetColumn() or 1}"
        # The parser repeats the place and the whole line before the reason.
        said = str(error).removeprefix(f"{place} : ").rpartition("': ")[2].strip().removesuffix(".")
        fix = "Correct the line, or remove the file: it is generated from release.yaml."
        return ConfigFile(path, None, (Problem(f"{path}:{place}", f"{said}.", fix),))
    config = Config(message.name, message.backend or message.platform, _stated(message), places(text))
    return ConfigFile(path, config, (*_unknown(message, "", config, path), *_wrong(config, path)))


def parse(text: str, path: str = "config.pbtxt") -> Config:
    """The fields of the file in the words of `serving`, each with its place.

    Raises Invalid("invalid_config") whose errors have fields such as `config.pbtxt:4:1` (line and column, from 1).
    """
    read = read_config(text.encode("utf-8", "surrogatepass"), path)
    refuse("invalid_config", path, read.problems)
    assert read.config is not None  # there is one when there is no problem
    return read.config


def check(data: bytes, spec: Spec, path: str) -> None:
    """Raises Invalid unless the file can be read ("invalid_config") and contradicts nothing ("config_disagrees")."""
    read = read_config(data, path)
    refuse("invalid_config", path, read.problems)
    assert read.config is not None  # there is one when there is no problem
    refuse("config_disagrees", path, disagreements(read.config, spec.serving, spec.model, spec.backend, path))


def _stated(message: pb.ModelConfig) -> dict[str, Any]:
    stated: dict[str, Any] = {"max_batch_size": message.max_batch_size}
    if message.input:
        stated["inputs"] = [_tensor(item) for item in message.input]
    if message.output:
        stated["outputs"] = [_tensor(item) for item in message.output]
    if message.instance_group:
        stated["instance_group"] = [
            {
                "kind": pb.ModelInstanceGroup.Kind.Name(group.kind).removeprefix("KIND_").lower(),
                "count": group.count or 1,
            }
            for group in message.instance_group
        ]
    if message.HasField("dynamic_batching"):
        batching = message.dynamic_batching
        stated["dynamic_batching"] = {
            "preferred_batch_size": sorted(set(batching.preferred_batch_size)),
            "max_queue_delay_us": batching.max_queue_delay_microseconds,
        }
        if batching.HasField("default_queue_policy"):
            queue = batching.default_queue_policy
            stated["queue_policy"] = {
                "timeout_action": pb.ModelQueuePolicy.TimeoutAction.Name(queue.timeout_action).lower(),
                "default_timeout_us": queue.default_timeout_microseconds,
                "allow_timeout_override": queue.allow_timeout_override,
                "max_queue_size": queue.max_queue_size,
            }
    if message.parameters:
        stated["parameters"] = {key: item.string_value for key, item in message.parameters.items()}
    if message.HasField("model_transaction_policy"):
        stated["decoupled"] = message.model_transaction_policy.decoupled
    return stated


def _tensor(item: pb.ModelInput | pb.ModelOutput) -> dict[str, Any]:
    data_type = pb.DataType.Name(item.data_type)
    dims = [] if _is_one_number(item) else list(item.dims)
    return {"name": item.name, "data_type": _OIP_OF.get(data_type, data_type), "dims": dims}


def _is_one_number(message: Any) -> bool:
    """Whether these are `dims: [1]` with `reshape { shape: [] }`, which release.yaml states as `dims: []`."""
    is_tensor = message.DESCRIPTOR.name in ("ModelInput", "ModelOutput")
    return is_tensor and list(message.dims) == [1] and message.HasField("reshape") and not message.reshape.shape


def _unknown(message: Any, at: str, config: Config, path: str) -> list[Problem]:
    """Fields that Triton knows and a release cannot say."""
    known = _KNOWN.get(message.DESCRIPTOR.name)
    problems = []
    for descriptor, value in message.ListFields():
        field = f"{at}{descriptor.name}"
        if descriptor.name == "reshape" and _is_one_number(message):
            continue
        if known is not None and descriptor.name not in known:
            advice = advice_for(message.DESCRIPTOR.name, descriptor.name)
            said = f"release.yaml has no place for {shown(field)}. {advice.means}"
            problems.append(problem_in_config(config, path, field, said, advice.fix))
        elif known is not None and descriptor.message_type and descriptor.name != "parameters":
            for i, item in enumerate([value] if hasattr(value, "DESCRIPTOR") else value):
                problems += _unknown(item, f"{field}[{i}].", config, path)
    return problems


#: Stands for tensors that the file does not state. A text, since it may be streamed.
_SOME_TENSOR = [{"name": "x", "data_type": "BYTES", "dims": [1]}]


def _wrong(config: Config, path: str) -> list[Problem]:
    """Values that no serving configuration may have: a negative batch size, a preferred size above the most."""
    problems: list[Problem] = []
    read = SERVING.read({"inputs": _SOME_TENSOR, "outputs": _SOME_TENSOR} | config.stated, "serving", problems)
    problems += lint(read)
    return [
        problem_in_config(
            config, path, field_in_config(p.field), f"{shown(field_in_config(p.field))}: {p.message}", p.fix
        )
        for p in problems
    ]
