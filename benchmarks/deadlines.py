"""What a server still computes for callers who have left: real Triton, real Envoy, over HTTP and gRPC.

Run `python -m benchmarks.deadlines`; three minutes. A model that takes 0.4 s for a request, on one instance, is asked ten times at
once. Nine callers leave while the first is computed (they close, cancel, or set a deadline), or the gateway gives them up. Printed: how
many of the ten were computed, by the time that the server
spent on it, which for the graph varies with what else the machine does. Once as code that knows nothing of it, once as a graph in the
runner, each without a dynamic batcher and with one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sluicegate.settings")

import django
import grpc
import numpy as np
import onnxruntime
from tritonclient.grpc import service_pb2

django.setup()

from serving.traffic.core.request_limits import Limits  # noqa: E402
from serving.traffic.core.routes import Arm, ServerAddress  # noqa: E402
from tests.contracts import serving_models as made  # noqa: E402
from tests.contracts.serving_models import MemoryBlobs, launch_spec  # noqa: E402
from tests.support.rigs.gateway_rig import MODEL, UNBOUNDED, Rig, rig  # noqa: E402
from tests.support.rigs.overload_rig import BODY, MESSAGE, python_model  # noqa: E402
from tests.support.rigs.triton_rig import local_launcher  # noqa: E402

ASKED, TAKES_S, LEAVES_S = 10, 0.4, 0.2
#: Time for one answer, and not for two.
DEADLINE_S = 1.5 * TAKES_S
_SERVICE: Final = "/inference.GRPCInferenceService/"
_INFER: Final = (
    f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nhost: g\r\ncontent-length: {len(BODY)}\r\n\r\n".encode() + BODY
)


@contextlib.contextmanager
def server(folder: Path, backend: str, *, is_batched: bool) -> Iterator[ServerAddress]:
    """A real Triton with the model as code (`python`), or as a graph in the runner (`sluicegate-onnx`)."""
    blobs = MemoryBlobs()
    (folder / "servers").mkdir(parents=True)
    batching = {"preferred_batch_size": [], "max_queue_delay_us": 0} if is_batched else None
    files = {
        "python": {"artifact/model.py": python_model(str(TAKES_S))},
        "sluicegate-onnx": {"artifact/model.onnx": made.slow_graph(_turns())},
    }
    own = made.serving(max_batch_size=1, dynamic_batching=batching)
    document = made.manifest(blobs, MODEL, files[backend], own, backend=backend)
    with local_launcher(folder, blobs) as launcher:
        running = launcher.start(launch_spec(document, launcher.folder_for(1, MODEL, "r1")))
        launcher.await_loaded(running, MODEL, timeout_s=60)
        yield ServerAddress(running.host, running.http_port, running.grpc_port)


def _turns() -> int:
    """Of the slow graph's loop in `TAKES_S` on this machine."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session, row = onnxruntime.InferenceSession(made.slow_graph(10), options), {"x": np.ones((1, 4), np.float32)}
    session.run(None, row)
    began = time.perf_counter()
    session.run(None, row)
    return max(1, round(10 * TAKES_S / (time.perf_counter() - began)))


def computed_s(at: ServerAddress) -> float:
    """Seconds that the server has spent on computing, once it is idle. It counts as well answered what the runner left out, too."""
    with grpc.insecure_channel(f"{at.host}:{at.grpc_port}") as channel:
        ask = channel.unary_unary(
            f"{_SERVICE}ModelStatistics", response_deserializer=service_pb2.ModelStatisticsResponse.FromString
        )
        asked, found = service_pb2.ModelStatisticsRequest(name=MODEL).SerializeToString(), [-1, -2]
        while found[-1] != found[-2]:
            time.sleep(2 * TAKES_S)
            (model,) = ask(asked, timeout=60).model_stats
            found.append(model.inference_stats.compute_infer.ns)
    return found[-1] / 1e9


def http(port: int, leaves_s: float) -> None:
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(_INFER)
        line.settimeout(leaves_s)
        with contextlib.suppress(TimeoutError):
            line.recv(65_536)


def over_grpc(port: int, leaves_s: float, *, is_cancelled: bool) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        ask = channel.unary_unary(f"{_SERVICE}ModelInfer")
        call = ask.future(MESSAGE, timeout=60 if is_cancelled else leaves_s)
        with contextlib.suppress(grpc.FutureTimeoutError, grpc.FutureCancelledError, grpc.RpcError):
            call.result(timeout=leaves_s if is_cancelled else None)
        call.cancel()


def ways(parts: Rig, at: ServerAddress) -> dict[str, Callable[[], Any]]:
    """Each asks `ASKED` times at once; all but the first leave, by their own will or the gateway's."""

    def each(ask: Callable[[float], None], leaves_s: float) -> Callable[[], None]:
        def run() -> None:
            with ThreadPoolExecutor(ASKED) as pool:
                first = pool.submit(ask, 60.0)
                time.sleep(LEAVES_S / 4)
                others = [pool.submit(ask, leaves_s) for _ in range(ASKED - 1)]
                for one in [first, *others]:
                    one.result()

        return run

    def cancel(port: int) -> Callable[[float], None]:
        return lambda leaves_s: over_grpc(port, leaves_s, is_cancelled=True)

    def deadline(leaves_s: float) -> None:
        over_grpc(parts.envoy.port, leaves_s, is_cancelled=False)

    gateway = parts.envoy.port
    return {
        "HTTP, callers close": each(lambda leaves_s: http(at.http_port, leaves_s), LEAVES_S),
        "HTTP through the gateway, callers close": each(lambda leaves_s: http(gateway, leaves_s), LEAVES_S),
        "HTTP, the gateway's time-out": each(lambda _: http(gateway, 60.0), 60.0),
        "gRPC, callers cancel": each(cancel(at.grpc_port), LEAVES_S),
        "gRPC through the gateway, callers cancel": each(cancel(gateway), LEAVES_S),
        "gRPC through the gateway, callers' deadline": each(deadline, DEADLINE_S),
    }


def measure(parts: Rig, folder: Path, backend: str, *, is_batched: bool) -> dict[str, int]:
    """By way, how many requests' worth of computing was done for the ten."""
    with server(folder, backend, is_batched=is_batched) as at:
        arm = Arm("r1", Rig.STABLE, (at,), UNBOUNDED)
        for _ in range(4):
            first_s = computed_s(at)
            http(at.http_port, 60.0)
        one_s = computed_s(at) - first_s  # the last of four
        found = {}
        for name, run in ways(parts, at).items():
            whole_s = DEADLINE_S if name.endswith("time-out") else 60.0
            parts.apply(None, stable=arm, limits=Limits(whole_s, whole_s))
            before_s = computed_s(at)
            run()
            found[name] = min(ASKED, round((computed_s(at) - before_s) / one_s))
        return found


def main() -> None:
    kinds = [(backend, is_batched) for backend in ("python", "sluicegate-onnx") for is_batched in (False, True)]
    columns = []
    for number, (backend, is_batched) in enumerate(kinds):
        with tempfile.TemporaryDirectory() as folder, rig(Path(folder)) as parts:
            parts.apply(None)
            columns.append(measure(parts, Path(folder) / str(number), backend, is_batched=is_batched))
    print(
        f"Computed, of {ASKED}:\n\n| callers | code | code, batcher | runner | runner, batcher |\n|---|---|---|---|---|"
    )
    for name in columns[0]:
        print(f"| {name} | " + " | ".join(str(column[name]) for column in columns) + " |")


if __name__ == "__main__":
    main()
