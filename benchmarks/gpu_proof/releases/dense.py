"""model.py of the proof's dense release: y = scale * x, after matrix products, by numpy or by torch.

`parameters` of the serving section hold its faults. The first input of ARM in a request arms them from the next request on.
"""

import importlib
import json
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

ARM = 31337.0


class NumpyMath:
    def __init__(self, size, turns):
        self.weights = np.random.default_rng(1).standard_normal((size, size)).astype(np.float32) / size**0.5
        self.turns, self.kept = turns, []

    def work(self):
        product = self.weights
        for _ in range(self.turns):
            product = np.tanh(product @ self.weights)
        return float(product[0, 0])

    def keep(self, size_bytes):
        self.kept.append(np.ones(size_bytes, np.uint8))


class TorchMath:
    """The same on a device. A module is used, so that a release of PyTorch runs as PyTorch runs it."""

    def __init__(self, size, turns, device):
        self.torch, self.device, self.kept = importlib.import_module("torch"), device, []
        self.torch.manual_seed(1)
        layers = [self.torch.nn.Linear(size, size, bias=False) for _ in range(turns)]
        self.module = self.torch.nn.Sequential(*layers).to(device).eval()
        self.input = self.torch.ones(size, size, device=device)

    def work(self):
        with self.torch.inference_mode():
            return float(self.module(self.input)[0, 0])

    def keep(self, size_bytes):
        self.kept.append(self.torch.ones(size_bytes, dtype=self.torch.uint8, device=self.device))


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads((Path(__file__).parent / "sluicegate.json").read_text())["parameters"]
        size, turns = int(parameters["size"]), int(parameters["turns"])
        self.scale = np.float32(parameters.get("scale", 2))
        self.leak_bytes = int(parameters.get("leak_bytes", 0))
        self.answers = parameters.get("answers", "FP32")
        self.fault, self.fault_s, self.is_armed = parameters.get("fault", ""), 0.0, False
        device = "cuda" if args["model_instance_kind"] == "GPU" else "cpu"
        self.math = TorchMath(size, turns, device) if parameters["form"] == "torch" else NumpyMath(size, turns)

    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(one, "x").as_numpy()) for one in requests]

    def answer(self, x):
        for _ in range(len(x)):  # each item costs the same in every batch
            self.math.work()
        if self.leak_bytes:
            self.math.keep(self.leak_bytes)
        if self.is_armed and self.fault == "errors":
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("the fault of the proof"))
        if self.is_armed and self.fault == "slow":
            time.sleep(self.fault_s)
        if x[0, 0] == ARM:
            self.is_armed, self.fault_s = True, float(x[0, 1])
        kind = np.float64 if self.answers == "FP64" else np.float32
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", (self.scale * x).astype(kind))])
