"""A real Triton with an identity graph of all 13 data types, behind a real gateway."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onnx import TensorProto, helper

from serving.traffic.core.routes import Arm, ServerAddress
from tests.contracts import serving_models as made
from tests.contracts.serving_models import MemoryBlobs, launch_spec
from tests.support.rigs.gateway_rig import UNBOUNDED, Rig, rig
from tests.support.rigs.triton_rig import local_launcher

MODEL = "echo"
#: Items of the largest request.
BATCH = 256
#: Data type → ONNX's type.
TYPES: dict[str, int] = {
    "BOOL": TensorProto.BOOL,
    **{f"{sign}INT{bits}": getattr(TensorProto, f"{sign}INT{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)},
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
}


def release() -> tuple[dict[str, bytes], dict[str, Any]]:
    """Files and serving section: for each data type an output that equals its input, any number of values for each item."""
    sides = {
        side: [
            helper.make_tensor_value_info(f"{name}_{side}", kind, ["n", f"m_{name}"]) for name, kind in TYPES.items()
        ]
        for side in ("in", "out")
    }
    nodes = [helper.make_node("Identity", [f"{name}_in"], [f"{name}_out"]) for name in TYPES]
    graph = made.graph_bytes(helper.make_graph(nodes, "echo", sides["in"], sides["out"]))
    declared = {
        side: [{"name": f"{name}_{side}", "data_type": name, "dims": [-1]} for name in TYPES] for side in ("in", "out")
    }
    serving = made.serving(inputs=declared["in"], outputs=declared["out"], max_batch_size=BATCH)
    return {"artifact/model.onnx": graph}, serving


def stable(endpoint: ServerAddress | None) -> Arm:
    endpoints = (endpoint,) if endpoint else ()
    return Arm("r1", Rig.STABLE, endpoints, UNBOUNDED, has_streams=True, max_batch=BATCH)


@contextlib.contextmanager
def echo(folder: Path) -> Iterator[tuple[Rig, ServerAddress]]:
    """A gateway without a route yet, and the server's address."""
    blobs = MemoryBlobs()
    with local_launcher(folder, blobs) as launcher, rig(folder) as built:
        spec = launch_spec(made.manifest(blobs, MODEL, *release()), launcher.folder_for(1, MODEL, "r1"))
        server = launcher.start(spec)
        launcher.await_loaded(server, MODEL, timeout_s=120)
        yield built, ServerAddress(server.host, server.http_port, server.grpc_port)
