"""What the product uses of NVIDIA's `tensorrt` module, on ONNX Runtime: a plan is a header, its profile and the graph.

It keeps the bindings' manners: failures are False, None or -1 with words in the log, the parser keeps a list of errors, shapes
beyond the profile are refused, and nothing runs without an address for every tensor. `python -m pytest tests/contracts/test_tensorrt.py`
runs the same contract on the real module. `fault` changes an output; `refuses_to` names what fails.
"""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np
import onnx
import onnxruntime

from tests.support.worlds.model_files import plan_file

__version__ = "10.3.0"
#: (output, answer) → the answer that is given instead.
fault: Callable[[str, Any], Any] = lambda name, answer: answer  # noqa: E731
#: "builder", "build", "runtime", "load", "context", "execute".
refuses_to: set[str] = set()
#: Names of inputs and outputs that hold shapes, and so lie on the host.
shape_tensors: set[str] = set()
#: Of the last build.
built: dict[str, Any] = {}


class Severity(IntEnum):
    INTERNAL_ERROR = 0
    ERROR = 1
    WARNING = 2


class ILogger:
    Severity = Severity

    def __init__(self) -> None:
        self.is_ready = True

    def log(self, severity: Any, msg: str) -> None:
        """Whoever uses the module brings its own; this one says what the bindings say where nobody did."""
        raise RuntimeError('Tried to call pure virtual function "nvinfer1::ILogger::log"')


class DataType(IntEnum):
    FLOAT = 0
    HALF = 1
    INT32 = 3
    BF16 = 7
    INT64 = 8
    BOOL = 4


_OF_ONNX = {
    1: DataType.FLOAT,
    10: DataType.HALF,
    6: DataType.INT32,
    7: DataType.INT64,
    9: DataType.BOOL,
    16: DataType.BF16,
}
_NUMPY = {
    DataType.FLOAT: np.float32,
    DataType.HALF: np.float16,
    DataType.INT32: np.int32,
    DataType.INT64: np.int64,
    DataType.BOOL: np.bool_,
}


def nptype(kind: DataType) -> Any:
    if kind not in _NUMPY:
        raise TypeError("no such type in numpy")
    return _NUMPY[kind]


class NetworkDefinitionCreationFlag(IntEnum):
    STRONGLY_TYPED = 1


class BuilderFlag(IntEnum):
    TF32 = 1
    VERSION_COMPATIBLE = 2


class HardwareCompatibilityLevel(IntEnum):
    NONE = 0
    AMPERE_PLUS = 1
    SAME_COMPUTE_CAPABILITY = 2


class MemoryPoolType(IntEnum):
    WORKSPACE = 0


class TensorIOMode(IntEnum):
    NONE = 0
    INPUT = 1
    OUTPUT = 2


class TensorLocation(IntEnum):
    DEVICE = 0
    HOST = 1


def _start(what: str, logger: ILogger) -> None:
    if what in refuses_to:
        logger.log(Severity.INTERNAL_ERROR, "[cudaInitializer] CUDA initialization failure with error: 35")
        raise TypeError("pybind11::init(): factory function returned nullptr")


class _Tensor:
    def __init__(self, value: Any) -> None:
        self.name = value.name
        kind = value.type.tensor_type
        self.dtype = _OF_ONNX[kind.elem_type]
        self.shape = tuple(one.dim_value if one.HasField("dim_value") else -1 for one in kind.shape.dim)


class _Network:
    def __init__(self, flags: int) -> None:
        self.flags, self.model = flags, onnx.ModelProto()

    @property
    def inputs(self) -> list[_Tensor]:
        weights = {one.name for one in self.model.graph.initializer}
        return [_Tensor(one) for one in self.model.graph.input if one.name not in weights]

    @property
    def num_inputs(self) -> int:
        return len(self.inputs)

    def get_input(self, at: int) -> _Tensor:
        return self.inputs[at]


class _ParserError:
    def __init__(self, desc: str, node: int = -1, name: str = "", operator: str = "") -> None:
        self._desc, self._node, self._name, self._operator = desc, node, name, operator

    def desc(self) -> str:
        return self._desc

    def node(self) -> int:
        return self._node

    def node_name(self) -> str:
        return self._name

    def node_operator(self) -> str:
        return self._operator


class OnnxParser:
    def __init__(self, network: _Network, logger: ILogger) -> None:
        self.network, self.errors = network, list[_ParserError]()

    def parse_from_file(self, model: str) -> bool:
        try:
            self.network.model = onnx.load(model)
            self.network.model.graph.output[0]
        except Exception:
            self.errors.append(_ParserError("Failed to parse ONNX model from file"))
            return False
        for at, node in enumerate(self.network.model.graph.node):
            if node.domain:
                self.errors.append(
                    _ParserError("Plugin not found,\n are the libraries loaded?", at, node.name, node.op_type)
                )
        return not self.errors

    @property
    def num_errors(self) -> int:
        return len(self.errors)

    def get_error(self, at: int) -> _ParserError:
        return self.errors[at]


class _Profile:
    def __init__(self) -> None:
        self.shapes: dict[str, list[tuple[int, ...]]] = {}

    def set_shape(self, name: str, low: tuple[int, ...], usual: tuple[int, ...], high: tuple[int, ...]) -> None:
        if not len(low) == len(usual) == len(high) or any(
            not a <= b <= c for a, b, c in zip(low, usual, high, strict=True)
        ):
            raise ValueError("the shapes are not in order")
        self.shapes[name] = [low, usual, high]


class _Config:
    def __init__(self) -> None:
        self.flags, self.profiles = {BuilderFlag.TF32}, list[_Profile]()
        self.hardware_compatibility_level = HardwareCompatibilityLevel.NONE
        self.limits = {MemoryPoolType.WORKSPACE: 23 << 30}  # the whole device, until somebody sets another

    def set_memory_pool_limit(self, pool: MemoryPoolType, size_bytes: int) -> None:
        self.limits[pool] = size_bytes

    def get_memory_pool_limit(self, pool: MemoryPoolType) -> int:
        return self.limits[pool]

    def set_flag(self, flag: BuilderFlag) -> None:
        self.flags.add(flag)

    def clear_flag(self, flag: BuilderFlag) -> None:
        self.flags.discard(flag)

    def add_optimization_profile(self, profile: _Profile) -> int:
        self.profiles.append(profile)
        return len(self.profiles) - 1


class Builder:
    def __init__(self, logger: ILogger) -> None:
        assert logger.is_ready, "ILogger.__init__ was not called"
        _start("builder", logger)
        self.logger = logger

    def create_network(self, flags: int = 0) -> _Network:
        return _Network(flags)

    def create_builder_config(self) -> _Config:
        return _Config()

    def create_optimization_profile(self) -> _Profile:
        return _Profile()

    def build_serialized_network(self, network: _Network, config: _Config) -> bytearray | None:
        shapes = config.profiles[0].shapes
        for one in network.inputs:  # each was looked at before, which is no reason to trust it
            sizes = shapes.get(one.name, [])
            is_fitting = sizes and all(
                len(size) == len(one.shape) and all(a in (-1, b) for a, b in zip(one.shape, size, strict=True))
                for size in sizes
            )
            if not is_fitting:
                self.logger.log(Severity.ERROR, f"4: [network.cpp::validate]  Error Code 4: profile of {one.name}")
                return None
        self.logger.log(Severity.WARNING, "a warning is no error")
        if "build" in refuses_to:
            self.logger.log(Severity.ERROR, "2: [virtualMemoryBuffer.cpp]\nError Code 2: OutOfMemory")
            return None
        built.update(flags=config.flags, level=config.hardware_compatibility_level, network=network.flags)
        is_portable = BuilderFlag.VERSION_COMPATIBLE in config.flags
        about = json.dumps({"shapes": shapes, "host_code": is_portable}).encode()
        head = plan_file(tensorrt=(10, 3, 0, 26))
        return bytearray(head + len(about).to_bytes(4, "little") + about + network.model.SerializeToString())


class Runtime:
    engine_host_code_allowed = False

    def __init__(self, logger: ILogger) -> None:
        _start("runtime", logger)
        self.logger = logger

    def deserialize_cuda_engine(self, plan: bytes) -> _Engine | None:
        head = len(plan_file())
        if "load" in refuses_to or plan[:4] != b"ftrt" or len(plan) < head + 4:
            self.logger.log(Severity.ERROR, "1: [stdArchiveReader.cpp] Error Code 1: the version tag does not match")
            return None
        at = head + 4 + int.from_bytes(plan[head : head + 4], "little")
        about = json.loads(plan[head + 4 : at])
        if about["host_code"] and not self.engine_host_code_allowed:
            self.logger.log(Severity.ERROR, "4: host code is not allowed")
            return None
        return _Engine(self.logger, about["shapes"], plan[at:])


class _Engine:
    def __init__(self, logger: ILogger, shapes: dict[str, list[list[int]]], graph: bytes) -> None:
        self.logger, self.shapes = logger, shapes
        network = _Network(0)
        network.model = onnx.load_from_string(graph)
        outputs = [_Tensor(one) for one in network.model.graph.output]
        self.inputs = [one.name for one in network.inputs]
        self.tensors = {one.name: one for one in [*network.inputs, *outputs]}
        self.session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])

    @property
    def num_io_tensors(self) -> int:
        return len(self.tensors)

    def get_tensor_name(self, at: int) -> str:
        return list(self.tensors)[at]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self.inputs else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        return self.tensors[name].dtype

    def get_tensor_location(self, name: str) -> TensorLocation:
        return TensorLocation.HOST if name in shape_tensors else TensorLocation.DEVICE

    def create_execution_context(self) -> _Context | None:
        return None if "context" in refuses_to else _Context(self)


class _Context:
    def __init__(self, engine: _Engine) -> None:
        self.engine = engine
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        low, _, high = self.engine.shapes[name]
        if len(shape) != len(high) or any(not a <= b <= c for a, b, c in zip(low, shape, high, strict=True)):
            self.engine.logger.log(Severity.ERROR, f"3: set_input_shape: {name} is beyond the profile")
            return False
        self.shapes[name] = shape
        return True

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        """Of an output: its batch is the inputs'; another free size depends on the data."""
        assert set(self.shapes) == set(self.engine.inputs), "asked before every input has a shape"
        own = self.engine.tensors[name].shape
        batch = next(iter(self.shapes.values()))[0]
        return tuple(batch if at == 0 and size == -1 else size for at, size in enumerate(own))

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return name in self.engine.tensors

    def execute_async_v3(self, stream_handle: int) -> bool:
        missing = set(self.engine.tensors) - set(self.addresses)
        if "execute" in refuses_to or missing or not stream_handle:
            self.engine.logger.log(Severity.ERROR, f"3: enqueueV3: no address for {sorted(missing)}")
            return False
        feed = {name: self._read(name) for name in self.engine.inputs}
        names = [name for name in self.engine.tensors if name not in feed]
        for name, answer in zip(names, self.engine.session.run(names, feed), strict=True):
            given = np.ascontiguousarray(fault(name, answer), answer.dtype)
            ctypes.memmove(self.addresses[name], given.ctypes.data, given.nbytes)
        return True

    def _read(self, name: str) -> Any:
        kind, shape = np.dtype(nptype(self.engine.tensors[name].dtype)), self.shapes[name]
        held = ctypes.string_at(self.addresses[name], kind.itemsize * math.prod(shape))
        return np.frombuffer(held, kind).reshape(shape)
