"""Every call of the stock tritonclient, over both protocols, without a header of ours. Prints the outcomes as JSON.

Run by the Python of the inference server, which has the client's HTTP part: `oip_client.py HTTP_ADDRESS GRPC_ADDRESS MODEL`.
An outcome is what the call returned, in short, or `STATUS message` of its error.
"""

from __future__ import annotations

import json
import queue
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

SENT = np.array([[1, 2**53 + 1, -(2**63)]], np.int64)
TYPES = (
    "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FP16", "FP32", "FP64", "BYTES",
)  # fmt: skip
REGION = b"eyJyYXciOiAxfQ=="


def told(call: Callable[[], Any]) -> str:
    try:
        return str(call())
    except InferenceServerException as error:
        return f"{str(error.status() or '').removeprefix('StatusCode.')} {error.message()}"


def named(answer: Any) -> str:
    """The name in an answer of metadata, configuration or statistics."""
    answer = answer if isinstance(answer, dict) else {}
    inner = (answer.get("config") or (answer.get("model_stats") or [answer])[0]) if "name" not in answer else answer
    return str(inner.get("name"))


def inputs(module: Any, **how: Any) -> list[Any]:
    """One tensor of each data type, all but INT64 of one plain value."""
    tensors = []
    for name in TYPES:
        plain = np.array([[b"text"]], object) if name == "BYTES" else np.ones((1, 1), triton_to_np_dtype(name))
        value = SENT if name == "INT64" else plain
        tensors.append(module.InferInput(f"{name}_in", value.shape, name))
        tensors[-1].set_data_from_numpy(value, **({} if name == "FP16" else how))
    return tensors


def compared(answer: Any) -> str:
    return "the same" if answer.tobytes() == SENT.tobytes() else f"another: {answer}"


def infer(module: Any, client: Any, model: str, version: str = "", **how: Any) -> str:
    outputs = [module.InferRequestedOutput("INT64_out", **how)]
    return compared(client.infer(model, inputs(module, **how), version, outputs).as_numpy("INT64_out"))


def streamed(client: Any, model: str) -> str:
    """Two requests of one stream."""
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(callback=lambda result, error: answers.put(error or compared(result.as_numpy("INT64_out"))))
    for _ in range(2):
        client.async_stream_infer(model, inputs(grpc_client))
    first = answers.get(timeout=60)
    second = first if isinstance(first, InferenceServerException) else answers.get(timeout=60)
    client.stop_stream()
    if isinstance(first, InferenceServerException):
        raise first
    return str(first if first == second else (first, second))


def calls(module: Any, client: Any, model: str) -> dict[str, Callable[[], Any]]:
    """By name. Both clients have these."""
    json_of = {} if module is http_client else {"as_json": True}
    return {
        "server live": client.is_server_live,
        "server ready": client.is_server_ready,
        "server metadata": lambda: named(client.get_server_metadata(**json_of)),
        "model ready": lambda: client.is_model_ready(model),
        "model ready, version 1": lambda: client.is_model_ready(model, "1"),
        "model metadata": lambda: named(client.get_model_metadata(model, **json_of)),
        "model metadata, version 1": lambda: named(client.get_model_metadata(model, "1", **json_of)),
        "model config": lambda: named(client.get_model_config(model, **json_of)),
        "statistics": lambda: named(client.get_inference_statistics(model, **json_of)),
        "statistics of all": client.get_inference_statistics,
        "infer": lambda: infer(module, client, model),
        "infer, version 1": lambda: infer(module, client, model, "1"),
        "infer, version 7": lambda: infer(module, client, model, "7"),
        "infer, version latest": lambda: infer(module, client, model, "latest"),
        "infer, unknown model": lambda: infer(module, client, "nope"),
        "unknown model ready": lambda: client.is_model_ready("nope"),
        "repository index": client.get_model_repository_index,
        "load": lambda: client.load_model(model),
        "unload": lambda: client.unload_model(model),
        "trace settings": client.get_trace_settings,
        "trace settings of a model": lambda: client.get_trace_settings(model),
        "set trace settings": lambda: client.update_trace_settings(settings={"trace_rate": "1"}),
        "log settings": client.get_log_settings,
        "set log settings": lambda: client.update_log_settings({"log_verbose_level": 1}),
        "shared memory": client.get_system_shared_memory_status,
        "register shared memory": lambda: client.register_system_shared_memory("x", "/x", 8),
        "unregister shared memory": client.unregister_system_shared_memory,
        "CUDA memory": client.get_cuda_shared_memory_status,
        "register CUDA memory": lambda: client.register_cuda_shared_memory("x", REGION, 0, 8),
        "unregister CUDA memory": client.unregister_cuda_shared_memory,
    }


def main(http_address: str, grpc_address: str, model: str) -> None:
    http = http_client.InferenceServerClient(http_address, network_timeout=120)
    grpc = grpc_client.InferenceServerClient(grpc_address)
    tables = {"http": calls(http_client, http, model), "grpc": calls(grpc_client, grpc, model)}
    tables["http"]["infer, as JSON"] = lambda: infer(http_client, http, model, binary_data=False)
    tables["grpc"]["stream"] = lambda: streamed(grpc, model)
    tables["grpc"]["stream, unknown model"] = lambda: streamed(grpc_client.InferenceServerClient(grpc_address), "nope")
    outcomes = {protocol: {name: told(call) for name, call in table.items()} for protocol, table in tables.items()}
    json.dump(outcomes, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
