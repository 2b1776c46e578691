"""The stage of the proof: the product's launcher, its servers, readings of them, and contexts for the product's own gates."""

from __future__ import annotations

import contextlib
import fcntl
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu_proof.made import Blobs, Maker, launch_spec
from serving.ports import PreparedRequests, RunningServer
from serving.servers.adapters.triton import TritonServer
from serving.targets.agent import runtime_image, warmup
from serving.targets.agent.blob_cache import BlobCache
from serving.targets.agent.gpu_reader import GpuReader
from serving.targets.agent.launcher import LocalLauncher
from serving.targets.agent.process_use import families_of, use_of
from serving.targets.core.gpu import GpuReading, memory_by_server, with_servers
from serving.targets.core.use import Reading
from validators.core import full_server
from validators.core.gpu_checks import Watch, Window
from validators.core.inputs import Arrays
from validators.core.load import Attempt
from validators.core.policy import Policy, parse_policy
from validators.execution.gates.context import GateContext
from validators.execution.gates.load_payloads import payloads_of, requests_to
from validators.execution.runners import load as load_runner

_LOADS_WITHIN_S = 90.0
TIMEOUT_S = 20.0
#: Own process ids, shared memory and folders of every server that the proof started, for the last step.
STARTED = "started.jsonl"


@dataclass
class Config:
    """Options of a run. `earlier` holds the numbers of earlier steps by name."""

    work: Path
    venv: Path
    kind: str  # cpu or gpu
    form: str  # numpy or torch
    is_quick: bool
    scale: float  # of every duration of a load
    out: Path
    baseline: dict[str, Any] = field(default_factory=dict)
    earlier: dict[str, dict[str, Any]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {name: str(value) if isinstance(value, Path) else value for name, value in vars(self).items()}

    @classmethod
    def of(cls, json: Mapping[str, Any]) -> Config:
        return cls(**{**json, **{name: Path(json[name]) for name in ("work", "venv", "out")}})


class Meter:
    """Reads a server's processes and the GPUs many times a second, from a thread of its own.

    The product's agent reads the same, and keeps it in the database.
    """

    def __init__(self, pid: int, *, has_gpu: bool) -> None:
        self.pid, self.began_s = pid, time.time()
        self.readings: list[Reading] = []
        self.gpu_readings: list[GpuReading] = []
        self._reader = GpuReader() if has_gpu else None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        self._thread.join(10)

    def between(self, since_s: float, until_s: float) -> Sequence[Reading]:
        return [one for one in list(self.readings) if since_s <= one.at_s <= until_s]

    def device_memory(self, readings: Sequence[Reading]) -> list[int | None]:
        """Bytes in use on the first GPU at these readings, of all processes together."""
        used = [(one.at_s, one.gpus[0].memory_used_bytes) for one in list(self.gpu_readings) if one.gpus]
        return [next((size for at_s, size in reversed(used) if at_s <= one.at_s), None) for one in readings]

    def watch(self, *windows: Window) -> Watch:
        """All readings of the GPUs, with this server's processes under the key 1."""
        return Watch(1, self.began_s, windows, readings=tuple(self.gpu_readings), is_read=self._reader is not None)

    def _run(self) -> None:
        while not self._stopped.wait(0.1):
            use = use_of([self.pid]).get(self.pid)
            on_gpu = None
            if self._reader:
                found = self._reader.read()
                servers = dict.fromkeys(families_of([self.pid]), 1)
                self.gpu_readings.append(with_servers(found, servers))
                on_gpu = memory_by_server(self.gpu_readings[-1]).get(1)
            if use:
                self.readings.append(Reading(time.time(), replace(use, gpu_memory_bytes=on_gpu)))
        if self._reader:
            self._reader.close()


@dataclass
class Served:
    """One release on one server of the product's launcher."""

    manifest: dict[str, Any]
    running: RunningServer
    client: TritonServer
    timings: dict[str, float]
    meter: Meter

    @property
    def model(self) -> str:
        return str(self.manifest["model"])

    def context(
        self, policy: Mapping[str, Any], *, envelope: Mapping[str, Any] | None = None, **more: Any
    ) -> GateContext:
        """For the gates that the policy names; `more` as GateContext takes it."""
        return GateContext(
            model=self.model,
            release=f"{self.model} r1",
            serving=self.manifest["serving"],
            envelope=self.manifest["envelope"] if envelope is None else envelope,
            contract={},
            policy=policy if isinstance(policy, Policy) else parse_policy(policy),
            server=self.client,
            timings=self.timings,
            progress=lambda done, total: None,
            readings=self.meter.between,
            gpus=self.meter.watch,
            **more,
        )

    def requests(self) -> PreparedRequests:
        """The requests of the load gate."""
        context = self.context({"gates": ["load"]})
        return requests_to(self.client, self.manifest["serving"], payloads_of(context), context)

    def burst(self, requests: int, at_once: int) -> Burst:
        """As many requests as fast as `at_once` clients get them answered."""
        sent = full_server.Burst(requests, at_once, 4 * TIMEOUT_S)
        attempts = load_runner.all_at_once(self.requests(), sent, beat=lambda: None)
        return Burst(attempts)

    def infer(self, inputs: Arrays) -> Mapping[str, Any]:
        return self.client.infer(self.model, inputs, timeout_s=TIMEOUT_S).outputs


@dataclass(frozen=True)
class Burst:
    attempts: list[Attempt]

    @property
    def errors(self) -> list[str]:
        return [one.error for one in self.attempts if one.error]

    @property
    def seconds(self) -> float:
        return max(0.001, max(one.done_s for one in self.attempts) - min(one.sent_s for one in self.attempts))

    @property
    def per_s(self) -> float:
        return (len(self.attempts) - len(self.errors)) / self.seconds

    @property
    def responses(self) -> int:
        return sum(len(one.came_s) for one in self.attempts)


class Scene:
    """One process's share of the proof. `close` ends its servers; so does the end of the process, by the lock that it holds."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.is_gpu = config.kind == "gpu"
        self._layers: tuple[str, ...] | None = None
        self._lock = None
        self._launcher: LocalLauncher | None = None
        self._kept: dict[str, Served] = {}
        self.blobs = Blobs()

    def seconds(self, whole: float, quick: float) -> float:
        """A duration of this run."""
        return (quick if self.config.is_quick else whole) * self.config.scale

    @property
    def make(self) -> Maker:
        image = runtime_image.describe(self.config.venv)["image"]
        return Maker(self.config.form, self.config.kind, image, self.blobs)

    @property
    def launcher(self) -> LocalLauncher:
        if self._launcher is None:
            servers = self.config.work / "servers"
            servers.mkdir(parents=True, exist_ok=True)
            lock = self.config.work / "servers.lock"
            if self._lock is None:
                self._lock = lock.open("w")
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            cache = BlobCache(self.config.work / "cache", self.blobs)
            layers = self.config.earlier.get("launch", {}).get("layers_used", self._layers)
            self._launcher = LocalLauncher(
                servers=servers,
                venv=self.config.venv,
                blobs=cache,
                lock=lock,
                layers=None if layers is None else tuple(layers),
            )
        return self._launcher

    def without_sandbox(self) -> None:
        """From now on servers are started by a launcher that shuts nothing in."""
        self._launcher, self._layers = None, ()

    def start(self, manifest: dict[str, Any]) -> Served:
        """A server that has loaded the release and answered its warm-up. Raises LaunchError."""
        launcher, model = self.launcher, manifest["model"]
        folder = launcher.folder_for(1, model, "r1")
        began = time.monotonic()
        running = launcher.start(launch_spec(manifest, folder))
        fetched = time.monotonic()
        with (self.config.work / STARTED).open("a") as file:
            file.write(json.dumps({"folder": str(folder), "pid": running.pid}) + "\n")
        meter = Meter(running.pid, has_gpu=self.is_gpu)
        try:
            launcher.await_loaded(running, model, timeout_s=_LOADS_WITHIN_S)
            loaded = time.monotonic()
            client = TritonServer(running.host, running.http_port, running.grpc_port)
            warmup.warm_up(client, model, manifest["serving"], limits={}, timeout_s=TIMEOUT_S)
        except BaseException:
            meter.close()
            launcher.stop(running, grace_s=5)
            raise
        timings = {
            "fetch_s": fetched - began,
            "load_s": loaded - fetched,
            "warmup_s": time.monotonic() - loaded,
        }
        return Served(manifest, running, client, {name: round(one, 3) for name, one in timings.items()}, meter)

    def stop(self, served: Served) -> None:
        served.meter.close()
        served.client.close()
        self.launcher.stop(served.running, grace_s=10)

    def start_all(self, *manifests: dict[str, Any]) -> list[Served]:
        """Servers that load at the same time. If one does not come up, none stays."""
        with ThreadPoolExecutor(len(manifests)) as pool:
            coming = [pool.submit(self.start, one) for one in manifests]
        failures = [one.exception() for one in coming if one.exception()]
        if failures:
            for one in coming:
                if not one.exception():
                    self.stop(one.result())
            raise failures[0]
        return [one.result() for one in coming]

    def stop_all(self, *served: Served) -> None:
        with ThreadPoolExecutor(len(served)) as pool:
            list(pool.map(self.stop, served))

    @contextlib.contextmanager
    def all_served(self, *manifests: dict[str, Any]) -> Iterator[list[Served]]:
        served = self.start_all(*manifests)
        try:
            yield served
        finally:
            self.stop_all(*served)

    @contextlib.contextmanager
    def served(self, manifest: dict[str, Any]) -> Iterator[Served]:
        served = self.start(manifest)
        try:
            yield served
        finally:
            self.stop(served)

    def dense(self) -> Served:
        """The honest dense release, kept up for the steps of this process."""
        if "dense" not in self._kept:
            self._kept["dense"] = self.start(self.make.dense())
        return self._kept["dense"]

    def clear(self) -> None:
        """Ends the servers that were kept up: the next step measures alone."""
        for served in self._kept.values():
            with contextlib.suppress(Exception):  # the sweep of `close` ends any that is left
                self.stop(served)
        self._kept.clear()

    def close(self) -> None:
        self.clear()
        if self._launcher:
            self._launcher.sweep(set())
        if self._lock:
            self._lock.close()
