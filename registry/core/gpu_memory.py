"""GPU memory of a release, estimated from its files and release.yaml before it runs.

Four parts: weights, activations at the largest batch, workspace, runtime. Each names the file, field or formula that its number
comes from. A part that nothing determines is unknown and adds nothing, so that the total may be too small. Sizes are MiB on each
device that the server sees, because Triton starts the counted instances on each of them (server docs/user_guide/
model_configuration.md, "Instance Groups").

The server decides how much instances share: Triton's python backend runs each instance in a process of its own (python_backend README,
"Multiple Model Instance Support"), and the runtime's ONNX models are python models; the pytorch backend loads the model for each
instance unless ENABLE_WEIGHT_SHARING is set (pytorch_backend README); the tensorrt backend shares one engine among the instances
of a device if the plan has fixed shapes (tensorrt_backend src/model_state.cc).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from registry.core.formats import gguf, kind_of, safetensors
from registry.core.formats.findings import LARGEST
from registry.core.formats.transformer import ELEMENT_BYTES, cache_bytes_per_token
from registry.core.kinds import BACKEND_FILES
from registry.core.serving import instances_of

#: path → (size in bytes, the facts of `registry.core.formats`; {} if the header was not read)
Files = Mapping[str, tuple[int, Mapping[str, Any]]]
#: A number of up to 8 bytes takes one byte or more in a file, so that tensors are at most 8 times as large as their files.
_MOST_EXPANSION: Final = 8
_ELEMENT_BYTES: Final = {
    "BOOL": 1, "UINT8": 1, "INT8": 1, "UINT16": 2, "INT16": 2, "FP16": 2, "BF16": 2, "UINT32": 4, "INT32": 4, "FP32": 4,
    "UINT64": 8, "INT64": 8, "FP64": 8, "BYTES": 0,  # texts stay in host memory
}  # fmt: skip
#: llama.cpp keeps keys and values as F16 by default. Source: llama.cpp common/common.h, cache_type_k and cache_type_v.
_GGUF_CACHE_BYTES: Final = 2
_OWN_WORKSPACE: Final = {
    "sluicegate-onnx": "cuDNN and cuBLAS choose it while the graph runs",
    "tensorrt": "a plan states none; declare envelope.engine.workspace_mib",
}
_CUDA_CONTEXT: Final = "the CUDA context and libraries, whose size depends on driver and device"


@dataclass(frozen=True)
class MemoryPart:
    """`mib` None: unknown, and `source` is the reason. `is_whole` False: something of it is not counted."""

    name: str
    mib: int | None
    source: str
    is_whole: bool = True


@dataclass(frozen=True)
class MemoryEstimate:
    """`certain_mib`: the part of the weights that a device must hold, whatever the server does; 0 if code decides it."""

    parts: tuple[MemoryPart, ...]
    instances: int
    certain_mib: int = 0

    @property
    def total_mib(self) -> int:
        """The known parts together."""
        return sum(part.mib or 0 for part in self.parts)

    @property
    def is_partial(self) -> bool:
        return any(part.mib is None or not part.is_whole for part in self.parts)

    @property
    def amount(self) -> str:
        """`about 1226 MiB, without its unknown parts`."""
        return f"about {self.total_mib} MiB{', without its unknown parts' * self.is_partial}"

    def as_json(self) -> dict[str, Any]:
        return {
            "total_mib": self.total_mib,
            "is_partial": self.is_partial,
            "instances": self.instances,
            "parts": [
                {"name": one.name, "mib": one.mib, "is_partial": not one.is_whole, "source": one.source}
                for one in self.parts
            ],
        }


def asks_for_gpu(backend: str, serving: Mapping[str, Any], envelope: Mapping[str, Any]) -> bool:
    """Whether the release declares an accelerator or gpu instances, or has a backend that needs one."""
    vendor = envelope.get("accelerator", {}).get("vendor", "none")
    return vendor != "none" or instances_of(serving, "gpu") > 0 or backend == "tensorrt"


def estimate(
    backend: str, serving: Mapping[str, Any], envelope: Mapping[str, Any], files: Files
) -> MemoryEstimate | None:
    """The estimate for each device; None for a release that asks for no GPU."""
    if not asks_for_gpu(backend, serving, envelope):
        return None
    instances = max(instances_of(serving, "gpu"), 1)
    limits = envelope.get("limits", {})
    weights, certain = _weights(backend, serving, instances, files)
    parts = (
        weights,
        _activations(_Asked(backend, serving, limits, envelope.get("engine", {}), instances), files),
        _workspace(backend, envelope.get("engine", {}), instances),
        MemoryPart("runtime", None, _CUDA_CONTEXT),
    )
    return MemoryEstimate(parts, instances, certain)


def _part(name: str, size_bytes: int, instances: int, source: str, *, is_whole: bool = True) -> MemoryPart:
    """A part that takes `size_bytes` in each instance, rounded up to MiB."""
    if size_bytes * instances > LARGEST:
        return MemoryPart(name, None, f"{source}: more bytes than any device has")
    held = f"{source}, in each of {instances} instances" if instances > 1 else source
    return MemoryPart(name, -(-size_bytes * instances >> 20), held, is_whole)


# --- weights ----------------------------------------------------------------------------------------------------------


def _weights(backend: str, serving: Mapping[str, Any], instances: int, files: Files) -> tuple[MemoryPart, int]:
    """(the part, the MiB of it that a device holds for certain)."""
    found = list(_files_with_weights(backend, files))
    if not found:
        return MemoryPart("weights", None, "no file of weights is known; the code may load or make its own"), 0
    size = sum(own for own, _, _ in found)
    source = "; ".join(dict.fromkeys(source for _, source, _ in found))
    if size > _MOST_EXPANSION * sum(held for _, _, held in found):
        return MemoryPart("weights", None, f"{source}: the tensors claim more bytes than the files hold"), 0
    copies = 1 if backend == "tensorrt" and not _has_free_shapes(serving) else instances
    if backend == "python":
        return _part("weights", size, copies, f"{source}; the code may load fewer"), 0
    # PyTorch's instances share their weights if the release asks for that, and one on the processor alone needs no device.
    shares = backend == "tensorrt" or serving.get("parameters", {}).get("ENABLE_WEIGHT_SHARING") == "true"
    certain = size if shares else size * copies
    if backend != "tensorrt" and not instances_of(serving, "gpu"):
        certain = 0
    return _part("weights", size, copies, source), certain >> 20


def _files_with_weights(backend: str, files: Files) -> Iterator[tuple[int, str, int]]:
    """(bytes of tensors, their source, bytes of the files that hold them) for each file with weights that the backend loads."""
    loads = [BACKEND_FILES[backend]] if backend != "python" else [one for one in files if one.startswith("artifact/")]
    for path in loads:
        if path not in files or kind_of(path) not in _WEIGHTS:
            continue
        folder = path.rpartition("/")[0]
        held, facts = files[path]
        held += sum(files[one][0] for name in facts.get("external", {}) if (one := f"{folder}/{name}") in files)
        read, source = _WEIGHTS[kind_of(path)]
        size = read(facts)
        yield (held, "file sizes", held) if size is None else (size, source, held)


#: Kind of file → the bytes of its tensors by its facts (None: unknown), and the name of that source.
_WEIGHTS: Final[dict[str, tuple[Callable[[Mapping[str, Any]], int | None], str]]] = {
    "safetensors": (
        lambda facts: safetensors.bytes_of(facts["tensors"]) if "tensors" in facts else None,
        "tensors in the safetensors headers",
    ),
    "gguf": (
        lambda facts: gguf.bytes_of(facts["tensors"]) if "tensors" in facts else None,
        "tensors in the GGUF header",
    ),
    "onnx": (lambda facts: facts.get("weights_bytes"), "tensors in the ONNX graph and its external data"),
    "torchscript": (lambda facts: facts.get("weights_bytes"), "data records of the TorchScript archive"),
    "tensorrt": (lambda _: None, ""),
    "pickle": (lambda _: None, ""),
}


def _has_free_shapes(serving: Mapping[str, Any]) -> bool:
    return serving["max_batch_size"] > 1 or any(-1 in tensor["dims"] for tensor in serving["inputs"])


# --- activations ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Asked:
    """The fields of a release that decide the size of one run."""

    backend: str
    serving: Mapping[str, Any]
    limits: Mapping[str, Any]
    engine: Mapping[str, Any]
    instances: int

    def largest(self, side: str) -> Iterator[tuple[str, str, Sequence[int]]]:
        """(name, data type, largest shape) of the served tensors, with the batch axis in front; -1 is unknown."""
        profiles: dict[str, Sequence[int]] = {}
        for one in self.engine.get("optimization_profiles", []):
            profiles.setdefault(one["input"], one["max"])  # the server selects the first
        most, batch = self.limits.get("max_input_dims", {}), self.serving["max_batch_size"]
        for tensor in self.serving[side]:
            name = tensor["name"]
            dims = most.get(name, tensor["dims"]) if side == "inputs" else tensor["dims"]
            shape = [batch, *dims] if batch else list(dims)
            yield name, tensor["data_type"], profiles.get(name, shape) if side == "inputs" else shape


def _activations(asked: _Asked, files: Files) -> MemoryPart:
    if asked.backend == "python":
        return _cache(asked, files)
    return _in_and_out(asked)


def _in_and_out(asked: _Asked) -> MemoryPart:
    """The served tensors, in part: the tensors between them are not counted."""
    every = [*asked.largest("inputs"), *asked.largest("outputs")]
    known = [(kind, shape) for _, kind, shape in every if min(shape, default=0) >= 0]
    size = sum(prod(shape) * _ELEMENT_BYTES[kind] for kind, shape in known)
    if not size:
        return MemoryPart("activations", None, "the served tensors have no largest size")
    source = "inputs and outputs at the largest batch; the tensors between them are not counted"
    return _part("activations", size, asked.instances, source, is_whole=False)


def _cache(asked: _Asked, files: Files) -> MemoryPart:
    """Keys and values of all tokens that are held at once, if a file of the release states a transformer."""
    without_type = ""
    for path, (_, facts) in files.items():
        is_gguf = "metadata" in facts and kind_of(path) == "gguf"
        sizes = gguf.attention_of(facts["metadata"]) if is_gguf else facts.get("transformer", {})
        each = cache_bytes_per_token(sizes, _GGUF_CACHE_BYTES if is_gguf else None)
        if each is not None:
            break
        if not is_gguf and sizes and "dtype" not in sizes:
            without_type = path
    else:
        why = "model.py computes, and no file states its tensors"
        if without_type:
            why = (
                f"{without_type} states layers and heads but no dtype that is known, so the key-value cache has no size: "
                f'add "dtype" ({", ".join(ELEMENT_BYTES)})'
            )
        return MemoryPart("activations", None, why)
    limits = asked.limits
    apart = limits.get("max_input_tokens"), limits.get("max_output_tokens")
    tokens = limits.get("max_total_tokens") or (apart[0] + apart[1] if apart[0] and apart[1] else 0)
    if not tokens:
        return MemoryPart(
            "activations", None, "declare envelope.limits.max_total_tokens: the key-value cache grows with it"
        )
    requests = limits.get("max_concurrency") or asked.instances * max(asked.serving["max_batch_size"], 1)
    source = (
        f"key-value cache by {path}: {each} bytes a token (2 × layers × key-value heads × head size × bytes of an element) "
        f"× {tokens} tokens × {requests} requests; other activations are unknown"
    )
    return _part("activations", each * tokens * requests, 1, source, is_whole=False)


# --- workspace --------------------------------------------------------------------------------------------------------


def _workspace(backend: str, engine: Mapping[str, Any], instances: int) -> MemoryPart:
    declared = engine.get("workspace_mib")
    if declared is None:
        return MemoryPart(
            "workspace", None, _OWN_WORKSPACE.get(backend, "the framework chooses it while the model runs")
        )
    return _part("workspace", declared << 20, instances, "envelope.engine.workspace_mib, as declared")
