"""The ports to inference servers and to what starts them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from serving.ports.errors import PortError

Tensors = Mapping[str, npt.NDArray[Any]]


class InferenceError(PortError):
    """`unreachable`: no connection · `timeout` · `server_error`: 5xx or INTERNAL · `rejected`: the input or model was refused ·
    `full`: refused because too many were waiting already, whatever it asked · `not_offered`: an extension of the protocol that this
    server does not have, so that what it would tell is unknown.
    """

    REASONS = frozenset({"unreachable", "timeout", "server_error", "rejected", "full", "not_offered"})


class LaunchError(PortError):
    """`runtime_mismatch` · `fetch_failed` · `digest_mismatch` · `bad_config` · `not_contained` · `load_failed` · `not_ready` ·
    `warmup_failed`.
    """

    REASONS = frozenset(
        {
            "runtime_mismatch",
            "fetch_failed",
            "digest_mismatch",
            "bad_config",
            "not_contained",
            "load_failed",
            "not_ready",
            "warmup_failed",
        }
    )


@dataclass(frozen=True)
class TensorSpec:
    """A tensor as the server states it: `dims` without the batch axis where the model batches; -1 is any size.

    `is_whole`: the server does not say whether the model batches, and a batch axis, if there is one, is among `dims`.
    """

    name: str
    data_type: str  # Open Inference Protocol: FP32, INT64, BYTES, …
    dims: tuple[int, ...]
    is_whole: bool = False

    def dims_of_item(self, *, has_batch_axis: bool) -> tuple[int, ...]:
        """`dims` without the batch axis, of a model that is declared to have one or none; (1,) if no size is left."""
        return (self.dims[1:] if self.is_whole and has_batch_axis else self.dims) or (1,)


@dataclass(frozen=True)
class Inference:
    """One answer. `latency_s` is from just before the call to the whole answer."""

    outputs: dict[str, npt.NDArray[Any]]
    latency_s: float
    release: str = ""  # from the x-sluicegate-release header, when a gateway was asked


#: The two protocols of the Open Inference Protocol, by which a server is asked.
GRPC, HTTP = "grpc", "http"


@dataclass(frozen=True)
class Parcel:
    """Requests as bytes, and where they go: all that another process needs to send them."""

    protocol: str
    host: str
    port: int
    model: str
    bodies: tuple[bytes, ...]
    json_bytes: tuple[int, ...]  # over HTTP: how much of each body is JSON, tensors follow; 0: all of it
    path: str = ""  # over HTTP, if it is not the protocol's own
    streams: bool = False  # over gRPC: each request opens a stream of responses


class PreparedRequests(Protocol):
    """Requests of one model that were made beforehand, so that sending one costs little. Safe to use from several threads."""

    @property
    def parcel(self) -> Parcel | None:
        """None where no other process can send them."""
        ...

    def connect(self) -> None:
        """Makes the connection for which the first request would wait. Whoever cannot be reached says so when it is asked."""
        ...

    def send(self, at: int, *, timeout_s: float) -> Sequence[float] | None:
        """Sends the request at that place, counted round, and waits for its whole answer, at which nobody looks.

        Of requests that stream: when each response came, by `time.perf_counter`. Raises InferenceError.
        """
        ...

    def close(self) -> None: ...


class InferenceServer(Protocol):
    """One running inference server (Open Inference Protocol v2). It serves what it was started with: nothing is loaded later."""

    def is_live(self, *, timeout_s: float = 1.0) -> bool:
        """Whether the server answers the liveness call within `timeout_s`. The call needs no model."""
        ...

    def metadata(self, model: str) -> tuple[list[TensorSpec], list[TensorSpec]]:
        """(inputs, outputs). Raises InferenceError."""
        ...

    def infer(self, model: str, inputs: Tensors, *, timeout_s: float, outputs: Sequence[str] = ()) -> Inference:
        """One inference. BYTES tensors are object arrays of bytes or str. Raises InferenceError.

        Of a release that streams the answer is whole: each text is its pieces, one after the other.
        """
        ...

    def prepared(
        self, model: str, batches: Sequence[Tensors], *, protocol: str = GRPC, streams: bool = False
    ) -> PreparedRequests:
        """One request for each of `batches`, to be sent over GRPC or HTTP; closed with this client. Raises InferenceError.

        `streams`: to a release that answers in several responses, over GRPC alone.
        """
        ...

    def statistics(self, model: str) -> dict[str, Any]:
        """The server's own statistics of one model, as JSON. Raises InferenceError: `not_offered` of a server that keeps none."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class LaunchSpec:
    """All that is needed to start one server for one release."""

    replica_id: int
    model: str
    release_name: str  # r14
    digest: str  # sha256:<64 hex>
    manifest: dict[str, Any]
    folder: Path  # release-named; created by the launcher, removed by it
    devices: tuple[str, ...] = ()  # UUIDs of the GPUs and MIG slices that it was given; empty: whatever there is
    serving: dict[str, Any] | None = None  # in the place of the manifest's, for a server that no user reaches
    alike: tuple[str, ...] = ()  # stable releases of the model for the same runtime, for a server of somebody else


@dataclass(frozen=True)
class RunningServer:
    """`pid` 0: a process of somebody else's, perhaps on another machine; nothing of it can be measured.

    `speaks`: see `registry.core.kinds.spoken_by`.
    """

    host: str
    http_port: int
    grpc_port: int
    metrics_port: int
    pid: int
    folder: Path
    speaks: str = ""


class Launcher(Protocol):
    """Starts and stops inference servers on this node."""

    def runtimes(self) -> list[dict[str, Any]]:
        """[{"image": "name@sha256:…", "server": "triton", "backends": […], "versions": {…}}] that this node can run."""
        ...

    def start(self, spec: LaunchSpec) -> RunningServer:
        """A server that begins to load the release, its model repository prepared from `spec`. Raises LaunchError."""
        ...

    def await_loaded(
        self, server: RunningServer, model: str, *, timeout_s: float, beat: Callable[[], None] = lambda: None
    ) -> None:
        """Returns when the server has loaded the release and answers. `beat` is called many times a second meanwhile, and may raise.

        Raises LaunchError: `load_failed` with the server's own words, or because it took longer; `not_ready` for a server that
        ended.
        """
        ...

    def is_alive(self, server: RunningServer) -> bool: ...

    def stop(self, server: RunningServer, *, grace_s: float) -> None:
        """Ends the process and everything it leaves behind (shared memory, folder). Idempotent."""
        ...
