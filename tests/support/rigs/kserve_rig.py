"""A real KServe for tests: its own `ModelServer`, which runs one model that is a Python class. (KServe's controllers are not here.)

As in whoever's service, it is the model's code that holds a request to what the model declares. KServe listens on every address of
the machine; here, and in no service, it is made to listen on loopback alone.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serving.targets.agent.server_ports import free_ports
from tests.contracts.serving_models import WORDS
from tests.support.rigs.parts import KSERVE
from tests.support.servers.other_server import HOST, OtherServer, other_server

_CODE = """
import asyncio
import json
import sys
import time
from grpc.aio import _server
import numpy as np
from kserve import InferOutput, InferResponse, Model, ModelServer
from kserve.errors import InferenceError, InvalidInput
from kserve.protocol.rest import server as rest
from kserve.utils.numpy_codec import from_np_dtype
from kserve.utils.utils import generate_uuid

SAID = json.loads(sys.argv.pop())

class Release(Model):
    def __init__(self):
        super().__init__(SAID["model"])
        self.load()

    def get_input_types(self):
        return SAID["inputs"]

    def get_output_types(self):
        return SAID["outputs"]

    async def predict(self, payload, headers=None, response_headers=None):
        (wanted,), (given,) = SAID["inputs"], payload.inputs
        if (given.name, given.datatype) != (wanted["name"], wanted["datatype"]):
            raise InvalidInput(f"{given.name} {given.datatype} is no input of {self.name}")
        if given.shape[1:] != wanted["shape"][1:] or given.shape[0] > SAID["most"]:
            raise InvalidInput(f"the shape {given.shape} is not one of {self.name}")
        value = given.as_numpy()
        answer = self.words(value) if given.datatype == "BYTES" else {"y": await self.doubled(value)}
        return InferResponse(
            payload.id or generate_uuid(),
            self.name,
            [self.output(name, one) for name, one in answer.items()],
            use_binary_outputs=payload.use_binary_outputs,
            requested_outputs=payload.request_outputs,
        )

    def output(self, name, value):
        made = InferOutput(name, list(value.shape), from_np_dtype(value.dtype))
        made.set_data_from_numpy(value)  # an array that is given to InferOutput itself ends as an error over gRPC
        return made

    async def doubled(self, x):
        if (x == 500).any():
            raise RuntimeError("the answer went wrong")
        if (x == 501).any():
            raise InferenceError("in KServe's own words")
        if (x == 60).any():
            await asyncio.sleep(2.5)
        if (x == 61).any():
            time.sleep(4)  # as code that computes: nothing else of the event loop runs
        return (2 * x).astype(np.float32)

    def words(self, texts):
        said = [one.decode() if isinstance(one, bytes) else one for one in texts[:, 0]]
        rows = [[SAID["words"].get(word, 1) for word in text.lower().split()] for text in said]
        return {
            "length": np.array([[len(row)] for row in rows], np.int64),
            "total": np.array([[sum(row)] for row in rows], np.int32),
        }

class OnLoopback(rest.uvicorn.Config):
    def __init__(self, app, **how):
        super().__init__(app, **{**how, "host": SAID["host"]})

rest.uvicorn.Config = OnLoopback
listen = _server.Server.add_insecure_port
_server.Server.add_insecure_port = lambda server, address: listen(server, address.replace("[::]", SAID["host"]))
ModelServer(http_port=SAID["ports"]["http"], grpc_port=SAID["ports"]["grpc"]).start([Release()])
"""


@contextlib.contextmanager
def kserve(folder: Path, model: str, serving: dict[str, Any]) -> Iterator[OtherServer]:
    """One that has loaded the model, as it is declared in a release's `serving`. It ends with the context."""
    ports = free_ports()
    said: dict[str, Any] = {
        "model": model, "host": HOST, "ports": ports, "words": WORDS, "most": serving["max_batch_size"],
    }  # fmt: skip
    for side in ("inputs", "outputs"):
        said[side] = [
            {"name": one["name"], "datatype": one["data_type"], "shape": [-1, *one["dims"]]} for one in serving[side]
        ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "release.py").write_text(_CODE)
    with other_server([str(KSERVE), "release.py", json.dumps(said)], folder, model, ports) as one:
        yield one
