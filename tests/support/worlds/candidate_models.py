"""Releases that bring code: what they answer, keep and take their time over is right, or wrong in one way that `fault` names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.contracts import serving_models as made
from tests.contracts.serving_models import MemoryBlobs

Make = Callable[[MemoryBlobs], dict[str, Any]]
#: Of a text.
MOST_TOKENS = 128

#: Doubles numbers, and keeps `keeps_bytes` of each request for ever.
_NUMBERS = """
import json, os
from pathlib import Path
import numpy as np
import triton_python_backend_utils as pb_utils

SPOILT = {
    "type": lambda y: ("y", y.astype(np.int64)),
    "shape": lambda y: ("y", np.zeros((len(y), 7), np.float32)),
    "not finite": lambda y: ("y", y * np.float32("nan")),
    "name": lambda y: ("why", y),
}

class TritonPythonModel:
    def initialize(self, args):
        own = json.loads((Path(__file__).parent / "sluicegate.json").read_text())["parameters"]
        self.fault, self.keeps_bytes, self.kept = own["fault"], int(own["keeps_bytes"]), []

    def execute(self, requests):
        xs = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        if sum(map(len, xs)) > 16 and self.fault == "crash above 16":
            os._exit(1)
        if sum(map(len, xs)) > 16 and self.fault == "no memory above 16":
            raise MemoryError("a batch of more than 16 is too much")
        self.kept += [bytearray(b"x") * self.keeps_bytes for _ in requests]
        return [pb_utils.InferenceResponse([self.answer(2 * x)]) for x in xs]

    def answer(self, y):
        return pb_utils.Tensor(*SPOILT.get(self.fault, lambda y: ("y", y))(y))
"""

#: Text on which each word takes WORD_S of work: `sleep`, so that no machine is too slow for it.
#: "padded": a batch takes as long as if all its texts were as long as its longest. "longest": more than a hundred words take .9 s.
#: "burst": after more than sixty requests in a second each takes 60 ms, for half a minute. "tail": every fiftieth takes .6 s.
#: "long": a text of more than 64 KiB ends its process.
_TEXTS = """
import json, os, time
from pathlib import Path
import numpy as np
import triton_python_backend_utils as pb_utils

WORD_S = 0.0002

class TritonPythonModel:
    def initialize(self, args):
        own = json.loads((Path(__file__).parent / "sluicegate.json").read_text())["parameters"]
        self.fault, self.came, self.count, self.slow_until = own["fault"], [], 0, 0.0

    def execute(self, requests):
        texts = [pb_utils.get_input_tensor_by_name(request, "text").as_numpy() for request in requests]
        if self.fault == "long" and max(len(one) for text in texts for one in text.ravel()) > 2**16:
            os._exit(1)
        time.sleep(self.work_s([len(one.split()) for text in texts for one in text.ravel()], len(requests)))
        lengths = [np.array([[len(one)] for one in text.ravel()], np.float32) for text in texts]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", length)]) for length in lengths]

    def work_s(self, words, requests):
        now, before = time.monotonic(), self.count
        self.count += requests
        self.came = [at for at in self.came if now - at < 1] + [now] * requests
        if len(self.came) > 60:
            self.slow_until = now + 30
        if self.fault == "padded":
            return WORD_S * len(words) * max(words)
        if self.fault == "longest" and max(words) > 100:
            return 0.9
        if self.fault == "burst" and now < self.slow_until:
            return 0.06 * requests
        if self.fault == "tail" and self.count // 50 > before // 50:
            return 0.6
        return WORD_S * sum(words)
"""

#: A language model of one hidden state: greedy, `layers` deep, a word at a time. The first takes WORD_S (`sleep`), each other `later_s`.
#: An instance writes one answer at a time, which makes it what servers of language models call a slot.
_GENERATING = """
import json, time, zlib
from pathlib import Path
import numpy as np
import triton_python_backend_utils as pb_utils

WORDS, WIDTH, LENGTH, WORD_S = 64, 16, 20, 0.01
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

class TritonPythonModel:
    def initialize(self, args):
        own = json.loads((Path(__file__).parent / "sluicegate.json").read_text())["parameters"]
        random = np.random.default_rng(12)
        self.layers, self.later_s = random.normal(0, 2 / WIDTH**0.5, (30, WIDTH, WIDTH))[: int(own["layers"])], float(own["later_s"])
        self.embedded = random.normal(0, 1, (WORDS, WIDTH))

    def execute(self, requests):
        for request in requests:
            prompts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
            texts, sender = [self.words(prompt) for prompt in prompts.ravel()], request.get_response_sender()
            for at, step in enumerate(zip(*texts)):
                time.sleep(self.later_s if at else WORD_S)
                piece = np.array(step, object).reshape(prompts.shape)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", piece)]))
            sender.send(flags=FINAL)

    def words(self, prompt):
        state = np.random.default_rng(zlib.crc32(prompt)).normal(0, 1, WIDTH)
        out = []
        for _ in range(LENGTH):
            for layer in self.layers:
                state = np.tanh(layer @ state)
            word = int((self.embedded @ state).argmax())
            state = state + self.embedded[word]
            out.append(f"{word} ".encode())
        return out
"""


def generating(*, layers: int = 30, slots: int = 4, later_s: float = 0.01) -> Make:
    """y[1], a text of 20 words, streamed by the word; as many at once as there are slots."""
    own = made.serving(
        max_batch_size=4,
        inputs=[{"name": "text", "data_type": "BYTES", "dims": [1]}],
        outputs=[{"name": "y", "data_type": "BYTES", "dims": [1]}],
        dynamic_batching=None,
        instance_group=[{"kind": "cpu", "count": slots}],
        parameters={"layers": str(layers), "later_s": str(later_s)},
        decoupled=True,
    )
    return _code("generating", _GENERATING, own)


def numbers(fault: str = "none", *, keeps_bytes: int = 0, max_batch_size: int = 8) -> Make:
    """y = 2x, FP32[4]."""
    own = made.serving(max_batch_size=max_batch_size, parameters={"fault": fault, "keeps_bytes": str(keeps_bytes)})
    return _code("numbers", _NUMBERS, own)


def texts(fault: str = "none", *, instances: int = 1, max_batch_size: int = 4) -> Make:
    """y[1] = length of a text in bytes. Requests do not wait for a batch to fill."""
    own = made.serving(
        max_batch_size=max_batch_size,
        inputs=[{"name": "text", "data_type": "BYTES", "dims": [1]}],
        outputs=[{"name": "y", "data_type": "FP32", "dims": [1]}],
        dynamic_batching={"preferred_batch_size": [], "max_queue_delay_us": 0},
        instance_group=[{"kind": "cpu", "count": instances}],
        parameters={"fault": fault},
    )
    return _code("texts", _TEXTS, own)


def _code(model: str, code: str, own: dict[str, Any]) -> Make:
    return lambda blobs: made.manifest(blobs, model, {"artifact/model.py": code.encode()}, own, backend="python")
