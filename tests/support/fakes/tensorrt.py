"""What the product uses of NVIDIA's `tensorrt` module: a plan is a header, its profile and the graph.

It keeps the bindings' manners: failures are False, None or -1 with words in the log, and the parser keeps a list of errors.
`python -m pytest tests/contracts/test_tensorrt.py` runs the same contract on the real module. `refuses_to` names what fails.
"""

from __future__ import annotations

import json
from enum import IntEnum
from typing import Any

import onnx

from tests.support.worlds.model_files import plan_file

__version__ = "10.3.0"
#: "builder", "build".
refuses_to: set[str] = set()
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
