"""What a server does when it is asked more: requests a second of the sentiment example against how many ask at once.

    python -m benchmarks.batching [--release r1] [--seconds 4] [--costs | --in-process | --gate]

The texts are those of the demo's users: sentences, and one long text in seven. *Before* pads a whole batch to its longest
text, as one run of the graph; *after* is the runner as it is. With `--in-process` the runner's own code answers the same
texts in batches of 1 … 32 requests in this process, and processor time counts. Without it two real Tritons serve the
release with `max_batch_size` 16 and dynamic batching, in turn, and 1 … 32 clients each ask as soon as they are answered
(a closed loop); answers are counted by the clock, and by the processor time of the model's process, which a busy machine
changes less.
`--costs` prints what one run of the graph costs instead: processor milliseconds for n texts of so many tokens.
`--gate` lets the load gate judge both on real Tritons, at the demo's 22 requests/s and with the example's own objectives.
The release must have been built: `python examples/sentiment/build.py --runtime …` (the demo does it).
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
BUILT, VENV = ROOT / ".build" / "sentiment", ROOT / ".venv-serving"
RUNNER = ROOT / "serving" / "runner" / "onnx_runner.py"
GOLDEN = ROOT / "examples" / "sentiment" / "golden.jsonl"
AT_ONCE = (1, 2, 4, 8, 16, 32)
#: Appended to the runner: everything that may share a batch is one run, padded to its longest text.
BEFORE = "\n\ndef cut(lengths, most):\n    return [list(range(len(lengths)))]\n"


def texts(count: int, seed: int = 1) -> list[str]:
    """What the demo's users write; the same for the same seed."""
    sys.path.insert(0, str(ROOT))
    from sluicegate.demo.corpus import read_sentences, write_one

    sentences, chance = read_sentences(GOLDEN), random.Random(seed)
    return [write_one(sentences, chance).text for _ in range(count)]


# --- in this process --------------------------------------------------------------------------------------------------


class _Tensor:
    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value

    def as_numpy(self) -> Any:
        return self.value


class _Request(dict[str, _Tensor]):
    def is_cancelled(self) -> bool:
        return False


def runner_of(release: Path, folder: Path, more: str) -> Any:
    """The runner's model object over a release's files, as Triton would make it."""
    stub: Any = types.ModuleType("triton_python_backend_utils")
    stub.get_input_tensor_by_name = lambda request, name: request.get(name)
    stub.Tensor = _Tensor
    stub.InferenceResponse = lambda tensors=None, error=None: (tensors, error)
    stub.TritonError = str
    sys.modules[stub.__name__] = stub
    folder.mkdir()
    (folder / "model.py").write_text(RUNNER.read_text(encoding="utf-8") + more, encoding="utf-8")
    (folder / "model.onnx").symlink_to(release / "artifact" / "model.onnx")
    (folder / "tokenizer").symlink_to(release / "tokenizer")
    (folder / "sluicegate.json").write_text(json.dumps(_serving()), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"runner_{folder.name}", folder / "model.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.TritonPythonModel()
    model.initialize({})
    return model


def _serving() -> dict[str, Any]:
    """As examples/sentiment/build.py writes it."""
    return {
        "max_batch_size": 16,
        "inputs": [{"name": "text", "data_type": "BYTES", "dims": [1]}],
        "outputs": [{"name": "probabilities", "data_type": "FP32", "dims": [2]}],
        "parameters": {"max_tokens": "128"},
    }


def in_process(release: Path, seconds: float) -> None:
    """The same texts at every size, sizes and runners in turn: what else the machine does hits all alike."""
    with tempfile.TemporaryDirectory() as work:
        models = {
            name: runner_of(release, Path(work) / name, more) for name, more in (("before", BEFORE), ("after", ""))
        }
        spent = {(name, size): 0.0 for name in models for size in AT_ONCE}
        count, rounds = AT_ONCE[-1], 0
        while sum(spent.values()) < seconds * len(spent):
            asked = [
                _Request(text=_Tensor("text", np.array([[one.encode()]], object))) for one in texts(count, seed=rounds)
            ]
            rounds += 1
            for size in AT_ONCE:
                for name, model in models.items():
                    began = time.process_time()
                    for first in range(0, count, size):
                        assert all(error is None for _, error in model.execute(asked[first : first + size]))
                    spent[name, size] += time.process_time() - began
    table(
        "requests in one batch",
        {name: [count * rounds / spent[name, size] for size in AT_ONCE] for name in models},
    )


def costs(release: Path) -> None:
    """Milliseconds (and microseconds a token) of one run of the graph."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        str(release / "artifact" / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )
    print("| tokens | " + " | ".join(f"{n} texts" for n in AT_ONCE[:-1]) + " |\n|---|" + "---|" * len(AT_ONCE[:-1]))
    for tokens in (8, 16, 32, 64, 128):
        cells = []
        for count in AT_ONCE[:-1]:
            ids = np.full((count, tokens), 100, np.int64)
            feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
            ms = min(_timed(lambda feed=feed: session.run(None, feed)) for _ in range(9)) * 1e3
            cells.append(f"{ms:.1f} ({ms / ids.size * 1e3:.0f})")
        print(f"| {tokens} | " + " | ".join(cells) + " |", flush=True)


def _timed(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


# --- a real server ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Served:
    """A Triton that serves the release: `ask` takes one text, `work_s` gives the processor seconds of its model process."""

    ask: Callable[[str], Any]
    work_s: Callable[[], float]
    client: Any
    manifest: dict[str, Any]


@contextmanager
def served(release: Path, more: str) -> Iterator[Served]:
    """The release on a Triton of its own, with this runner."""
    from ledger.core.canonical import digest_of
    from serving.ports import LaunchSpec
    from serving.servers.adapters.triton import TritonServer
    from serving.targets.agent import model_repository, runtime_image
    from serving.targets.agent.blob_cache import BlobCache
    from serving.targets.agent.launcher import LocalLauncher
    from tests.real.test_sentiment import FolderBlobs, sealed

    with tempfile.TemporaryDirectory() as work:
        blobs, runner = FolderBlobs(), Path(work) / "runner"
        manifest = sealed(release, blobs)
        manifest["runtime"]["image"] = runtime_image.describe(VENV)["image"]  # whichever runner it was built for
        runner.mkdir()
        (runner / RUNNER.name).write_text(RUNNER.read_text(encoding="utf-8") + more, encoding="utf-8")
        own, model_repository.RUNNER = model_repository.RUNNER, runner
        launcher = LocalLauncher(
            servers=Path(work) / "servers", venv=VENV, blobs=BlobCache(Path(work) / "cache", blobs)
        )
        try:
            folder = launcher.folder_for(1, "sentiment", release.name)
            running = launcher.start(LaunchSpec(1, "sentiment", release.name, digest_of(manifest), manifest, folder))
            launcher.await_loaded(running, "sentiment", timeout_s=60)
            client = TritonServer(running.host, running.http_port, running.grpc_port)
            yield Served(
                lambda text: client.infer("sentiment", {"text": np.array([[text.encode()]], object)}, timeout_s=60),
                lambda: model_process_s(folder),
                client,
                manifest,
            )
            client.close()
        finally:
            model_repository.RUNNER = own
            launcher.sweep(set())


def model_process_s(folder: Path) -> float:
    """Processor seconds so far of the python backend's processes for this server. Source: proc_pid_stat(5)."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes()
            if b"triton_python_backend_stub" in words and str(folder).encode() in words:
                fields = (path.parent / "stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def closed_loop(ask: Callable[[str], Any], clients: int, seconds: float) -> int:
    """How many answers so many clients get, each of which asks again at once. Returns when all have theirs."""
    written, lock = itertools.cycle(texts(round(200 * seconds) + clients)), threading.Lock()
    answered = 0
    until = time.perf_counter() + seconds

    def client() -> None:
        nonlocal answered
        while time.perf_counter() < until:
            with lock:
                text = next(written)
            ask(text)
            with lock:
                answered += 1

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answered


def on_triton(release: Path, seconds: float) -> None:
    """Both runners take turns, so that what else the machine does hits both."""
    by_clock: dict[str, list[float]] = {"before": [], "after": []}
    by_work: dict[str, list[float]] = {"before": [], "after": []}
    with served(release, BEFORE) as before, served(release, "") as after:
        for server in (before, after):
            closed_loop(server.ask, 2, 1.0)
        for clients in AT_ONCE:
            for name, server in (("before", before), ("after", after)):
                began, worked = time.perf_counter(), server.work_s()
                answered = closed_loop(server.ask, clients, seconds)
                by_clock[name].append(answered / (time.perf_counter() - began))
                by_work[name].append(answered / (server.work_s() - worked))
    print("\nBy the clock, whatever else runs on this machine:\n")
    table("clients at once", by_clock)
    print("\nBy the processor time of the model's process, which is what it could do with a core of its own:\n")
    table("clients at once", by_work)


def by_the_gate(release: Path, rate_per_s: float) -> None:
    import yaml

    from validators.core.golden_set import parse_golden_set
    from validators.core.policy import parse_policy
    from validators.execution.gates import GateContext, run_gate

    objectives = yaml.safe_load(GOLDEN.with_name("model.yaml").read_text(encoding="utf-8"))["objectives"]
    for name, more in (("before", BEFORE), ("after", "")):
        with served(release, more) as server:
            context = GateContext(
                model="sentiment",
                release=release.name,
                serving=server.manifest["serving"],
                envelope=server.manifest["envelope"],
                contract={},
                policy=parse_policy({"load": {"rate_per_s": rate_per_s, "max_lag_ms": 250}}, objectives),
                server=server.client,
                timings={},
                progress=lambda done, total: None,
                items=parse_golden_set(GOLDEN.read_bytes()),
            )
            found = run_gate("load", context)
        told = {
            key: found.evidence.get(key) for key in ("requests", "over", "latency_ms", "full_requests", "full_per_s")
        }
        print(f"{name}: {found.verdict.value}. {found.reason}\n  {told}", flush=True)


def table(what: str, found: dict[str, list[float]]) -> None:
    """Requests a second, and as shares of the best of their line."""
    print(f"| {what} | " + " | ".join(str(n) for n in AT_ONCE) + " |\n|---|" + "---|" * len(AT_ONCE))
    for name, rates in found.items():
        print(f"| {name}, requests/s | " + " | ".join(f"{rate:.1f}" for rate in rates) + " |")
        print(f"| {name}, of its best | " + " | ".join(f"{rate / max(rates):.0%}" for rate in rates) + " |")
    gains = [after / before for before, after in zip(found["before"], found["after"], strict=True)]
    print("| after / before | " + " | ".join(f"{gain:.2f}" for gain in gains) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", default="r1", choices=("r1", "r2"))
    parser.add_argument("--seconds", type=float, default=4.0, help="for each number of requests at once")
    how = parser.add_mutually_exclusive_group()
    for option in ("--costs", "--in-process", "--gate"):
        how.add_argument(option, action="store_true")
    arguments = parser.parse_args()
    release = BUILT / arguments.release
    if not release.is_dir():
        raise SystemExit(f"{release} is not there; build the example first (examples/sentiment/build.py)")
    if arguments.gate:
        by_the_gate(release, 22.0)
    elif not (arguments.costs or arguments.in_process):
        on_triton(release, arguments.seconds)
    elif Path(sys.prefix) != VENV:  # tokenizer and graph run where servers run
        done = subprocess.run(
            [str(VENV / "bin" / "python"), *sys.argv], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False
        )
        raise SystemExit(done.returncode)
    elif arguments.costs:
        costs(release)
    else:
        in_process(release, arguments.seconds)


if __name__ == "__main__":
    main()
