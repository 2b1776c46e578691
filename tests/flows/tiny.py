"""A tiny model on the real stack, and users who note what they got: the cast of the end-to-end stories."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import yaml
from onnx import TensorProto, helper, numpy_helper

from sluicegate.cli import gates, model, release, rollout
from sluicegate.cli.ci_template import script_text
from sluicegate.cli.output import Output
from sluicegate.client import Client
from sluicegate.demo.releases import runtime_of
from sluicegate.stack import Stack
from tests.contracts.serving_models import doubling_graph, graph_bytes, serving

MODEL, ENVIRONMENT = "double", "production"

#: Right for every value that the gates try; wrong in a way that only real traffic meets.
FAILS_ON_LARGE = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            if (x > 10).any():
                raise ValueError("no kernel for values over ten")
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", (2 * x).astype(np.float32))]))
        return answers
"""


def graph_with_a_small_table() -> bytes:
    """As `FAILS_ON_LARGE`, without code: y = 2x, after a look into a table that ends at ten."""
    table = numpy_helper.from_array(np.zeros(11, dtype=np.float32), "table")
    two = numpy_helper.from_array(np.array(2.0, dtype=np.float32), "two")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in ("x", "y"))
    nodes = [
        helper.make_node("Relu", ["x"], ["positive"]),
        helper.make_node("Cast", ["positive"], ["place"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "place"], ["found"]),
        helper.make_node("Mul", ["x", "two"], ["twice"]),
        helper.make_node("Add", ["twice", "found"], ["y"]),
    ]
    return graph_bytes(helper.make_graph(nodes, "small-table", [x], [y], [table, two]))


def password_of(name: str) -> str:
    return f"{name}-secret-1"


def model_document(step_s: float) -> dict[str, Any]:
    """A model whose steps last at least `step_s` seconds each."""
    stage = {"min_s": step_s, "min_samples": 30, "deadline_s": 120}
    tensors = {"inputs": serving()["inputs"], "outputs": serving()["outputs"]}
    return {
        "slug": MODEL, "team": "flow", "title": "Twice the number", "contract": tensors,
        "objectives": {"errors_max_frac": 0.01, "slow": {"threshold_ms": 5000, "max_frac": 0.05}},
        "gate_policy": {
            "gates": ["contract", "cold_start", "load"],
            "load": {"rate_per_s": 20, "duration_s": 3, "slo_ms": 5000, "slo_quantile": 0.9, "burst_s": 0},
        },
        "rollout_policy": {
            "preset": "demo", "second_look": {"looks": 1}, "steps": [{"weight_pct": 50, **stage}], "bake": stage,
        },
    }  # fmt: skip


def write_release(
    folder: Path,
    image: str,
    *,
    note: str,
    code: str = "",
    graph: bytes = b"",
    model: str = MODEL,
    most_at_once: int | None = None,
) -> Path:
    """A release folder: the doubling graph, or another or code that stands in for it. `note` tells one release from another.

    `most_at_once`: the requests that its server takes at a time; None leaves that to the gateway.
    """
    (folder / "artifact").mkdir(parents=True)
    name, data = ("model.py", code.encode()) if code else ("model.onnx", graph or doubling_graph())
    (folder / "artifact" / name).write_bytes(data)
    document = {
        "model": model,
        "runtime": {"image": image, "server": "triton", "backend": "python" if code else "sluicegate-onnx"},
        "serving": {**serving(), "warmup": [{"batch_size": 1, "inputs": {"x": [[1, 2, 3, 4]]}}]},
        "envelope": {"limits": {"max_concurrency": most_at_once}} if most_at_once else {},
        "provenance": {"notes": note},
    }
    (folder / "release.yaml").write_text(yaml.safe_dump(document))
    return folder


class Shop:
    """The team of the story: an author, and a manager who waives code."""

    def __init__(
        self,
        stack: Stack,
        folder: Path,
        *,
        step_s: float,
        has_model: bool = True,
        author_roles: Sequence[str] = ("model_team",),
    ) -> None:
        self.stack, self.folder, self.output = stack, folder, Output(as_json=True)
        with Client(stack.base_url, stack.admin_token) as admin:
            admin.post("/teams", {"slug": "flow", "title": "Flow"})
            self.author = self._person(admin, "ada", *author_roles)
            self.manager = self._person(admin, "mara", "release_manager")
        self.image = str(runtime_of(self.author)["image"])
        if has_model:
            model.create(self.author, model_document(step_s), None)

    def _person(self, admin: Client, name: str, *roles: str) -> Client:
        secret = {"username": name, "password": password_of(name)}
        admin.post("/users", {**secret, "roles": [{"team": "flow", "role": role} for role in roles]})
        with Client(admin.url) as anonymous:
            return Client(admin.url, str(anonymous.post("/tokens", {**secret, "name": "flow"})["token"]))

    def __enter__(self) -> Shop:
        return self

    def __exit__(self, *_: object) -> None:
        for client in (self.author, self.manager):
            client.close()

    def offer(self, document: dict[str, Any]) -> None:
        """One more model."""
        model.create(self.author, document, None)

    def prove(self, note: str, *, code: str = "", model: str = MODEL, most_at_once: int | None = None) -> str:
        """Pushes a release and runs its gates; its name (`double/r1`). Asserts that they passed."""
        folder = self.folder / note
        write_release(folder, self.image, note=note, code=code, model=model, most_at_once=most_at_once)
        name = self.seal(folder, model=model)
        if code:
            release.waive(self.manager, name, "read for this test")
        return self.pass_gates(name)

    def seal(self, folder: Path, *, model: str = MODEL) -> str:
        """Pushes a release; its name (`double/r1`)."""
        return f"{model}/{self.author.push(folder, progress=self.output)['name']}"

    def pass_gates(self, name: str) -> str:
        """Runs the release's gates; its name. Asserts that they passed."""
        gate_run = gates.wait(self.author, self.author.start_gates(name), self.output, timeout_s=300)
        assert gate_run["verdict"] == "passed", gate_run
        return name

    @contextmanager
    def shipping(self, note: str) -> Iterator[int]:
        """A CI job ships a release while the block runs: the rollout that it began. Asserts that it saw the promotion, too."""
        folder = write_release(self.folder / note, self.image, note=note)
        env = {
            "PATH": os.environ["PATH"],
            "SLUICEGATE_URL": self.stack.base_url,
            "MODEL": MODEL,
            "ENVIRONMENT": ENVIRONMENT,
        }
        token = self.author.http.headers["Authorization"].removeprefix("Bearer ")
        log = self.folder / f"{note}.log"
        with log.open("w") as lines:
            job = subprocess.Popen(
                ["bash", "-c", script_text()],
                cwd=folder,
                env={**env, "SLUICEGATE_TOKEN": token},
                stdout=lines,
                stderr=lines,
            )
        try:
            yield self._first_rollout(job, log)
            assert job.wait(120) == 0, log.read_text()
            assert "promoted" in log.read_text().splitlines()[-1]
        finally:
            job.kill()
            job.wait()

    def _first_rollout(self, job: subprocess.Popen[bytes], log: Path) -> int:
        deadline = time.monotonic() + 400
        while not (found := list(self.author.pages("/rollouts"))):
            assert job.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        return int(found[0]["id"])

    def start(self, name: str, *, policy: dict[str, Any] | None = None, again: bool = False) -> int:
        started = self.author.start_rollout(name, environment=ENVIRONMENT, policy=policy, again=again)
        return int(started["id"])

    def approve(self, rollout_id: int, stage: str) -> None:
        self.view(rollout_id)  # the web process answers
        rollout.act(self.manager, rollout_id, "approve", "Fine.", stage=stage)

    def view(self, rollout_id: int) -> dict[str, Any]:
        """The rollout as the API shows it; while the web process is being started again, the last word is awaited."""
        deadline = time.monotonic() + 120
        while True:
            try:
                found: dict[str, Any] = self.author.get(f"/rollouts/{rollout_id}")
            except Exception:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return found

    def until(self, rollout_id: int, *states: str, within_s: float = 300) -> dict[str, Any]:
        """The rollout once it is in one of the states. Fails with its reason when it does not get there."""
        deadline = time.monotonic() + within_s
        while (found := self.view(rollout_id))["state"] not in states:
            assert not found["is_final"], f"ended as {found['state']}: {found['reason']}"
            assert time.monotonic() < deadline, f"still {found['state']}: {found['reason']}"
            time.sleep(0.2)
        return found

    def until_acknowledged(self, rollout_id: int, *, within_s: float = 60) -> None:
        """Waits until every gateway follows the weight, so that the first user finds a route."""
        deadline = time.monotonic() + within_s
        while not self.view(rollout_id)["weight"]["is_acknowledged"]:
            assert time.monotonic() < deadline, "the gateways do not acknowledge the route"
            time.sleep(0.1)


class Users:
    """Live traffic through the gateway at a steady rate, on its own thread; every answer is noted and checked."""

    def __init__(self, stack: Stack, *, rate_per_s: float = 25.0, begins: bool = True) -> None:
        self.url, self.period_s = f"{stack.gateway_http}/v2/models/{MODEL}/infer", 1 / rate_per_s
        self.answers: list[tuple[str, float]] = []  # (release, when it was asked)
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask_on, daemon=True)
        self._begins = begins

    def __enter__(self) -> Users:
        if self._begins:
            self.begin()
        return self

    def begin(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(15)

    def _ask_on(self) -> None:
        number = 0
        with httpx.Client(timeout=15, trust_env=False) as client:
            while not self._stop.wait(self.period_s):
                number += 1
                self._ask(client, [float(number % 20), 1.0, 2.0, 3.0])

    def _ask(self, client: httpx.Client, x: list[float]) -> None:
        asked = time.time()
        try:
            answer = client.post(
                self.url, json={"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": x}]}
            )
            if answer.status_code != 200 or answer.json()["outputs"][0]["data"] != [2 * value for value in x]:
                self.failures.append(f"{answer.status_code}: {answer.text[:200]}")
            self.answers.append((answer.headers.get("x-sluicegate-release", ""), asked))
        except (httpx.HTTPError, ValueError, KeyError) as error:
            self.failures.append(repr(error))
