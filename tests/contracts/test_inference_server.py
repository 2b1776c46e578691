"""What every inference server must do: the fake in this process, a real Triton, MLServer and KServe, by the same tests.

MLServer and KServe do what the Open Inference Protocol itself asks for; where a test is of Triton's extensions or of this runtime,
it is left out, and what the adapter says instead (`not_offered`) has a test of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from serving.ports import GRPC, HTTP, Inference, InferenceError, InferenceServer, TensorSpec
from serving.servers.adapters.triton import TritonServer
from serving.targets.agent.health_check import check_health
from serving.targets.core.health import Probe
from tests.contracts import serving_models as made
from tests.contracts.serving_models import MemoryBlobs, launch_spec
from tests.support.fakes.ports import FakeInferenceServer, FakeModel
from tests.support.rigs.gateway_rig import wait_until
from tests.support.rigs.kserve_rig import kserve
from tests.support.rigs.mlserver_rig import mlserver
from tests.support.rigs.triton_rig import local_launcher
from tests.support.servers.other_server import OtherServer
from validators.core.stages import stages_between

#: What is not Triton, and what starts one with a model.
OTHERS = {"mlserver": mlserver, "kserve": kserve}
#: Capabilities that the whole suite shows on each real server. The models on Triton are ONNX graphs and Python code.
SHOWN = {
    "triton": pytest.mark.shows("server:triton", "backend:triton/sluicegate-onnx", "backend:triton/python"),
    "mlserver": pytest.mark.shows("server:mlserver"),
    "kserve": pytest.mark.shows("server:kserve"),
}


def _compute_code(arrays: dict[str, Any]) -> dict[str, Any]:
    x = arrays["x"]
    if (x == 500).any():
        raise ValueError("the answer went wrong")
    return {"y": (2 * x).astype(np.float32)}


def _compute_words(arrays: dict[str, Any]) -> dict[str, Any]:
    rows = [[made.WORDS.get(word, 1) for word in text.decode().lower().split()] for text in arrays["text"][:, 0]]
    return {
        "length": np.array([[len(row)] for row in rows], np.int64),
        "total": np.array([[sum(row)] for row in rows], np.int32),
    }


class Subject:
    """The server under test, and what happens to it from outside."""

    def __init__(self, server: InferenceServer, kill_model: Any, kill: Any) -> None:
        self.server, self.kill_model, self.kill = server, kill_model, kill


@pytest.fixture(
    scope="module",
    params=["fake", *(pytest.param(part, marks=[pytest.mark.real(part), shown]) for part, shown in SHOWN.items())],
)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def subjects(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One server of each model for the module; a test that breaks one asks for a new one."""
    blobs = MemoryBlobs()
    held = contextlib.ExitStack()
    others: dict[str, OtherServer] = {}  # which no test changes but by its end
    launcher = held.enter_context(local_launcher(tmp_path_factory.mktemp("node"), blobs))

    def start(model: str, manifest: dict[str, Any], compute: Any) -> Subject:
        if kind == "fake":
            fake = FakeInferenceServer({model: FakeModel(manifest["serving"], compute)})
            return Subject(
                fake, lambda: setattr(fake.models[model], "is_dead", True), lambda: setattr(fake, "is_down", True)
            )
        if kind in OTHERS:
            if model not in others or not others[model].is_running:
                others[model] = held.enter_context(
                    OTHERS[kind](tmp_path_factory.mktemp(kind), model, manifest["serving"])
                )
            return Subject(others[model].client, None, others[model].kill)
        running = launcher.start(launch_spec(manifest, launcher.folder_for(1, model, "r1")))
        launcher.await_loaded(running, model, timeout_s=60)
        client = TritonServer(running.host, running.http_port, running.grpc_port)
        held.callback(client.close)

        def kill_model() -> None:
            with pytest.raises(InferenceError):
                client.infer(model, {"x": np.full((1, 4), 666, np.float32)}, timeout_s=30)

        def kill() -> None:
            os.kill(running.pid, signal.SIGKILL)
            wait_until(lambda: not launcher.is_alive(running), "the server's end")

        return Subject(client, kill_model, kill)

    def get(model: str, **changes: Any) -> Subject:
        makers = {
            "doubling": (made.doubling, _compute_code),
            "words": (made.words, _compute_words),
            "misbehaving": (made.misbehaving, _compute_code),
        }
        maker, compute = makers[model]
        return start(model, maker(blobs, **changes), compute)

    with held:
        yield get


@pytest.fixture(scope="module")
def doubling(subjects: Any) -> InferenceServer:
    server: InferenceServer = subjects("doubling").server
    return server


@pytest.fixture(scope="module")
def words(subjects: Any) -> InferenceServer:
    server: InferenceServer = subjects("words").server
    return server


@pytest.fixture
def misbehaving(subjects: Any) -> Subject:
    subject: Subject = subjects("misbehaving")
    return subject


def told(kind: str, protocol: str = GRPC) -> str:
    """What a server says of an exception in its model: the model's own words, which KServe keeps to itself over gRPC."""
    return "Internal server error" if (kind, protocol) == ("kserve", GRPC) else "the answer went wrong"


def ask(server: InferenceServer, value: Any, model: str = "doubling", timeout_s: float = 30) -> Inference:
    return server.infer(model, {"x": np.asarray(value)}, timeout_s=timeout_s)


def row(value: float) -> Any:
    return np.full((1, 4), value, np.float32)


def test_it_answers_a_batch_and_says_how_long_it_took(doubling: InferenceServer) -> None:
    answer = ask(doubling, np.arange(8, dtype=np.float32).reshape(2, 4))
    assert answer.outputs["y"].tolist() == [[0, 2, 4, 6], [8, 10, 12, 14]]
    assert answer.outputs["y"].dtype == np.float32
    assert 0 < answer.latency_s < 30


def test_metadata_has_no_batch_axis_or_says_that_it_cannot_tell(doubling: InferenceServer, kind: str) -> None:
    said = doubling.metadata("doubling")
    for (one,), name in zip(said, "xy", strict=True):
        is_whole = kind in OTHERS
        assert one == TensorSpec(name, "FP32", (-1, 4) if is_whole else (4,), is_whole=is_whole)
        assert one.dims_of_item(has_batch_axis=True) == (4,)


def test_metadata_of_an_unknown_model_is_refused(doubling: InferenceServer) -> None:
    with pytest.raises(InferenceError) as caught:
        doubling.metadata("nobody")
    assert caught.value.reason == "rejected" and "nobody" in caught.value.message


def test_a_server_without_statistics_says_so_and_makes_none_up(subjects: Any, kind: str) -> None:
    if kind not in OTHERS:
        pytest.skip("it keeps statistics")
    server = subjects("misbehaving").server
    with pytest.raises(InferenceError) as caught:
        server.statistics("misbehaving")
    assert caught.value.reason == "not_offered"
    look, _ = check_health(server, "misbehaving", {"serving": made.serving()}, timeout_s=30)
    assert look.probe == Probe.RIGHT
    slow = made.serving(warmup=[{"batch_size": 1, "inputs": {"x": [60, 60, 60, 60]}}])
    late, _ = check_health(server, "misbehaving", {"serving": slow}, timeout_s=0.2)
    assert late.probe == Probe.LATE and late.finished is None  # not known, and not 0


def test_text_goes_through_the_releases_tokenizer(words: InferenceServer) -> None:
    texts = np.array([["Good BAD film"], ["unheard"]], dtype=object)
    answer = words.infer("words", {"text": texts}, timeout_s=30)
    assert answer.outputs["length"].tolist() == [[3], [1]]
    assert answer.outputs["total"].tolist() == [[9], [1]]
    assert answer.outputs["total"].dtype == np.int32  # as declared, though the graph makes INT64


def test_bytes_and_str_mean_the_same(words: InferenceServer) -> None:
    as_bytes, as_str = (
        words.infer("words", {"text": np.array([[text]], dtype=object)}, timeout_s=30) for text in (b"good", "good")
    )
    assert as_bytes.outputs["total"].tolist() == as_str.outputs["total"].tolist() == [[2]]


@pytest.mark.parametrize(
    "inputs",
    [
        {"x": np.ones((1, 5), np.float32)},
        {"x": np.ones((1, 4), np.int64)},
        {"z": np.ones((1, 4), np.float32)},
        {"x": np.ones((9, 4), np.float32)},
    ],
    ids=["shape", "type", "name", "batch"],
)
def test_a_wrong_request_is_rejected(doubling: InferenceServer, inputs: dict[str, Any]) -> None:
    with pytest.raises(InferenceError) as caught:
        doubling.infer("doubling", inputs, timeout_s=30)
    assert caught.value.reason == "rejected"


def test_an_unknown_model_is_rejected(doubling: InferenceServer) -> None:
    with pytest.raises(InferenceError) as caught:
        ask(doubling, row(1), model="nobody")
    assert caught.value.reason == "rejected"


def test_statistics_count_successes(doubling: InferenceServer, kind: str) -> None:
    if kind in OTHERS:
        pytest.skip("it keeps no statistics")

    def succeeded() -> int:
        return int(
            doubling.statistics("doubling")["model_stats"][0]["inference_stats"].get("success", {}).get("count", 0)
        )

    before = succeeded()
    ask(doubling, row(1))
    wait_until(lambda: succeeded() > before, "the count of an answer, which follows it by an instant")
    assert succeeded() == before + 1


def test_statistics_tell_where_the_time_went(doubling: InferenceServer, kind: str) -> None:
    """The counters follow an answer by an instant: they are read until they have it."""
    if kind in OTHERS:
        pytest.skip("it keeps no statistics")
    before, began = doubling.statistics("doubling"), time.monotonic()
    for _ in range(4):
        doubling.infer("doubling", {"x": np.ones((2, 4), np.float32)}, timeout_s=30)
    until = time.monotonic() + 60
    while True:
        found = stages_between(before, doubling.statistics("doubling"), wall_s=time.monotonic() - began, instances=1)
        if found is not None and found["mean_batch"] == 2.0 and found["infer_ms"] > 0:
            break
        assert time.monotonic() < until, found
    assert 0 < found["infer_ms"] <= found["total_ms"]
    assert found["total_ms"] == pytest.approx(
        sum(found[name] for name in ("queue_ms", "input_ms", "infer_ms", "output_ms", "overhead_ms")), abs=0.001
    )
    assert 0 < found["busy_frac"] < 1


def test_requests_from_many_threads_are_all_answered_right(doubling: InferenceServer) -> None:
    wrong: list[float] = []

    def work(number: int) -> None:
        for i in range(10):
            value = float(number * 100 + i)
            if ask(doubling, row(value)).outputs["y"].tolist() != [[2 * value] * 4]:
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert wrong == []


def test_an_exception_in_the_model_is_a_server_error_and_the_next_request_is_fine(
    misbehaving: Subject, kind: str
) -> None:
    with pytest.raises(InferenceError) as caught:
        ask(misbehaving.server, row(500), "misbehaving")
    assert caught.value.reason == "server_error"
    assert told(kind) in caught.value.message
    assert "/" not in caught.value.message  # no folder of this machine
    assert ask(misbehaving.server, row(1), "misbehaving").outputs["y"].tolist() == [[2, 2, 2, 2]]


def test_a_dead_model_process_fails_for_good(subjects: Any, kind: str) -> None:
    if kind in OTHERS:
        pytest.skip("its models have no processes of their own here")
    misbehaving = subjects("misbehaving")
    misbehaving.kill_model()
    for _ in range(2):
        with pytest.raises(InferenceError) as caught:
            ask(misbehaving.server, row(1), "misbehaving")
        assert "is not healthy" in caught.value.message


def test_a_server_that_is_gone_is_unreachable(misbehaving: Subject) -> None:
    assert misbehaving.server.is_live()
    misbehaving.kill()
    assert not misbehaving.server.is_live()
    with pytest.raises(InferenceError) as caught:
        ask(misbehaving.server, row(1), "misbehaving")
    assert caught.value.reason == "unreachable"


def test_an_answer_that_takes_too_long_is_a_timeout(subjects: Any, kind: str) -> None:
    subject = subjects("misbehaving")
    if kind == "fake":
        subject.server.models["misbehaving"].latency_s = 0.5
    with pytest.raises(InferenceError) as caught:
        ask(subject.server, row(60), "misbehaving", timeout_s=0.2)
    assert caught.value.reason == "timeout"


@pytest.mark.parametrize("protocol", [GRPC, HTTP])
def test_requests_made_beforehand_meet_the_same_errors_over_either_protocol(
    subjects: Any, kind: str, protocol: str
) -> None:
    subject = subjects("misbehaving")
    batches = [{"x": row(1)}, {"x": row(500)}, {"x": np.ones((1, 5), np.float32)}, {"x": row(60)}]
    requests = subject.server.prepared("misbehaving", batches, protocol=protocol)
    requests.connect()
    requests.send(0, timeout_s=30)
    requests.send(len(batches), timeout_s=30)
    with pytest.raises(InferenceError, match=told(kind, protocol)) as caught:
        requests.send(1, timeout_s=30)
    assert caught.value.reason == "server_error" and "/" not in caught.value.message
    with pytest.raises(InferenceError) as caught:
        requests.send(2, timeout_s=30)
    assert caught.value.reason == "rejected"
    if kind == "fake":
        subject.server.models["misbehaving"].latency_s = 0.5
    with pytest.raises(InferenceError) as caught:
        requests.send(3, timeout_s=0.2)
    assert caught.value.reason == "timeout"
    nobodys = subject.server.prepared("nobody", batches, protocol=protocol)
    with pytest.raises(InferenceError) as caught:
        nobodys.send(0, timeout_s=30)
    assert caught.value.reason == "rejected"
    subject.kill()
    with pytest.raises(InferenceError) as caught:
        requests.send(0, timeout_s=30)
    assert caught.value.reason == "unreachable"


@pytest.mark.parametrize("protocol", [GRPC, HTTP])
def test_a_queue_that_is_full_is_told_as_one_over_either_protocol(subjects: Any, kind: str, protocol: str) -> None:
    if kind != "triton":
        pytest.skip("it has no bound to its queue")
    queue = {"timeout_action": "reject", "default_timeout_us": 0, "allow_timeout_override": False, "max_queue_size": 1}
    server = subjects("misbehaving", queue_policy=queue, max_batch_size=1).server
    requests = server.prepared("misbehaving", [{"x": row(60)}], protocol=protocol)

    def reason(_: int) -> str:
        try:
            requests.send(0, timeout_s=60)
        except InferenceError as error:
            return error.reason
        return "answered"

    with ThreadPoolExecutor(6) as pool:
        found = set(pool.map(reason, range(6)))
    assert found == {"answered", "full"}


@pytest.mark.parametrize("protocol", [GRPC, HTTP])
def test_text_and_tensors_made_beforehand_are_taken_for_what_they_are(
    words: InferenceServer, kind: str, protocol: str
) -> None:
    """What is sent nobody looks at, so the server's own words tell that it was understood: the first text is no UTF-8."""
    texts = [np.array([[text]], dtype=object) for text in (b"\xff", "good film", b"")]
    if kind in OTHERS and protocol == HTTP:  # it takes JSON alone, which has no word for that text
        with pytest.raises(InferenceError, match="'text' is not to be said in JSON") as caught:
            words.prepared("words", [{"text": texts[0]}], protocol=protocol)
        assert caught.value.reason == "rejected"
        texts[0] = np.array([["good"], ["two rows, so many words"]] * 9, dtype=object)  # more than a batch
    requests = words.prepared("words", [{"text": text} for text in texts], protocol=protocol)
    requests.send(1, timeout_s=30)
    requests.send(2, timeout_s=30)
    with pytest.raises(InferenceError):
        requests.send(0, timeout_s=30)
