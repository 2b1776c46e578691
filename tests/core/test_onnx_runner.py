"""The runner of ONNX graphs without a server: which texts share a run of the graph, and that answers stay with who asked."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.targets.agent.runtime_image import RUNNER
from tests.contracts.serving_models import WORDS, word_count_graph


class Tensor:
    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value

    def as_numpy(self) -> Any:
        return self.value


class Answer:
    def __init__(self, tensors: Any = (), error: Any = None) -> None:
        self.values, self.error = {one.name: one.value for one in tensors}, error


class Request(dict[str, Tensor]):
    """Tensors by name. `is_gone`: its caller cancelled it."""

    is_gone = False

    def is_cancelled(self) -> bool:
        return self.is_gone


class TritonError(str):
    INVALID_ARG, INTERNAL, CANCELLED = 3, 13, 1
    kind: int

    def __new__(cls, message: str, kind: int) -> TritonError:
        made = super().__new__(cls, message)
        made.kind = kind
        return made


class Encoding:
    def __init__(self, words: list[str]) -> None:
        self.ids = [WORDS.get(word, 1) for word in words]
        self.attention_mask, self.type_ids = [1] * len(words), [0] * len(words)

    def __len__(self) -> int:
        return len(self.ids)


class Tokenizer:
    """A word is a token. Counts how many texts it was given."""

    def __init__(self) -> None:
        self.texts = 0

    def encode_batch(self, texts: list[str]) -> list[Encoding]:
        self.texts += len(texts)
        return [Encoding(text.split()) for text in texts]


class Session:
    """The real graph, with a note of the shapes that it ran on; a run with `poison` in it fails."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.shapes: list[tuple[int, ...]] = []
        self.poison: int | None = None

    def run(self, outputs: list[str], feed: dict[str, Any]) -> Any:
        self.shapes.append(feed["input_ids"].shape)
        if self.poison is not None and (feed["input_ids"] == self.poison).any():
            raise RuntimeError("no kernel for this")
        return self.real.run(outputs, feed)


@pytest.fixture(scope="module")
def runner() -> Any:
    """The runner's module, with a stand-in for what only a server has."""
    stub: Any = types.ModuleType("triton_python_backend_utils")
    stub.get_input_tensor_by_name = lambda request, name: request.get(name)
    stub.Tensor, stub.InferenceResponse, stub.TritonError = Tensor, Answer, TritonError
    sys.modules[stub.__name__] = stub
    spec = importlib.util.spec_from_file_location("onnx_runner", RUNNER / "onnx_runner.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[stub.__name__]


@pytest.fixture
def model(runner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def make(**parameters: str) -> Any:
        config = {
            "max_batch_size": 16,
            "inputs": [{"name": "text", "data_type": "BYTES", "dims": [1]}],
            "outputs": [{"name": "length", "data_type": "INT64"}, {"name": "total", "data_type": "INT64"}],
            "parameters": parameters,
        }
        (tmp_path / "sluicegate.json").write_text(json.dumps(config))
        (tmp_path / "model.onnx").write_bytes(word_count_graph())
        monkeypatch.setattr(runner, "__file__", str(tmp_path / "model.py"))

        def tokenizer(self: Any, *_: Any) -> Tokenizer:
            self.pad_id = 0
            return Tokenizer()

        monkeypatch.setattr(runner.TritonPythonModel, "_tokenizer", tokenizer)
        made = runner.TritonPythonModel()
        made.initialize({})
        made.session = Session(made.session)
        return made

    return make


class Runtime:
    """ONNX Runtime on a machine with these providers; `loads` are those that a session gets of the ones it asks for."""

    __version__ = "1.31.1"
    SessionOptions = types.SimpleNamespace

    def __init__(self, *providers: str, loads: bool = True) -> None:
        self.providers, self.loads = providers, loads
        self.asked: list[dict[str, Any]] = []
        self.is_preloaded = False

    def get_available_providers(self) -> list[str]:
        return list(self.providers)

    def preload_dlls(self) -> None:
        self.is_preloaded = True

    def InferenceSession(self, path: str, options: Any, **how: Any) -> Any:
        self.asked.append(how)
        got = ["CUDAExecutionProvider"] if self.loads else []
        return types.SimpleNamespace(get_providers=lambda: [*got, "CPUExecutionProvider"])


GPU = {"model_instance_kind": "GPU", "model_instance_device_id": "1"}


def test_a_gpu_instance_runs_on_its_own_device_without_a_way_back(runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime("CUDAExecutionProvider", "CPUExecutionProvider")
    monkeypatch.setattr(runner, "onnxruntime", runtime)
    assert runner._session("model.onnx", None, GPU).get_providers()[0] == "CUDAExecutionProvider"
    assert runtime.asked == [{"providers": [("CUDAExecutionProvider", {"device_id": "1"})], "enable_fallback": 0}]
    assert runtime.is_preloaded


@pytest.mark.parametrize(
    "runtime",
    [Runtime("CPUExecutionProvider"), Runtime("CUDAExecutionProvider", loads=False)],
    ids=["no CUDA", "no driver"],
)
def test_a_gpu_instance_never_runs_on_the_processor(
    runner: Any, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "onnxruntime", runtime)
    with pytest.raises(
        RuntimeError, match=r"no CUDA for device 1 here, only CPUExecutionProvider; it will not run on the"
    ):
        runner._session("model.onnx", None, GPU)


@pytest.mark.parametrize("args", [{}, {"model_instance_kind": "CPU", "model_instance_device_id": "0"}])
def test_a_cpu_instance_asks_for_the_processor_also_where_there_is_a_gpu(
    runner: Any, args: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Runtime("CUDAExecutionProvider", "CPUExecutionProvider")
    monkeypatch.setattr(runner, "onnxruntime", runtime)
    runner._session("model.onnx", None, args)
    assert runtime.asked == [{"providers": ["CPUExecutionProvider"]}] and not runtime.is_preloaded


def test_the_real_runtime_without_a_gpu_refuses_a_gpu_instance(
    runner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.onnx").write_bytes(word_count_graph())
    (tmp_path / "sluicegate.json").write_text(json.dumps({"max_batch_size": 0, "inputs": [], "outputs": []}))
    monkeypatch.setattr(runner, "__file__", str(tmp_path / "model.py"))
    with pytest.raises(RuntimeError, match="declare instances of the kind cpu"):
        runner.TritonPythonModel().initialize(GPU)


def ask(*texts: str) -> Request:
    return Request(text=Tensor("text", np.array([[text.encode()] for text in texts], object)))


def lengths(answer: Answer) -> list[int]:
    assert answer.error is None
    return [int(n) for n in answer.values["length"][:, 0]]


def words(count: int) -> str:
    return " ".join(["good"] * count)


def test_a_long_text_costs_its_own_length_only(model: Callable[..., Any]) -> None:
    made = model()
    answers = made.execute([ask(words(count)) for count in (20, 128, 21, 20, 128, 22)])
    assert [lengths(answer) for answer in answers] == [[20], [128], [21], [20], [128], [22]]
    assert sorted(made.session.shapes) == [(2, 128), (4, 22)]
    assert made.tokenizer.texts == 6


def test_a_run_holds_no_more_than_the_release_says(model: Callable[..., Any]) -> None:
    made = model(max_tokens_per_run="256")
    made.execute([ask(words(128)) for _ in range(5)])
    assert sorted(made.session.shapes) == [(1, 128), (2, 128), (2, 128)]
    made = model(max_tokens_per_run="1")
    assert [lengths(answer) for answer in made.execute([ask(words(3)), ask(words(2))])] == [[3], [2]]
    with pytest.raises(ValueError, match="max_tokens_per_run"):
        model(max_tokens_per_run="0")


def test_texts_of_one_request_are_parted_and_put_together_again(model: Callable[..., Any]) -> None:
    made = model()
    sizes = [3, 100, 4, 60, 3]
    answers = made.execute([ask(*(words(size) for size in sizes)), ask(words(61))])
    assert lengths(answers[0]) == sizes
    assert lengths(answers[1]) == [61]
    assert sorted(made.session.shapes) == [(1, 100), (2, 61), (3, 4)]


def test_any_mixture_is_answered_in_the_order_in_which_it_was_asked(model: Callable[..., Any]) -> None:
    made, chance = model(), random.Random(5)
    for _ in range(20):
        asked = [[chance.randint(0, 128) for _ in range(chance.randint(1, 5))] for _ in range(chance.randint(1, 8))]
        answers = made.execute([ask(*(words(count) for count in counts)) for counts in asked])
        assert [lengths(answer) for answer in answers] == asked


def test_who_fails_is_found_and_spoils_nobody_elses_answer(model: Callable[..., Any]) -> None:
    made = model()
    made.session.poison = WORDS["bad"]
    texts = [ask(words(3)), ask("bad film"), ask(b"\xff".decode("latin-1")), Request(), ask(words(90))]
    answers = made.execute(texts)
    assert [answer.error is None for answer in answers] == [True, False, True, False, True]
    assert "no kernel" in answers[1].error and "is missing" in answers[3].error
    assert lengths(answers[4]) == [90]
    assert made.tokenizer.texts == 4  # also when runs are tried again


def test_nothing_is_computed_for_who_waits_no_longer(model: Callable[..., Any]) -> None:
    made, gone = model(), ask(words(3))
    gone.is_gone = True
    answers = made.execute([gone, ask(words(5)), gone])
    assert [answer.error and answer.error.kind for answer in answers] == [
        TritonError.CANCELLED,
        None,
        TritonError.CANCELLED,
    ]
    assert (lengths(answers[1]), made.session.shapes, made.tokenizer.texts) == ([5], [(1, 5)], 1)


@pytest.mark.parametrize(
    ("states", "ids", "mask"),
    [
        ({}, [[2, 9, 9], [2, 3, 4]], [[1, 0, 0], [1, 1, 1]]),
        ({"pads_left": True}, [[9, 9, 2], [2, 3, 4]], [[0, 0, 1], [1, 1, 1]]),
        ({"pad_multiple": 4}, [[2, 9, 9, 9], [2, 3, 4, 9]], [[1, 0, 0, 0], [1, 1, 1, 0]]),
        ({"pad_least": 5}, [[2, 9, 9, 9, 9], [2, 3, 4, 9, 9]], [[1, 0, 0, 0, 0], [1, 1, 1, 0, 0]]),
        ({"pads_left": True, "pad_multiple": 2}, [[9, 9, 9, 2], [9, 2, 3, 4]], [[0, 0, 0, 1], [0, 1, 1, 1]]),
    ],
)
def test_texts_are_filled_up_as_the_tokenizer_states(
    model: Callable[..., Any], states: dict[str, Any], ids: Any, mask: Any
) -> None:
    made = model()
    made.pad_id, made.pad_type_id = 9, 7
    for name, value in states.items():
        setattr(made, name, value)
    texts = [Encoding(["good"]), Encoding(["good"] * 3)]
    texts[0].ids, texts[1].ids = [2], [2, 3, 4]
    found = made._padded(texts)
    assert (found["input_ids"].tolist(), found["attention_mask"].tolist()) == (ids, mask)
    assert found["token_type_ids"].tolist() == [[0 if one else 7 for one in row] for row in mask]


def test_an_empty_batch_is_its_senders_mistake_and_spoils_nobody_elses_answer(model: Callable[..., Any]) -> None:
    answers = model().execute([Request(text=Tensor("text", np.empty((0, 1), object))), ask(words(3))])
    assert (answers[0].error, answers[0].error.kind) == ("the batch is empty", TritonError.INVALID_ARG)
    assert lengths(answers[1]) == [3]


@pytest.mark.parametrize("most", [256, 512])
def test_padding_stays_small_in_any_mixture(runner: Any, most: int) -> None:
    chance = random.Random(most)
    for size in (1, 4, 16, 64):
        sizes = [128 if chance.random() < 0.14 else chance.randint(5, 45) for _ in range(size)]
        runs = runner.cut(sizes, most)
        assert sorted(at for run in runs for at in run) == list(range(size))
        work = [len(run) * max(sizes[at] for at in run) for run in runs]
        assert max(work) <= most
        # what padding and runs cost together is never more than one run for each text would
        assert sum(work) + runner.TOKENS_OF_A_RUN * len(runs) <= sum(sizes) + runner.TOKENS_OF_A_RUN * size


def test_what_grows_with_the_text_shares_a_run_with_nobody(runner: Any) -> None:
    assert runner._is_fixed(["n", 2]) and runner._is_fixed([None])
    assert not runner._is_fixed(["n", "s", 8]) and not runner._is_fixed([])
