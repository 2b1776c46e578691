"""An ONNX graph: its inputs and outputs, its initializers, and the files beside it that hold their bytes.

Source: onnx/onnx.proto. Only the fields below are looked into. Nodes are counted; tensors and graphs inside their attributes, and
inside functions, are searched for bytes that lie in other files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from registry.core.formats.findings import LARGEST, MOST_TENSORS, Malformed, checked_tensors, elements_of, shown
from registry.core.formats.protobuf import Reader, Wire
from registry.core.formats.window import Window
from registry.core.schema import LONGEST_NAME

_FIX: Final = "Export it again with onnx.save, or send the whole file."
MOST_DIMS: Final = 32
#: A graph imports one for each domain of its operators; exporters write one to five.
MOST_OPSETS: Final = 100
#: Bytes of a name that are read: a character has 4 at most. A longer name is told by its beginning, and can be served by none.
_LONGEST_NAME: Final = 4 * (LONGEST_NAME + 1)
#: TensorProto.DataType → the Open Inference Protocol's name, or ONNX's own where that has none; bits of one element.
_TYPES: Final[dict[int, tuple[str, int]]] = {
    1: ("FP32", 32), 2: ("UINT8", 8), 3: ("INT8", 8), 4: ("UINT16", 16), 5: ("INT16", 16), 6: ("INT32", 32),
    7: ("INT64", 64), 8: ("BYTES", 0), 9: ("BOOL", 8), 10: ("FP16", 16), 11: ("FP64", 64), 12: ("UINT32", 32),
    13: ("UINT64", 64), 14: ("COMPLEX64", 64), 15: ("COMPLEX128", 128), 16: ("BF16", 16), 17: ("FP8E4M3FN", 8),
    18: ("FP8E4M3FNUZ", 8), 19: ("FP8E5M2", 8), 20: ("FP8E5M2FNUZ", 8), 21: ("UINT4", 4), 22: ("INT4", 4),
    23: ("FP4E2M1", 4), 24: ("FP8E8M0", 8), 25: ("UINT2", 2), 26: ("INT2", 2), 27: ("FP6E2M3", 6), 28: ("FP6E3M2", 6),
}  # fmt: skip
# field numbers of onnx.proto
_MODEL_GRAPH, _MODEL_OPSET, _MODEL_IR, _MODEL_PRODUCER, _MODEL_FUNCTIONS = 7, 8, 1, 2, 25
_GRAPH_NODE, _GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT = 1, 5, 11, 12
_GRAPH_SPARSE, _FUNCTION_NODE, _NODE_ATTRIBUTE, _MODEL_TRAINING = 15, 7, 5, 20
#: AttributeProto: t and tensors, g and graphs, sparse_tensor and sparse_tensors.
_ATTRIBUTE_TENSORS, _ATTRIBUTE_GRAPHS, _ATTRIBUTE_SPARSE = (5, 10), (6, 11), (22, 23)
#: Graphs inside graphs, as If and Loop have them.
DEEPEST: Final = 20
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_RAW, _TENSOR_EXTERNAL = 1, 2, 8, 9, 13


@dataclass
class _Graph:
    nodes: int = 0
    inputs: dict[str, tuple[str, list[int]]] = field(default_factory=dict)
    outputs: dict[str, tuple[str, list[int]]] = field(default_factory=dict)
    tensors: dict[str, tuple[str, list[int]]] = field(default_factory=dict)
    external: dict[str, int] = field(default_factory=dict)  # path beside the graph → bytes that it must have at least
    weights_bytes: int = 0  # of every tensor in the file or beside it


def read(window: Window) -> dict[str, Any]:
    """{"inputs", "outputs", "tensors", "external", "nodes", "weights_bytes", …}; a free dimension is -1.

    Raises Malformed.
    """
    reader, graph = Reader(window), _Graph()
    graphs, entries, opsets, said = 0, 0, dict[str, int](), dict[str, Any]()
    for part in reader.fields(0, window.size):
        if part.number == _MODEL_GRAPH:
            graphs += 1
            if graphs == 1:
                _read_graph(reader, _message(part), graph)
        elif part.number == _MODEL_FUNCTIONS:
            for inner in reader.fields(_message(part).start, part.end):
                if inner.number == _FUNCTION_NODE:
                    _search_node(reader, _message(inner), graph, 1)
        elif part.number == _MODEL_TRAINING:
            for inner in reader.fields(_message(part).start, part.end):
                if inner.number in (1, 2):  # initialization, algorithm
                    _search_graph(reader, _message(inner), graph, 1)
        elif part.number == _MODEL_OPSET:
            opsets |= _opset(reader, _message(part))
            entries += 1
            if entries > MOST_OPSETS:
                raise Malformed(f"it imports more than {MOST_OPSETS} operator sets", _FIX)
        elif part.number == _MODEL_IR and not part.is_bytes:
            said["ir_version"] = min(part.value, LARGEST)
        elif part.number == _MODEL_PRODUCER:
            said["producer"] = reader.text(part, 200)
    if graphs != 1 or not graph.outputs:
        raise Malformed("it does not hold one graph with an output", _FIX)
    inputs = {
        name: tensor for name, tensor in graph.inputs.items() if name not in graph.tensors
    }  # IR 3 lists weights too
    return {
        **said,
        "inputs": [[name, *tensor] for name, tensor in inputs.items()],
        "outputs": [[name, *tensor] for name, tensor in graph.outputs.items()],
        "tensors": checked_tensors(graph.tensors),
        "external": graph.external,
        "nodes": graph.nodes,
        "opsets": opsets,
        "weights_bytes": min(graph.weights_bytes, LARGEST),
    }


def _message(part: Wire) -> Wire:
    if not part.is_bytes:
        raise Malformed(f"field {part.number} is a number, and a message was to be there", _FIX)
    return part


def _opset(reader: Reader, message: Wire) -> dict[str, int]:
    domain, version = "", 0
    for part in reader.fields(message.start, message.end):
        if part.number == 1:
            domain = reader.text(part, 200)
        elif part.number == 2 and not part.is_bytes:
            version = min(part.value, LARGEST)
    return {domain or "ai.onnx": version}


def _read_graph(reader: Reader, message: Wire, graph: _Graph) -> None:
    for part in reader.fields(message.start, message.end):
        if part.number == _GRAPH_NODE:
            graph.nodes += 1
            _search_node(reader, _message(part), graph, 1)
        elif part.number == _GRAPH_SPARSE:
            _search_sparse(reader, _message(part), graph)
        elif part.number == _GRAPH_INITIALIZER:
            _initializer(reader, _message(part), graph)
        elif part.number in (_GRAPH_INPUT, _GRAPH_OUTPUT):
            name, tensor = _value_info(reader, _message(part))
            side = graph.inputs if part.number == _GRAPH_INPUT else graph.outputs
            if name in side:
                raise Malformed(f"the name {shown(name)} occurs twice among its inputs or outputs", _FIX)
            side[name] = tensor
        if len(graph.tensors) + len(graph.inputs) + len(graph.outputs) > MOST_TENSORS:
            raise Malformed(f"it names more than {MOST_TENSORS} tensors", "Split the graph.")


def _search_graph(reader: Reader, message: Wire, graph: _Graph, depth: int) -> None:
    """A graph inside a graph: only what it keeps in other files is of interest."""
    if depth > DEEPEST:
        raise Malformed(f"its graphs are nested more than {DEEPEST} deep", "Flatten the graph.")
    for part in reader.fields(message.start, message.end):
        if part.number == _GRAPH_NODE:
            _search_node(reader, _message(part), graph, depth)
        elif part.number == _GRAPH_INITIALIZER:
            _tensor(reader, _message(part), graph)
        elif part.number == _GRAPH_SPARSE:
            _search_sparse(reader, _message(part), graph)


def _search_node(reader: Reader, message: Wire, graph: _Graph, depth: int) -> None:
    for part in reader.fields(message.start, message.end):
        if part.number == _NODE_ATTRIBUTE:
            _search_attribute(reader, _message(part), graph, depth)


def _search_attribute(reader: Reader, message: Wire, graph: _Graph, depth: int) -> None:
    for part in reader.fields(message.start, message.end):
        if part.number in _ATTRIBUTE_TENSORS:
            _tensor(reader, _message(part), graph)
        elif part.number in _ATTRIBUTE_GRAPHS:
            _search_graph(reader, _message(part), graph, depth + 1)
        elif part.number in _ATTRIBUTE_SPARSE:
            _search_sparse(reader, _message(part), graph)


def _search_sparse(reader: Reader, message: Wire, graph: _Graph) -> None:
    for part in reader.fields(message.start, message.end):
        if part.number in (1, 2):  # values, indices
            _tensor(reader, _message(part), graph)


def _value_info(reader: Reader, message: Wire) -> tuple[str, tuple[str, list[int]]]:
    """(name, (data type, dims)); a type that is no tensor is "OTHER", and dims that are not told are [-2]."""
    name, tensor = "", ("OTHER", [-2])
    for part in reader.fields(message.start, message.end):
        if part.number == 1:
            name = reader.text(part, _LONGEST_NAME)
        elif part.number == 2:
            for kind in reader.fields(_message(part).start, part.end):
                if kind.number == 1:
                    tensor = _tensor_type(reader, _message(kind))
    if not name:
        raise Malformed("one of its inputs or outputs has no name", _FIX)
    return name, tensor


def _tensor_type(reader: Reader, message: Wire) -> tuple[str, list[int]]:
    data_type, dims = "OTHER", [-2]
    for part in reader.fields(message.start, message.end):
        if part.number == 1:
            data_type = _type_of(part)[0]
        elif part.number == 2:
            dims = []
            for dim in reader.fields(_message(part).start, part.end):
                size = -1
                for told in reader.fields(_message(dim).start, dim.end):
                    if told.number == 1 and 0 <= told.value <= LARGEST:
                        size = told.value
                dims.append(size)
                if len(dims) > MOST_DIMS:
                    raise Malformed(f"a tensor has more than {MOST_DIMS} dimensions", _FIX)
    return data_type, dims


def _type_of(part: Wire) -> tuple[str, int]:
    if part.is_bytes or part.value not in _TYPES:
        raise Malformed(f"a tensor has the unknown data type {part.value}", _FIX)
    return _TYPES[part.value]


def _initializer(reader: Reader, message: Wire, graph: _Graph) -> None:
    name, data_type, dims = _tensor(reader, message, graph)
    if name in graph.tensors:
        raise Malformed(f"two of its initializers are called {shown(name)}", _FIX)
    graph.tensors[name] = (data_type, dims)


def _tensor(reader: Reader, message: Wire, graph: _Graph) -> tuple[str, str, list[int]]:
    """(name, data type, shape), once its bytes are as many as those say, here or in another file."""
    name, (data_type, bits), dims, raw = "", ("OTHER", 0), list[int](), -1
    external: dict[str, str] = {}
    for part in reader.fields(message.start, message.end):
        if part.number == _TENSOR_NAME:
            name = reader.text(part, _LONGEST_NAME)
        elif part.number == _TENSOR_TYPE:
            data_type, bits = _type_of(part)
        elif part.number == _TENSOR_DIMS:
            dims += reader.numbers(part, MOST_DIMS)
        elif part.number == _TENSOR_RAW:
            raw = _message(part).end - part.start
        elif part.number == _TENSOR_EXTERNAL:
            external |= _entry(reader, _message(part))
    if len(dims) > MOST_DIMS or any(not 0 <= size <= LARGEST for size in dims):
        raise Malformed(f"{shown(name)} has dimensions that are not sizes", _FIX)
    size = (elements_of(dims) * bits + 7) // 8
    if raw >= 0 and bits and raw != size:
        raise Malformed(f"{shown(name)} is {data_type} {dims}, which is not its {raw} bytes", _FIX)
    if external:
        _external(name, external, size, graph)
    graph.weights_bytes += size
    return name, data_type, dims


def _entry(reader: Reader, message: Wire) -> dict[str, str]:
    key = value = ""
    for part in reader.fields(message.start, message.end):
        if part.number == 1:
            key = reader.text(part, 50)
        elif part.number == 2:
            value = reader.text(part, 1000)
    return {key: value}


def _external(name: str, told: dict[str, str], size: int, graph: _Graph) -> None:
    """Bytes beside the graph: the path stays in the graph's folder, whatever a runtime would let it do.

    Source: onnx docs/ExternalData.md; CVE-2024-27318 is a location that leaves the folder.
    """
    place = told.get("location", "").removeprefix("./")
    parts = place.split("/")
    if not place or place.startswith("/") or "\\" in place or ":" in place or {"", ".", ".."} & set(parts):
        raise Malformed(
            f"{shown(name)} lies in {shown(place)}, which leaves the graph's folder or names no file",
            "Save external data under a plain name beside the graph.",
        )
    offset, length = told.get("offset", "0"), told.get("length", "")
    if not all(number.isascii() and number.isdigit() and len(number) < 17 for number in (offset, length or "0")):
        raise Malformed(f"{shown(name)} has an offset or length that is no number", _FIX)
    if length and size and int(length) != size:
        raise Malformed(f"{shown(name)} takes {size} bytes, and {length} are named in {shown(place)}", _FIX)
    if int(offset) + size > LARGEST:
        raise Malformed(f"{shown(name)} would end beyond {LARGEST} bytes of {shown(place)}", _FIX)
    graph.external[place] = max(graph.external.get(place, 0), int(offset) + size)
