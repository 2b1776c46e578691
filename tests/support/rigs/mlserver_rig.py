"""A real MLServer for tests: another server of the Open Inference Protocol, which runs models that are Python classes.

What MLServer itself leaves open is here the model's code, as it is in whoever's service: it holds a request to nothing that the model
declares (names, types and shapes are the code's to refuse), bounds no queue, keeps no statistics, and tells nobody's configuration.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serving.targets.agent.server_ports import free_ports
from tests.contracts.serving_models import WORDS
from tests.support.rigs.parts import MLSERVER
from tests.support.servers.other_server import HOST, OtherServer, other_server

_CODE = """
import asyncio
import time
import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.errors import InferenceError, MLServerError
from mlserver.types import InferenceResponse

WORDS = %(words)r

class Model(MLModel):
    async def load(self):
        return True

    async def predict(self, payload):
        (wanted,), (given,) = self.inputs, payload.inputs
        most = self.settings.parameters.extra["max_batch_size"]
        if (given.name, given.datatype) != (wanted.name, wanted.datatype):
            raise InferenceError(f"{given.name} {given.datatype} is no input of {self.name}")
        if list(given.shape[1:]) != wanted.shape[1:] or given.shape[0] > most:
            raise InferenceError(f"the shape {given.shape} is not one of {self.name}")
        answer = self.words(given) if given.datatype == "BYTES" else {"y": await self.doubled(NumpyCodec.decode_input(given))}
        outputs = [NumpyCodec.encode_output(name, value) for name, value in answer.items()]
        return InferenceResponse(model_name=self.name, outputs=outputs)

    async def doubled(self, x):
        if (x == 500).any():
            raise MLServerError("the answer went wrong", 500)
        if (x == 501).any():
            raise RuntimeError("in Python's own words")
        if (x == 60).any():
            await asyncio.sleep(2.5)
        if (x == 61).any():
            time.sleep(4)  # as code that computes: nothing else of the event loop runs
        return (2 * x).astype(np.float32)

    def words(self, given):
        rows = [[WORDS.get(word, 1) for word in text.lower().split()] for text in StringCodec.decode_input(given)]
        return {
            "length": np.array([[len(row)] for row in rows], np.int64),
            "total": np.array([[sum(row)] for row in rows], np.int32),
        }
"""


@contextlib.contextmanager
def mlserver(folder: Path, model: str, serving: dict[str, Any]) -> Iterator[OtherServer]:
    """One that has loaded the model, as it is declared in a release's `serving`. It ends with the context."""
    ports = free_ports()
    _write(folder, model, serving, ports)
    with other_server([str(MLSERVER), "start", str(folder)], folder, model, ports) as one:
        yield one


def _write(folder: Path, model: str, serving: dict[str, Any], ports: dict[str, int]) -> None:
    own = folder / model
    own.mkdir(parents=True)
    (own / "release_code.py").write_text(_CODE % {"words": WORDS})
    settings: dict[str, Any] = {
        "name": model,
        "implementation": "release_code.Model",
        "parameters": {"extra": {"max_batch_size": serving["max_batch_size"]}},
    }
    for side in ("inputs", "outputs"):
        settings[side] = [
            {"name": one["name"], "datatype": one["data_type"], "shape": [-1, *one["dims"]]} for one in serving[side]
        ]
    (own / "model-settings.json").write_text(json.dumps(settings))
    (folder / "settings.json").write_text(
        json.dumps(
            {
                "host": HOST,
                **{f"{name}_port": port for name, port in ports.items()},
                "parallel_workers": 0,  # the model answers in the server's own process
                "model_repository_root": str(folder),
            }
        )
    )
