"""Honest stand-ins for an inference server, a launcher and a metrics server, in this process.

"Honest": they refuse what the real ones refuse, join requests to batches as the real ones do, let one bad request
spoil its batch as user code does, and never get a dead model process back. The same contract tests run on these and on the
real ones.
"""

from __future__ import annotations

import itertools
import math
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from serving.ports import (
    GRPC,
    CounterQuery,
    CounterSample,
    Inference,
    InferenceError,
    LaunchError,
    LaunchSpec,
    MetricsError,
    RunningServer,
    Tensors,
    TensorSpec,
)
from serving.servers.core.made_up import NUMPY_TYPES
from serving.traffic.core.promql import selectors

Arrays = dict[str, npt.NDArray[Any]]
Compute = Callable[[Arrays], Arrays]


@dataclass
class FakeModel:
    """What a model does, and how badly.

    `compute` gets a whole batch. `latency_s` is per batch. `breaks` is the error that every request meets;
    `is_dead` is a model process that died: every request fails until another server is started.
    `load_error` is why it cannot be loaded.
    `is_hung` is code that never returns: no request is answered and none finishes. `is_frozen` is its whole process: not even
    its statistics answer.
    """

    serving: dict[str, Any]
    compute: Compute
    latency_s: float = 0.0
    load_error: str = ""
    breaks: InferenceError | None = None
    is_dead: bool = False
    is_hung: bool = False
    is_frozen: bool = False


@dataclass
class _Waiting:
    tensors: Arrays
    size: int
    came_ns: int = field(default_factory=time.perf_counter_ns)
    outputs: Arrays | None = None
    error: Exception | None = None

    @property
    def is_done(self) -> bool:
        return self.outputs is not None or self.error is not None


@dataclass
class _Loaded:
    instance: threading.Lock = field(default_factory=threading.Lock)  # one instance: one batch at a time
    queue: list[_Waiting] = field(default_factory=list)
    batches: int = 0
    succeeded: int = 0
    items: int = 0
    failed: int = 0
    success_ns: int = 0
    queue_ns: int = 0
    infer_ns: int = 0  # each request is charged its whole batch
    by_size: dict[int, tuple[int, int]] = field(default_factory=dict)  # batch size → (batches, ns)


class FakeInferenceServer:
    """Implements `serving.ports.InferenceServer`."""

    def __init__(self, models: dict[str, FakeModel]) -> None:
        self.models = models
        self.is_down = False
        self._errors = {name: model.load_error for name, model in models.items()}
        self._loaded = {name: _Loaded() for name, error in self._errors.items() if not error}
        for name in self._loaded:
            models[name].is_dead = False  # a new server has new model processes

    def close(self) -> None:
        """Nothing is held."""

    def is_live(self, *, timeout_s: float = 1.0) -> bool:
        if any(one.is_frozen for one in self.models.values()):
            time.sleep(timeout_s)
            return False
        return not self.is_down

    def metadata(self, model: str) -> tuple[list[TensorSpec], list[TensorSpec]]:
        self._find(model)
        serving = self.models[model].serving
        return _specs(serving["inputs"]), _specs(serving["outputs"])

    def infer(self, model: str, inputs: Tensors, *, timeout_s: float, outputs: Sequence[str] = ()) -> Inference:
        loaded, behaviour = self._find(model), self.models[model]
        tensors, size = _checked(inputs, behaviour.serving)
        unknown = set(outputs) - {tensor["name"] for tensor in behaviour.serving["outputs"]}
        if unknown:
            raise InferenceError("rejected", f"{model} has no output {sorted(unknown)[0]!r}.")
        began = time.perf_counter()
        if behaviour.is_hung or behaviour.is_frozen:
            time.sleep(timeout_s)
            raise InferenceError("timeout", f"No answer within {timeout_s:g} s.")
        waiting = _Waiting(tensors, size)
        loaded.queue.append(waiting)
        while not waiting.is_done:
            left = timeout_s - (time.perf_counter() - began)
            if left <= 0 or not loaded.instance.acquire(timeout=left):
                raise InferenceError("timeout", f"No answer within {timeout_s:g} s.")
            try:
                if not waiting.is_done:
                    _run_batch(loaded, behaviour)
            finally:
                loaded.instance.release()
        latency_s = time.perf_counter() - began
        if latency_s > timeout_s:
            raise InferenceError("timeout", f"No answer within {timeout_s:g} s.")
        if waiting.error:
            raise waiting.error
        found = waiting.outputs or {}
        return Inference({name: value for name, value in found.items() if not outputs or name in outputs}, latency_s)

    def prepared(
        self, model: str, batches: Sequence[Tensors], *, protocol: str = GRPC, streams: bool = False
    ) -> FakeRequests:
        return FakeRequests(self, model, batches, protocol, streams)

    def why_not_loaded(self, model: str) -> str:
        return self._errors.get(model, f"the server knows no {model}")

    def statistics(self, model: str) -> dict[str, Any]:
        loaded = self._find(model)
        if self.models[model].is_frozen:
            raise InferenceError("timeout", "Deadline Exceeded")
        stages = {
            "success": (loaded.succeeded, loaded.success_ns),
            "fail": (loaded.failed, 0),
            "queue": (loaded.succeeded, loaded.queue_ns),
            "compute_infer": (loaded.succeeded, loaded.infer_ns),
        }
        sizes = [
            {"batch_size": str(size), "compute_infer": {"count": str(count), "ns": str(ns)}}
            for size, (count, ns) in loaded.by_size.items()
        ]
        stats: dict[str, Any] = {
            "name": model,
            "version": "1",
            "inference_count": str(loaded.items),
            "execution_count": str(loaded.batches),
            "inference_stats": {name: _counted(*one) for name, one in stages.items() if one[0]},
            "batch_stats": sizes,
        }
        return {"model_stats": [{name: value for name, value in stats.items() if value != "0"}]}

    def _find(self, model: str) -> _Loaded:
        if self.is_down:
            raise InferenceError("unreachable", "failed to connect to all addresses")
        if model not in self._loaded:
            raise InferenceError("rejected", f"Request for unknown model: '{model}' has no available versions")
        return self._loaded[model]


@dataclass
class FakeRequests:
    """Implements `serving.ports.PreparedRequests`, in this process alone."""

    server: FakeInferenceServer
    model: str
    batches: Sequence[Tensors]
    protocol: str
    streams: bool = False
    parcel: None = None

    def connect(self) -> None:
        """There is nothing between."""

    def send(self, at: int, *, timeout_s: float) -> list[float] | None:
        """A stream of one response, as every whole answer is."""
        self.server.infer(self.model, self.batches[at % len(self.batches)], timeout_s=timeout_s)
        return [time.perf_counter()] if self.streams else None

    def close(self) -> None:
        """Nothing is held."""


def _run_batch(loaded: _Loaded, behaviour: FakeModel) -> None:
    """Everything that waits and fits together, as one batch; all of it shares the outcome."""
    most = behaviour.serving["max_batch_size"]
    batch: list[_Waiting] = []
    for waiting in list(loaded.queue):
        fits = not batch or (
            most and sum(one.size for one in batch) + waiting.size <= most and _shapes(waiting) == _shapes(batch[0])
        )
        if fits:
            loaded.queue.remove(waiting)
            batch.append(waiting)
    loaded.batches += 1
    began_ns = time.perf_counter_ns()
    time.sleep(behaviour.latency_s)
    try:
        if behaviour.is_dead:
            raise InferenceError("server_error", "Stub process 'fake_0_0' is not healthy.")
        if behaviour.breaks:
            raise behaviour.breaks
        joined = {
            name: np.concatenate([one.tensors[name] for one in batch]) if most else batch[0].tensors[name]
            for name in batch[0].tensors
        }
        outputs = behaviour.compute(joined)
    except Exception as error:
        for one in batch:
            one.error = (
                error
                if isinstance(error, InferenceError)
                else InferenceError("server_error", f"{type(error).__name__}: {error}")
            )
        loaded.failed += len(batch)
        return
    start = 0
    for one in batch:
        one.outputs = {name: value[start : start + one.size] if most else value for name, value in outputs.items()}
        start += one.size
    _count(loaded, batch, began_ns)


def _counted(count: int, ns: int) -> dict[str, str]:
    """As JSON of the protocol: 64 bits as text, and no zero."""
    return {"count": str(count), **({"ns": str(ns)} if ns else {})}


def _count(loaded: _Loaded, batch: list[_Waiting], began_ns: int) -> None:
    ended_ns = time.perf_counter_ns()
    loaded.succeeded += len(batch)
    loaded.items += sum(one.size for one in batch)
    for one in batch:
        loaded.success_ns += ended_ns - one.came_ns
        loaded.queue_ns += began_ns - one.came_ns
        loaded.infer_ns += ended_ns - began_ns
    size = sum(one.size for one in batch)
    batches, ns = loaded.by_size.get(size, (0, 0))
    loaded.by_size[size] = (batches + 1, ns + ended_ns - began_ns)


def _shapes(waiting: _Waiting) -> dict[str, tuple[int, ...]]:
    return {name: value.shape[1:] for name, value in waiting.tensors.items()}


def _specs(tensors: list[dict[str, Any]]) -> list[TensorSpec]:
    return [TensorSpec(tensor["name"], tensor["data_type"], tuple(tensor["dims"])) for tensor in tensors]


def _checked(inputs: Tensors, serving: dict[str, Any]) -> tuple[Arrays, int]:
    """Raises InferenceError("rejected") for what the real server refuses before a model sees it."""
    declared = {tensor["name"]: tensor for tensor in serving["inputs"]}
    if set(inputs) != set(declared):
        raise InferenceError("rejected", f"expected the inputs {sorted(declared)} but got {sorted(inputs)}")
    tensors, sizes = {}, set()
    for name, value in inputs.items():
        array = (
            np.asarray(
                [str(item).encode() if isinstance(item, str) else item for item in value.ravel()], dtype=object
            ).reshape(value.shape)
            if value.dtype.kind in "OUS"
            else value
        )
        dims = array.shape[1:] if serving["max_batch_size"] else array.shape
        wanted = declared[name]["dims"]
        if array.dtype != np.dtype(NUMPY_TYPES[declared[name]["data_type"]]):
            raise InferenceError(
                "rejected",
                f"inference input {name!r} data-type is {array.dtype}, but the model expects {declared[name]['data_type']}",
            )
        if len(dims) != len(wanted) or any(want not in (-1, dim) for dim, want in zip(dims, wanted, strict=True)):
            raise InferenceError(
                "rejected", f"unexpected shape for input {name!r}: expected {wanted}, got {list(dims)}"
            )
        tensors[name] = array
        sizes.add(len(array) if serving["max_batch_size"] else 1)
    size = max(sizes)
    if len(sizes) > 1 or (serving["max_batch_size"] and size > serving["max_batch_size"]):
        raise InferenceError(
            "rejected", f"the batch sizes {sorted(sizes)} are not one size of at most {serving['max_batch_size']}"
        )
    return tensors, size


class FakeLauncher:
    """Starts FakeInferenceServers. `fail` holds errors that the next starts meet, one each; while there is `loading`, which is called
    again and again, they load."""

    def __init__(self, runtimes: list[dict[str, Any]], make: Callable[[LaunchSpec], FakeModel]) -> None:
        self._runtimes, self._make = runtimes, make
        self._pids = itertools.count(900_000_000)  # above every real pid
        self.running: dict[Path, tuple[RunningServer, FakeInferenceServer]] = {}
        self.fail: list[LaunchError] = []
        self.loading: Callable[[], object] | None = None
        self.started: list[LaunchSpec] = []
        self.requests: dict[Path, int] = {}  # connections that callers hold, by the server's folder
        self.contained: dict[str, Any] = {"tier": "contained", "layers": ["user"], "allows_uncontained_code": False}

    runs_here = tells_live = True

    def open_requests(self, server: RunningServer) -> int | None:
        return self.requests.get(server.folder, 0)

    def facts(self) -> dict[str, Any]:
        return {}

    def runtimes(self) -> list[dict[str, Any]]:
        return self._runtimes

    def missing(self) -> str:
        return "" if self._runtimes else "there is no serving environment"

    def folder_for(self, replica_id: int, model: str, release_name: str) -> Path:
        return Path(f"/fake/{model}-{release_name}-{replica_id}-{next(self._pids):x}")

    def start(self, spec: LaunchSpec) -> RunningServer:
        if spec.manifest["runtime"]["image"] not in [own["image"] for own in self._runtimes]:
            raise LaunchError("runtime_mismatch", f"this node does not run {spec.manifest['runtime']['image']}")
        if self.fail:
            raise self.fail.pop(0)
        pid = next(self._pids)
        running = RunningServer("127.0.0.1", 1, 2, 3, pid, spec.folder)
        self.running[spec.folder] = running, FakeInferenceServer({spec.model: self._make(spec)})
        self.started.append(spec)
        return running

    def connect(self, server: RunningServer) -> FakeInferenceServer:
        return self.running[server.folder][1]

    def await_loaded(
        self, server: RunningServer, model: str, *, timeout_s: float, beat: Callable[[], None] = lambda: None
    ) -> None:
        found = self.connect(server)
        if found.is_down:
            raise LaunchError("not_ready", f"The server of {model} ended while it started.")
        while self.loading:
            self.loading()
            beat()
        if why := found.why_not_loaded(model):
            raise LaunchError("load_failed", why)

    def containment(self) -> dict[str, Any]:
        return self.contained

    def is_alive(self, server: RunningServer) -> bool:
        return server.folder in self.running and not self.running[server.folder][1].is_down

    def exit_code(self, server: RunningServer) -> int | None:
        return None if self.is_alive(server) else -9

    def adopt(self, folder: Path) -> RunningServer | None:
        found = self.running.get(folder)
        return found[0] if found and not found[1].is_down else None

    def stop(self, server: RunningServer, *, grace_s: float) -> None:
        if server.folder in self.running:
            self.running.pop(server.folder)[1].is_down = True

    def sweep(self, keep: set[Path]) -> list[Path]:
        left = [folder for folder in self.running if folder not in keep]
        for folder in left:
            self.stop(self.running[folder][0], grace_s=0)
        return left

    def stop_left(self) -> None:
        pass


@dataclass
class _Series:
    value: float
    resets: int = 0


class FakeMetrics:
    """ExternalMetrics over series that a test sets. It knows `metric{label="value"}`, `sum(…)` of it, and `or vector(0)`."""

    _QUERY = re.compile(
        r"(?P<sum>sum\()?\s*(?P<metric>\w+)\{(?P<labels>[^}]*)\}\s*(?(sum)\))(?P<or>\s+or\s+vector\(0\))?"
    )

    def __init__(self) -> None:
        self._series: dict[tuple[str, frozenset[tuple[str, str]]], _Series] = {}
        self._fails: MetricsError | None = None
        self._age_s = 0.0
        self.reads = 0

    def set(self, metric: str, value: float, **labels: str) -> None:
        """The counter stands at `value` from now on; one that falls began anew."""
        series = self._series.setdefault((metric, frozenset(labels.items())), _Series(value))
        series.resets += value < series.value
        series.value = value

    def add(self, metric: str, more: float, **labels: str) -> None:
        found = self._series.get((metric, frozenset(labels.items())))
        self.set(metric, (found.value if found else 0.0) + more, **labels)

    def drop(self, metric: str, **labels: str) -> None:
        """Nobody exposes it any more."""
        self._series.pop((metric, frozenset(labels.items())), None)

    def fail(self, reason: str | None) -> None:
        """From now on every query fails with this reason of MetricsError; None ends it."""
        self._fails = MetricsError(reason, f"the metrics server is told to fail: {reason}") if reason else None

    def freeze(self, age_s: float) -> None:
        """The samples are this old; 0 ends it."""
        self._age_s = age_s

    def read(self, queries: Sequence[CounterQuery], *, timeout_s: float) -> dict[str, CounterSample | MetricsError]:
        self.reads += 1
        return {one.name: self._fails or self._answer(one.query) for one in queries}

    def _answer(self, query: str) -> CounterSample | MetricsError:
        found = self._QUERY.fullmatch(query.strip())
        if found is None:
            return MetricsError("refused", f"the fake does not know this query: {query}")
        wanted = set(re.findall(r'(\w+)="([^"]*)"', found["labels"]))
        series = {key: one for key, one in self._series.items() if key[0] == found["metric"] and wanted <= key[1]}
        if not series and not found["or"]:
            return MetricsError("no_data", f"nothing matches the query: {query}")
        if len(series) > 1 and not found["sum"]:
            return MetricsError("many_series", f"the query gives {len(series)} series: {query}")
        value = sum(one.value for one in series.values())
        if not math.isfinite(value):
            return MetricsError("not_a_number", f"the query gives {value}: {query}")
        if value < 0:
            return MetricsError("negative", f"the query gives {value:g}: {query}")
        if series and self._age_s > 150:
            return MetricsError("stale", f"the newest sample is {self._age_s:.0f} s old: {query}")
        names = frozenset(f"{selectors(query)[0]} {sorted(labels)}" for _, labels in series)
        return CounterSample(float(value), self._age_s, names, float(sum(one.resets for one in series.values())))
