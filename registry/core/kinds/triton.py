"""Triton, from the wheel `nvidia-pytriton`: the Open Inference Protocol v2 with its extensions.

Sources: Triton 2.51 itself, and its model repository layout. `tests/real/test_mistakes.py` holds
the requests behind `WORDS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from registry.core.kinds.kind import (
    GRPC,
    HTTP,
    Backend,
    Calls,
    Image,
    Progress,
    ServerKind,
    ServerPlace,
    Start,
)
from registry.core.kinds.words import Words

#: Who sends this header with the server's secret may use its control APIs.
CONTROL_HEADER: Final = "sluicegate-control"
_CONTROL_APIS: Final = "model-repository,shared-memory,trace,logging"
_EXIT_TIMEOUT_S: Final = 3
_RAN: Final = "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Non-zero status code returned while running "
_NO_MEMORY: Final = tuple(f"Unable to find {kind}shared memory region" for kind in ("", "system ", "cuda "))
#: Triton's front end answers 500 as application/json, before any model saw the request; what a model raises or answers comes
#: as text/plain.
WORDS: Final = Words(
    opens=('{"error":"', 'data: {"error":"'),
    mistakes=(
        "failed to parse the request JSON buffer", "Unable to parse '", "Unable to set '", "failed to get request params",
        "attempt to get members for non-object", "attempt to access ", "Unsupported compression type",
        "string correlation ID cannot", "Unable to parse JSON bytes", "Expected JSON object for keyword",
    ),
    no_memory=_NO_MEMORY,
    failures=("Failed to process the request(s) for model", "Stub process", _RAN),
    ran=_RAN,
    full="Exceeds maximum queue size",
    grpc_mistakes=(
        (13, "Unable to parse request"), (13, "Unexpected error decompressing"), (12, "string correlation ID cannot"),
        *((5, text) for text in _NO_MEMORY),
    ),
)  # fmt: skip

_SERVICE: Final = r"/inference\.GRPCInferenceService/"
_MODEL_PATH: Final = r"^/v2/models/[^/]+(/versions/[^/]+)?"
#: Never loading, tracing, logging or shared memory.
CALLS: Final = Calls(
    inference={GRPC: rf"^{_SERVICE}ModelInfer$", HTTP: rf"{_MODEL_PATH}/(infer|generate)$"},
    words="infer, generate, ready, metadata, config and statistics",
    question={
        GRPC: rf"^{_SERVICE}Model(Ready|Metadata|Config|Statistics)$",
        HTTP: rf"{_MODEL_PATH}(/(ready|config|stats))?$",
    },
    stream={GRPC: rf"^{_SERVICE}ModelStreamInfer$", HTTP: rf"{_MODEL_PATH}/generate_stream$"},
)
#: Phases of a request in which an instance is busy, as the statistics name them.
_ON_INSTANCE: Final = ("compute_input", "compute_infer", "compute_output")
#: The server's version by its wheel's. Source: the server's own metadata; tests/contracts/test_launcher.py compares them.
_VERSIONS: Final = {"0.7.0": "2.51.0"}


def control_restrictions(secret: str) -> tuple[str, ...]:
    """Arguments that close the server's control APIs to all who do not know the secret. Inference and metadata stay open.

    Source: the server's own words, Triton 2.51; its help says it with a comma before the key, which it does not read.
    """
    value = f"{_CONTROL_APIS}:{CONTROL_HEADER}={secret}"
    return f"--http-restricted-api={value}", f"--grpc-restricted-protocol={value}"


def _files(python: str) -> dict[str, str]:
    root = "pytriton/tritonserver"
    backend = f"{root}/backends/python"
    return {
        "server": f"{root}/bin/tritonserver",
        "core": "nvidia_pytriton.libs/libtritonserver-*.so",
        "backend": f"{backend}/libtriton_python.so",
        "utils": f"{backend}/triton_python_backend_utils.py",
        "stub": f"{root}/python_backend_stubs/{python}/triton_python_backend_stub",
    }


def _start(place: ServerPlace) -> Start:
    backends = place.folder / "backends"
    argv = (
        str(place.files["server"]),
        f"--model-repository={place.folder / 'repository'}",
        f"--backend-directory={backends}",
        # The server loads its repository at the start and nothing afterwards, so that no caller can load code.
        "--model-control-mode=none",
        "--exit-on-error=false",  # a model that cannot load is told by the index, with its reason
        "--disable-auto-complete-config",
        "--metrics-interval-ms=500",
        f"--exit-timeout-secs={_EXIT_TIMEOUT_S}",
        f"--backend-config=python,shm-region-prefix-name={place.shm_prefix}",
        *(
            f"--{name}-{what}={value}"
            for name, port in place.ports.items()
            for what, value in (("address", place.address), ("port", port))
        ),
    )
    linked = [place.files[name] for name in ("backend", "utils", "stub")]
    return Start(
        argv,
        control_restrictions(place.secret),
        links={f"backends/python/{path.name}": path for path in linked},
        libraries=(place.site / "nvidia_pytriton.libs",),
    )


def progress(statistics: Mapping[str, Any]) -> Progress:
    """Failed inferences are no progress: a server whose model hangs refuses requests for a full queue and counts them as
    failed. Triton's JSON has 64-bit counts as text and leaves zeros out."""
    rows = [row.get("inference_stats", {}) for row in statistics.get("model_stats", [])]

    def total(phase: str, field: str) -> int:
        return sum(int(row.get(phase, {}).get(field, 0)) for row in rows)

    runs = total("compute_infer", "count")
    busy_ns = sum(total(phase, "ns") for phase in _ON_INSTANCE)
    return Progress(total("success", "count"), busy_ns / runs / 1e9 if runs else None)


TRITON: Final = ServerKind(
    name="triton",
    backends={
        # ONNX graphs run in this product's runner, which is a python model
        "sluicegate-onnx": Backend("artifact/model.onnx", runs_as="python", runner="onnx_runner.py"),
        "python": Backend("artifact/model.py", runs_as="python"),
        "pytorch": Backend("artifact/model.pt"),
        "tensorrt": Backend("artifact/model.plan"),
    },
    calls=CALLS,
    words=WORDS,
    image=Image(
        "local/triton-onnx",
        "runtime.lock",
        (("nvidia_pytriton",), ("numpy",), ("tokenizers",), ("onnxruntime", "onnxruntime_gpu")),
        ("pytriton/tritonserver/", "nvidia_pytriton.libs/"),
        _files,
        ("__init__.py", "onnx_runner.py"),
        lambda wheel: _VERSIONS.get(wheel, f"of nvidia-pytriton {wheel}"),
    ),
    start=_start,
    exit_grace_s=_EXIT_TIMEOUT_S + 2.0,
    loads="1",
    writes={"sluicegate-onnx": ("model.py", "sluicegate.json"), "python": ("sluicegate.json",)},
    has_config=True,
    tells_live=True,
    # Even a process that was only stopped takes its whole server down with the next request once it goes on.
    # Source: observed with the python backend, SIGSTOP and SIGCONT to the stub.
    died="is not healthy",
    progress=progress,
)
