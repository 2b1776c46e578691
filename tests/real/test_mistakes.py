"""Callers' mistakes on a real Triton behind a real Envoy: told to the caller, tried once, and never a release's failure."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from serving.ports import ArmCounters
from serving.traffic.core.routes import Arm, ServerAddress
from tests.contracts import serving_models as made
from tests.contracts.serving_models import MemoryBlobs, launch_spec
from tests.support.rigs.gateway_rig import FORCES, MODEL, Answer, Rig, rig
from tests.support.rigs.triton_rig import local_launcher

pytestmark = [pytest.mark.real("envoy", "triton"), pytest.mark.timeout(300)]
CANDIDATE = Rig.CANDIDATE
X = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}

#: Fails when it is told to: by raising, with an error in the very words that Triton has for a caller's mistake, and as an ONNX graph does
#: whose index lies beyond its table (a real one: tests/flows/test_browser_story.py).
SAYS = """
import time
import triton_python_backend_utils as pb_utils
import numpy as np

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            if x[0, 0] == 60:
                time.sleep(0.3)
            if x[0, 0] == 500:
                raise ValueError("the answer went wrong")
            if x[0, 0] == 501:
                error = pb_utils.TritonError("Unable to parse 'data': says the model itself")
                answers.append(pb_utils.InferenceResponse(error=error))
                continue
            if x[0, 0] == 502:
                said = "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Non-zero status code returned while running Gather node."
                error = pb_utils.TritonError(said, pb_utils.TritonError.INVALID_ARG)
                answers.append(pb_utils.InferenceResponse(error=error))
                continue
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", (2 * x).astype(np.float32))]))
        return answers
"""


@dataclass
class World:
    """A stub as stable, and as the candidate a real Triton that all requests go to first."""

    parts: Rig
    triton: ServerAddress

    def attempts(self, protocol: str) -> int:
        """On the candidate so far."""
        name = f"{MODEL}_{CANDIDATE.removeprefix('sha256:')[:12]}_{protocol}"
        start = (f"{name}::", f"{name}_forced::")
        lines = [
            line.split("::") for line in self.parts.envoy.admin("/clusters").splitlines() if line.startswith(start)
        ]
        return sum(int(line[3]) for line in lines if line[2:3] == ["rq_total"])

    def once(self, protocol: str, ask: Callable[[], Any]) -> tuple[Any, int, int]:
        """(what `ask` gave, attempts on the candidate, requests at stable)."""
        before, at_stable = self.attempts(protocol), self.parts.stable.hits
        given = ask()
        return given, self.attempts(protocol) - before, self.parts.stable.hits - at_stable

    def http(self, body: bytes, headers: dict[str, str] | None = None, call: str = "infer") -> Answer:
        return self.parts.envoy.http(f"/v2/models/{MODEL}/{call}", headers, body)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    blobs = MemoryBlobs()
    queue = {"timeout_action": "reject", "default_timeout_us": 0, "allow_timeout_override": False, "max_queue_size": 2}
    serving = made.serving(queue_policy=queue, max_batch_size=1)
    document = made.manifest(blobs, MODEL, {"artifact/model.py": SAYS.encode()}, serving, backend="python")
    with local_launcher(tmp_path_factory.mktemp("node"), blobs) as launcher:
        running = launcher.start(launch_spec(document, launcher.folder_for(1, MODEL, "r2")))
        launcher.await_loaded(running, MODEL, timeout_s=60)
        with rig(tmp_path_factory.mktemp("gateway")) as parts:
            triton = ServerAddress(running.host, running.http_port, running.grpc_port)
            yield World(parts, triton)


@pytest.fixture(params=["as the candidate", "forced", "as stable"])
def route(request: pytest.FixtureRequest, world: World) -> str:
    """Each way to the server goes through another cluster: the one with stable behind it, or the release's own."""
    triton = Arm("r2", CANDIDATE, (world.triton,))
    if request.param == "as stable":
        world.parts.apply(None, stable=triton)
    else:
        world.parts.apply(10_000, candidate=triton, allows_forced=True)
    return str(request.param)


def tensor(**changes: Any) -> bytes:
    return json.dumps({"inputs": [{**X, **changes}]}).encode()


def without(member: str, **parameters: Any) -> bytes:
    one = {key: value for key, value in X.items() if key != member}
    return json.dumps({"inputs": [{**one, "parameters": parameters} if parameters else one]}).encode()


def whole(**changes: Any) -> bytes:
    return json.dumps({"inputs": [X], **changes}).encode()


GOOD = whole()
MALFORMED: dict[str, tuple[bytes, dict[str, str]]] = {
    "not JSON": (b"hello", {}),
    "zeros": (b"\0\0\0", {}),
    "nothing": (b"", {}),
    "cut": (GOOD[:-5], {}),
    "twice": (GOOD + GOOD, {}),
    "an unended text": (b'{"inputs": "', {}),
    "no inputs": (b"{}", {}),
    "a list": (b"[]", {}),
    "inputs is null": (whole(inputs=None), {}),
    "inputs is empty": (whole(inputs=[]), {}),
    "inputs are texts": (whole(inputs=["x"]), {}),
    **{f"no {member}": (without(member), {}) for member in X},
    "a name that is a number": (tensor(name=3), {}),
    "an unknown input": (tensor(name="z"), {}),
    "a negative shape": (tensor(shape=[1, -4]), {}),
    "a shape with a fraction": (tensor(shape=[1, 4.5]), {}),
    "a shape of texts": (tensor(shape=["1", "4"]), {}),
    "a shape beyond 2^64": (tensor(shape=[1, 2**64]), {}),
    "no dimension": (tensor(shape=[]), {}),
    "a batch above the largest": (tensor(shape=[2, 4], data=[0] * 8), {}),
    "data that is too short": (tensor(data=[1, 2]), {}),
    "data that is too long": (tensor(data=[1, 2, 3, 4, 5]), {}),
    "text for a number": (tensor(data=["a", "b", "c", "d"]), {}),
    "null for a number": (tensor(data=[1, 2, 3, None]), {}),
    "data that is a text": (tensor(data="1234"), {}),
    "1e999": (GOOD.replace(b"4]}", b"1e999]}"), {}),
    "the wrong type": (tensor(datatype="INT64"), {}),
    "an unknown type": (tensor(datatype="FOO"), {}),
    "a negative binary_data_size": (without("data", binary_data_size=-1), {}),
    "a binary_data_size beyond the body": (without("data", binary_data_size=2**40), {}),
    "a negative classification": (whole(outputs=[{"name": "y", "parameters": {"classification": -1}}]), {}),
    "binary_data that is a text": (whole(outputs=[{"name": "y", "parameters": {"binary_data": "a"}}]), {}),
    "outputs that are texts": (whole(outputs=["y"]), {}),
    "an unknown output": (whole(outputs=[{"name": "z"}]), {}),
    "an id that is a number": (whole(id=3), {}),
    "parameters that are a list": (whole(parameters=[1]), {}),
    "a parameter in a parameter": (whole(parameters={"a": {}}), {}),
    "a negative timeout": (whole(parameters={"timeout": -1}), {}),
    "a timeout that is a text": (whole(parameters={"timeout": "x"}), {}),
    "a negative priority": (whole(parameters={"priority": -1}), {}),
    "a sequence with a fraction": (whole(parameters={"sequence_id": 1.5}), {}),
    "a sequence with a long name": (whole(parameters={"sequence_id": "x" * 200}), {}),
    "no such shared memory": (without("data", shared_memory_region="a", shared_memory_byte_size=16), {}),
    "a header longer than the body": (GOOD, {"inference-header-content-length": "99999"}),
    "a compression that nobody knows": (GOOD, {"content-encoding": "br"}),
    "gzip that is none": (GOOD, {"content-encoding": "gzip"}),
}  # fmt: skip
#: Told by the gateway: no server hears of these.
AT_THE_GATEWAY = {
    "a negative shape", "a shape of texts", "a shape beyond 2^64", "a header longer than the body",
    "a compression that nobody knows", "gzip that is none",
}  # fmt: skip
GENERATE = {
    "generate: nothing": b"",
    "generate: not JSON": b"hello",
    "generate: a list": b"[]",
    "generate: a text": b'{"x": "a"}',
    "generate: parameters that are a number": b'{"x": [1, 2, 3, 4], "parameters": -1}',
}


def headers_for(route: str, headers: dict[str, str]) -> dict[str, str]:
    return {**headers, **FORCES, "x-sluicegate-release": "r2"} if route == "forced" else headers


def test_what_a_caller_gets_wrong_over_http_is_told_and_tried_once(world: World, route: str) -> None:
    cases = {name: (*case, "infer") for name, case in MALFORMED.items()}
    cases |= {name: (body, {}, "generate") for name, body in GENERATE.items()}
    wrong = {}
    for name, (body, headers, call) in cases.items():
        answer, attempts, at_stable = world.once(
            "http",
            lambda: world.http(body, headers_for(route, headers), call),  # noqa: B023
        )
        expected = 0 if name in AT_THE_GATEWAY else 1
        if not (400 <= answer.status < 500 and attempts == expected and at_stable == 0 and b"error" in answer.body):
            wrong[name] = (answer.status, attempts, at_stable, answer.body[:200])
    assert wrong == {}
    assert world.http(GOOD, headers_for(route, {})).status == 200


def message(**changes: Any) -> bytes:
    request = service_pb2.ModelInferRequest(model_name=MODEL)
    one = request.inputs.add(
        name=changes.get("name", "x"), datatype=changes.get("datatype", "FP32"), shape=changes.get("shape", [1, 4])
    )
    if "region" in changes:
        one.parameters["shared_memory_region"].string_param = changes["region"]
        one.parameters["shared_memory_byte_size"].int64_param = 16
    else:
        first = changes.get("first", 1.0)
        request.raw_input_contents.extend(changes.get("raw", [struct.pack("<4f", first, 2, 3, 4)]))
    for name, value in changes.get("parameters", {}).items():
        kind = "string_param" if isinstance(value, str) else "int64_param"
        setattr(request.parameters[name], kind, value)
    if "output" in changes:
        wanted = request.outputs.add(name=changes["output"])
        if "classification" in changes:
            wanted.parameters["classification"].int64_param = changes["classification"]
    return request.SerializeToString()


MALFORMED_GRPC: dict[str, bytes] = {
    "garbage": b"\xff\xff\xff\xff",
    "a text": b"hello world",
    "cut": message()[:-3],
    "no inputs": service_pb2.ModelInferRequest(model_name=MODEL).SerializeToString(),
    "an unknown input": message(name="z"),
    "an unknown output": message(output="z"),
    "the wrong type": message(datatype="INT64"),
    "an unknown type": message(datatype="FOO"),
    "a negative shape": message(shape=[1, -4]),
    "a shape beyond its data": message(shape=[1, 2**40]),
    "no dimension": message(shape=[]),
    "a batch above the largest": message(shape=[2, 4], raw=[b"\0" * 32]),
    "data that is too short": message(raw=[b"1234"]),
    "data that is too long": message(raw=[b"1" * 64]),
    "no data": message(raw=[]),
    "a negative classification": message(output="y", classification=-1),
    "a timeout that is a text": message(parameters={"timeout": "x"}),
    "a negative priority": message(parameters={"priority": -1}),
    "a sequence with a long name": message(parameters={"sequence_id": "x" * 200}),
    "no such shared memory": message(region="a"),
}


AT_THE_GATEWAY_GRPC = {"garbage", "a text", "cut", "a negative shape", "a shape beyond its data"}


def call(channel: grpc.Channel, body: bytes, route: str = "") -> grpc.StatusCode:
    ask = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    metadata = [
        ("x-sluicegate-model", MODEL),
        *([*FORCES.items(), ("x-sluicegate-release", "r2")] if route == "forced" else []),
    ]
    try:
        ask(body, timeout=60, metadata=metadata)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


def test_what_a_caller_gets_wrong_over_grpc_is_told_and_tried_once(world: World, route: str) -> None:
    wrong = {}
    with world.parts.envoy.channel() as channel:
        for name, body in MALFORMED_GRPC.items():
            code, attempts, at_stable = world.once("grpc", lambda: call(channel, body, route))  # noqa: B023
            expected = 0 if name in AT_THE_GATEWAY_GRPC else 1
            if (code, attempts, at_stable) != (grpc.StatusCode.INVALID_ARGUMENT, expected, 0):
                wrong[name] = (code, attempts, at_stable)
        assert wrong == {}
        assert call(channel, message(), route) is grpc.StatusCode.OK


@pytest.mark.parametrize(
    "first", [500, 501, 502], ids=["raises", "fails in a mistake's words", "calls it an invalid argument"]
)
def test_what_a_model_gets_wrong_is_its_failure_and_is_answered_by_stable(world: World, first: int) -> None:
    world.parts.apply(10_000, candidate=Arm("r2", CANDIDATE, (world.triton,)))
    for route in ("infer", "generate"):
        body = tensor(data=[first, 2, 3, 4]) if route == "infer" else json.dumps({"x": [first, 2, 3, 4]}).encode()
        if (route, first) == ("generate", 501):
            continue  # over `generate` the server tells a model's own words from its own by nothing
        answer, attempts, at_stable = world.once("http", lambda: world.http(body, call=route))  # noqa: B023
        assert (answer.status, answer.release, attempts, at_stable) == (200, "r1", 1, 1), (route, answer.body)
    with world.parts.envoy.channel() as channel:
        code, attempts, at_stable = world.once("grpc", lambda: call(channel, message(first=float(first))))
    assert (code, attempts, at_stable) == (grpc.StatusCode.OK, 1, 1)


def test_without_stable_behind_it_a_failure_stays_a_failure(world: World) -> None:
    world.parts.apply(None, stable=Arm("r2", CANDIDATE, (world.triton,)))
    assert world.http(tensor(data=[500, 2, 3, 4])).status == 500
    assert world.http(json.dumps({"x": [500, 2, 3, 4]}).encode(), call="generate").status == 500
    with world.parts.envoy.channel() as channel:
        assert call(channel, message(first=500.0)) is grpc.StatusCode.INTERNAL


def counted(world: World) -> ArmCounters:
    """Of the candidate so far."""
    return world.parts.counters().by_release.get(CANDIDATE, ArmCounters())


@pytest.mark.parametrize("is_idempotent", [True, False])
def test_a_servers_full_queue_is_stables_once_where_a_request_may_be_asked_twice_and_else_told(
    world: World, is_idempotent: bool
) -> None:
    world.parts.apply(10_000, candidate=Arm("r2", CANDIDATE, (world.triton,)), is_idempotent=is_idempotent)
    before = counted(world)
    at_stable, slow = world.parts.stable.hits, tensor(data=[60, 2, 3, 4])
    with ThreadPoolExecutor(24) as pool, world.parts.envoy.channel() as channel:
        over_http = [pool.submit(world.http, slow) for _ in range(12)]
        over_grpc = [pool.submit(call, channel, message(first=60.0)) for _ in range(12)]
        answers, codes = [one.result() for one in over_http], Counter(one.result() for one in over_grpc)
    full = [answer for answer in answers if answer.status == 429]
    asked = world.parts.stable.hits - at_stable
    if is_idempotent:
        assert ({answer.status for answer in answers}, set(codes)) == ({200}, {grpc.StatusCode.OK})
        shed = asked
    else:
        assert {answer.status for answer in answers} == {200, 429}
        assert {answer.headers["retry-after"] for answer in full} == {"1"}
        assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
        shed = len(full) + codes[grpc.StatusCode.RESOURCE_EXHAUSTED]
        assert asked == 0
    assert shed >= 24 - 8
    after = counted(world)
    assert (after.shed - before.shed, after.routed - before.routed) == (shed, 24)
    assert after.decided - before.decided == after.timed - before.timed == 24 - shed
    assert after.failed == before.failed


def test_what_is_no_inference_passes_as_it_is_and_the_script_never_fails(world: World) -> None:
    world.parts.apply(None, stable=Arm("r2", CANDIDATE, (world.triton,)))
    for path, status in (("ready", 200), ("versions/99/ready", 400), ("versions/99/stats", 400), ("infer", 405)):
        assert world.parts.envoy.http(f"/v2/models/{MODEL}/{path}", method="GET", body=b"").status == status, path
    assert "lua" not in Path(world.parts.envoy.log.name).read_text().lower()
