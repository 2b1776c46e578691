"""The state of each server kind, backend, platform and GPU part: run, run on a GPU, from documents or never run.

A state is computed from evidence, never written by hand. Evidence is the outcome of tests on the real part
(`@pytest.mark.shows`) and the report of the GPU proof; `make capabilities` collects both. A new server kind is one
row of `CAPABILITIES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


class State(StrEnum):
    """How far a capability was run, the furthest first."""

    RUN_ON_GPU = "run on a GPU"
    RUN = "run"
    FROM_DOCUMENTS = "from documents"
    NEVER_RUN = "never run"


MEANINGS: Final = {
    State.RUN: "tests ran it on the real part, without a GPU, and passed",
    State.RUN_ON_GPU: "the GPU proof, or tests that need a GPU, ran it on an NVIDIA GPU and passed",
    State.FROM_DOCUMENTS: "its code follows the maker's documents; tests ran it on recordings or stand-ins written by hand",
    State.NEVER_RUN: "nothing ran it; for most of these rows the product has no code",
}

#: Prefix of an id → title of its rows.
KINDS: Final = {
    "server": "Server kinds",
    "backend": "Backends of server kinds",
    "platform": "Platforms",
    "gpu": "GPU facts and verdicts",
    "builder": "Engine plans",
}
#: Parts that are present only on a machine with an NVIDIA GPU.
GPU_PARTS: Final = frozenset({"gpu", "tensorrt"})


@dataclass(frozen=True)
class Capability:
    """One row of the table.

    Attributes:
        id: `kind:name`; the kind is a key of `KINDS`.
        scope: The use that the state covers, without a full stop.
        instead: The substitute that tests ran, or the gap, without a full stop; shown while the capability was not run.
        part: The real part (`tests/support/rigs/parts.py`) that every test which shows the capability needs. Empty: no test can show it.
        steps: Steps of the GPU proof which together prove it on a GPU. Empty: the proof does not cover it.
        has_code: Whether the product has code for it that follows documents, so that it is at least `from documents`.
    """

    id: str
    name: str
    scope: str
    instead: str = ""
    part: str = ""
    steps: tuple[str, ...] = ()
    has_code: bool = False

    @property
    def kind(self) -> str:
        return self.id.partition(":")[0]


def _server(name: str, title: str, scope: str, steps: tuple[str, ...] = ()) -> Capability:
    return Capability(f"server:{name}", title, scope, part=name, steps=steps, has_code=True)


def _without_code(
    identity: str, name: str, scope: str, instead: str = "The product has no adapter for it"
) -> Capability:
    return Capability(identity, name, scope, instead)


_OIP: Final = "Its owner runs it; Open Inference Protocol v2 over HTTP and gRPC"
_OPENAI: Final = "Its owner runs it; completions and chats of OpenAI's protocol over HTTP"
_STUB: Final = "Tests ran a stub with the answers that vLLM gave, and llama.cpp's server in its place"
_SEALED_ONLY: Final = "A release that names it can be sealed, and no node offers it"

CAPABILITIES: Final = (
    _server(
        "triton",
        "Triton",
        "An agent or its owner runs it; Open Inference Protocol v2 with Triton's extensions",
        ("contract", "load"),
    ),
    _server(
        "llamacpp", "llama.cpp", "An agent runs it on the CPU; completions and chats of OpenAI's protocol over HTTP"
    ),
    _server("mlserver", "MLServer", _OIP),
    _server("kserve", "KServe's model server", _OIP),
    _without_code("server:tensorflow-serving", "TensorFlow Serving", "Its own protocol"),
    _without_code("server:torchserve", "TorchServe", "Its own protocol"),
    _without_code("server:bentoml", "BentoML", "Its own protocol"),
    _without_code("server:ray-serve", "Ray Serve", "Its own protocol"),
    *(
        Capability(f"server:{name}", title, _OPENAI, _STUB, has_code=True)
        for name, title in (("vllm", "vLLM"), ("sglang", "SGLang"), ("nim", "NVIDIA NIM"))
    ),
    Capability(
        "backend:triton/sluicegate-onnx",
        "ONNX Runtime",
        "The product's runner executes the graph on the CPU",
        part="triton",
        has_code=True,
    ),
    Capability(
        "backend:triton/sluicegate-onnx-cuda",
        "ONNX Runtime on CUDA",
        "The product's runner executes the graph with the CUDA provider",
        "Tests ran the refusal on a machine without CUDA",
        has_code=True,
    ),
    Capability(
        "backend:triton/python",
        "Python",
        "The release brings model.py",
        part="triton",
        steps=("contract", "load", "resources"),
        has_code=True,
    ),
    Capability(
        "backend:triton/decoupled",
        "Python streams",
        "A request has several responses, over gRPC",
        part="triton",
        steps=("stream_times",),
        has_code=True,
    ),
    Capability(
        "backend:llamacpp/gguf",
        "GGUF on llama.cpp",
        "One GGUF file, on the CPU",
        part="llamacpp",
        has_code=True,
    ),
    _without_code("backend:triton/pytorch", "PyTorch", "A TorchScript file", _SEALED_ONLY),
    _without_code("backend:triton/tensorrt", "TensorRT", "A TensorRT plan", _SEALED_ONLY),
    Capability(
        "platform:local",
        "local",
        "One machine: the agent starts, isolates and ends the servers",
        part="triton",
        steps=("launch", "clean_end"),
        has_code=True,
    ),
    Capability(
        "platform:static",
        "static",
        "Servers that their owner runs: releases are loaded into Triton, or only routed to",
        part="triton",
        has_code=True,
    ),
    _without_code(
        "platform:kubernetes",
        "kubernetes",
        "A cluster runs the objects that `release manifests` prints",
        "The product has no controller for it",
    ),
    Capability(
        "gpu:nvml",
        "NVML",
        "The agent reads a node's GPUs through NVIDIA's library",
        "Tests ran the real pynvml on recordings written by hand",
        part="gpu",
        steps=("reader_idle", "reader_load"),
        has_code=True,
    ),
    Capability(
        "gpu:dcgm",
        "DCGM exporter",
        "The agent reads a node's GPUs through Prometheus",
        "Tests ran a real Prometheus on a page written by hand",
        has_code=True,
    ),
    Capability(
        "gpu:mig",
        "MIG",
        "Slices are read, placed and judged",
        "Tests ran it on recordings written by hand",
        has_code=True,
    ),
    Capability(
        "gpu:gate",
        "gpu gate",
        "Verdicts on the GPUs under a load",
        "Tests ran it beside a real Triton on the CPU, with recordings written by hand",
        steps=("gpu_gate",),
        has_code=True,
    ),
    Capability(
        "gpu:memory",
        "GPU memory",
        "The resources gate holds a release's device memory against its envelope",
        "Tests ran it on recordings written by hand",
        steps=("resources",),
        has_code=True,
    ),
    Capability(
        "gpu:cuda",
        "CUDA adapter",
        "Name, compute capability and driver through the driver's library",
        "Tests ran it on a stand-in for the library",
        part="gpu",
        steps=("cuda_adapter",),
        has_code=True,
    ),
    Capability(
        "builder:tensorrt",
        "TensorRT builder",
        "`engine build` with TensorRT 10 or 11",
        "Tests ran it on a stand-in for TensorRT's module",
        part="tensorrt",
        has_code=True,
    ),
    Capability(
        "builder:tensorrt-rtx",
        "TensorRT-RTX builder",
        "Plans are built without a GPU",
        "Its plans are built from the builder's documentation",
        part="tensorrt-rtx",
        has_code=True,
    ),
)

BY_ID: Final = {capability.id: capability for capability in CAPABILITIES}


def table(evidence: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every capability with its state, in the order of `CAPABILITIES`.

    Args:
        evidence: `{"tests": {id: {"files": {path: passed tests}, "shown_at", "version"}}, "gpu": {"card", "ended_at",
            "proved": [step]} or None}`.

    Returns:
        Rows with `id`, `kind`, `name`, `scope`, `instead`, `state`, `tests` (files), and `shown_at`, `version` and `card`, each None
        if it does not apply.
    """
    return [_row(capability, evidence) for capability in CAPABILITIES]


def _row(capability: Capability, evidence: Mapping[str, Any]) -> dict[str, Any]:
    shown = evidence["tests"].get(capability.id)
    gpu = evidence["gpu"] or {"proved": ()}
    is_proved = bool(capability.steps) and set(capability.steps) <= set(gpu["proved"])
    if is_proved or (shown and capability.part in GPU_PARTS):
        state = State.RUN_ON_GPU
    elif shown:
        state = State.RUN
    else:
        state = State.FROM_DOCUMENTS if capability.has_code else State.NEVER_RUN
    return {
        "id": capability.id,
        "kind": capability.kind,
        "name": capability.name,
        "scope": capability.scope,
        "instead": "" if state in (State.RUN, State.RUN_ON_GPU) else capability.instead,
        "state": str(state),
        "tests": sorted(shown["files"]) if shown else [],
        "shown_at": gpu["ended_at"] if is_proved else shown["shown_at"] if shown else None,
        "version": shown["version"] if shown else None,
        "card": gpu["card"] if is_proved else None,
    }


def states_of(rows: list[dict[str, Any]], server: str, backends: list[str]) -> dict[str, Any]:
    """`{"server": state, "backends": {backend: state}}` of a runtime image on offer; `never run` for a name without a row."""
    states = {row["id"]: row["state"] for row in rows}
    return {
        "server": states.get(f"server:{server}", str(State.NEVER_RUN)),
        "backends": {name: states.get(f"backend:{server}/{name}", str(State.NEVER_RUN)) for name in backends},
    }
