"""The estimate of a release's GPU memory, each number computed by hand."""

from __future__ import annotations

import io
from typing import Any

import pytest
from onnx import TensorProto, helper

from registry.core.formats import inspect
from registry.core.gpu_memory import MemoryEstimate, MemoryPart, estimate
from tests.support.worlds.model_files import gguf_file, plan_file, safetensors_file, torchscript_file

MIB = 1 << 20
GPU = [{"kind": "gpu", "count": 1}]
X = {"name": "x", "data_type": "FP32", "dims": [256]}
Y = {"name": "y", "data_type": "FP32", "dims": [256]}


def mib_of(found: MemoryEstimate, name: str) -> int | None:
    """MiB of a part; None if it is unknown."""
    return next(part.mib for part in found.parts if part.name == name)


def serving(batch: int = 512, count: int = 1, **changes: Any) -> dict[str, Any]:
    own = {"max_batch_size": batch, "inputs": [X], "outputs": [Y], "parameters": {}}
    return own | {"instance_group": [{"kind": "gpu", "count": count}]} | changes


def read(**files: bytes) -> dict[str, tuple[int, dict[str, Any]]]:
    """Files by name; `__` is a slash, and the last `_` a dot: artifact__model_onnx."""
    found = {}
    for name, data in files.items():
        path = ".".join(name.replace("__", "/").rsplit("_", 1))
        findings = inspect(path, io.BytesIO(data), len(data))
        assert findings.problems == ()
        found[path] = (len(data), findings.facts)
    return found


def of(backend: str, config: dict[str, Any], envelope: dict[str, Any] | None = None, **files: bytes) -> MemoryEstimate:
    found = estimate(backend, config, envelope or {}, read(**files))
    assert found is not None
    return found


def part(found: MemoryEstimate, name: str) -> MemoryPart:
    return next(one for one in found.parts if one.name == name)


def graph(width: int = 4096) -> bytes:
    """x [b, 256] → h [b, width] → y [b, 256], with weights of 2 × 256 × width floats."""
    floats = TensorProto.FLOAT
    weights = [
        helper.make_tensor("w1", floats, [256, width], bytes(1024 * width), raw=True),
        helper.make_tensor("w2", floats, [width, 256], bytes(1024 * width), raw=True),
    ]
    nodes = [helper.make_node("MatMul", ["x", "w1"], ["h"]), helper.make_node("MatMul", ["h", "w2"], ["y"])]
    made = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", floats, ["b", 256])],
        [helper.make_tensor_value_info("y", floats, ["b", 256])],
        weights,
    )  # fmt: skip
    data: bytes = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()
    return data


def test_an_onnx_graph_holds_its_weights_and_its_inputs_and_outputs() -> None:
    """Weights: 2 × 256 × 4096 × 4 bytes = 8 MiB. Inputs and outputs: 512 × 2 × 256 × 4 bytes = 1 MiB."""
    found = of("sluicegate-onnx", serving(), artifact__model_onnx=graph())
    assert [(one.name, one.mib) for one in found.parts] == [
        ("weights", 8), ("activations", 1), ("workspace", None), ("runtime", None),
    ]  # fmt: skip
    assert (found.total_mib, found.is_partial, found.certain_mib, found.amount) == (
        9,
        True,
        8,
        "about 9 MiB, without its unknown parts",
    )
    told = part(found, "activations")
    assert not told.is_whole and "between them are not counted" in told.source
    assert "cuDNN" in part(found, "workspace").source and "driver and device" in part(found, "runtime").source


def test_each_instance_has_a_session_of_its_own() -> None:
    found = of("sluicegate-onnx", serving(count=3), artifact__model_onnx=graph())
    assert (mib_of(found, "weights"), mib_of(found, "activations"), found.certain_mib) == (24, 3, 24)
    assert "in each of 3 instances" in part(found, "weights").source


def test_a_free_dimension_without_a_largest_size_is_unknown() -> None:
    free = serving(inputs=[{**X, "dims": [-1]}], outputs=[{**Y, "dims": [-1]}])
    found = part(of("sluicegate-onnx", free, artifact__model_onnx=graph()), "activations")
    assert found.mib is None and "no largest size" in found.source
    limits = {"limits": {"max_input_dims": {"x": [1024]}}}
    known = part(of("sluicegate-onnx", free, limits, artifact__model_onnx=graph()), "activations")
    assert (known.mib, known.is_whole) == (2, False)  # 512 × 1024 × 4 bytes


def test_code_with_safetensors_has_weights_alone_and_nothing_is_certain() -> None:
    """1024 × 1024 × 4 bytes and 1024 × 1024 × 2 bytes: 6 MiB."""
    weights = safetensors_file([("a", "F32", [1024, 1024]), ("b", "BF16", [1024, 1024])])
    found = of("python", serving(count=2), artifact__model_py=b"x = 1\n", artifact__w_safetensors=weights)
    assert (mib_of(found, "weights"), mib_of(found, "activations"), found.certain_mib) == (12, None, 0)
    assert "the code may load fewer" in part(found, "weights").source
    nothing = of("python", serving(), artifact__model_py=b"x = 1\n")
    assert mib_of(nothing, "weights") is None and nothing.total_mib == 0 and nothing.is_partial


LLAMA: dict[str, Any] = {
    "general.architecture": "llama", "llama.block_count": 32, "llama.embedding_length": 4096,
    "llama.attention.head_count": 32, "llama.attention.head_count_kv": 8,
}  # fmt: skip
CONFIG = b"""{"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
 "torch_dtype": "bfloat16"}"""


@pytest.mark.parametrize("files", [{"artifact__m_gguf": gguf_file([], LLAMA)}, {"artifact__config_json": CONFIG}])
def test_the_key_value_cache_of_a_transformer(files: dict[str, bytes]) -> None:
    """2 × 32 layers × 8 heads × 128 × 2 bytes = 128 KiB a token; × 4096 tokens × 4 requests = 2048 MiB."""
    limits = {"limits": {"max_total_tokens": 4096, "max_concurrency": 4}}
    found = part(of("python", serving(1), limits, artifact__model_py=b"x = 1\n", **files), "activations")
    assert (found.mib, found.is_whole) == (2048, False) and "131072 bytes a token" in found.source
    apart = {"limits": {"max_input_tokens": 4000, "max_output_tokens": 96}}
    assert mib_of(of("python", serving(1), apart, artifact__model_py=b"x = 1\n", **files), "activations") == 512
    silent = part(of("python", serving(1), {}, artifact__model_py=b"x = 1\n", **files), "activations")
    assert silent.mib is None and "declare envelope.limits.max_total_tokens" in silent.source


def test_a_transformer_without_a_known_dtype_says_what_to_add() -> None:
    for config in (CONFIG.replace(b"bfloat16", b"int3"), CONFIG.replace(b'"torch_dtype"', b'"other"')):
        found = of("python", serving(1), {}, artifact__model_py=b"x = 1\n", artifact__config_json=config)
        said = part(found, "activations").source
        assert said.startswith("artifact/config.json states layers and heads but no dtype") and "float16" in said


def test_a_transformer_whose_heads_are_not_one_number_is_unknown() -> None:
    odd = LLAMA | {"llama.attention.head_count_kv": ["8", "4"]}
    limits = {"limits": {"max_total_tokens": 4096}}
    found = of("python", serving(1), limits, artifact__model_py=b"x = 1\n", artifact__m_gguf=gguf_file([], odd))
    assert mib_of(found, "activations") is None


def test_gguf_weights_by_block() -> None:
    """4096 × 512 floats of 4 bytes: 8 MiB."""
    found = of("python", serving(), artifact__model_py=b"x = 1\n", artifact__m_gguf=gguf_file([("t", 0, [4096, 512])]))
    assert mib_of(found, "weights") == 8
    packed = read(artifact__m_gguf=gguf_file([("t", 0, [4096, 512])]))
    packed["artifact/m.gguf"][1]["tensors"] = [["t", "Q4_K", [4096, 512]]]  # 2^21 / 256 blocks of 144 bytes: 1.125 MiB
    blocks = estimate("python", serving(), {}, packed)
    assert blocks is not None and mib_of(blocks, "weights") == 2
    packed["artifact/m.gguf"][1]["tensors"] = [["t", "TYPE_99", [4096, 512]]]
    unknown = estimate("python", serving(), {}, packed)
    assert unknown is not None and mib_of(unknown, "weights") == 9 and "file sizes" in part(unknown, "weights").source


def test_a_plan_is_as_large_as_its_file_and_has_the_declared_workspace() -> None:
    """3 MiB of plan; x and y at the profile's largest batch of 1024: 1024 × 2 × 256 × 4 bytes = 2 MiB."""
    plan = plan_file(bytes(3 * MIB - 32))
    profile = {"input": "x", "min": [1, 256], "opt": [8, 256], "max": [1024, 256]}
    engine = {"engine": {"workspace_mib": 64, "optimization_profiles": [profile]}}
    found = of("tensorrt", serving(1024, 2), engine, artifact__model_plan=plan)
    assert [one.mib for one in found.parts] == [6, 4, 128, None] and found.certain_mib == 3
    assert not part(found, "activations").is_whole and "as declared" in part(found, "workspace").source
    fixed = of("tensorrt", serving(1, 2), artifact__model_plan=plan)  # one engine for both: fixed shapes
    assert (mib_of(fixed, "weights"), mib_of(fixed, "workspace")) == (3, None)


def test_torchscript_weights_are_its_data_records() -> None:
    import zipfile

    out = io.BytesIO(torchscript_file())
    with zipfile.ZipFile(out, "a") as archive:
        archive.writestr("model/data/0", bytes(2 * MIB))
        archive.writestr("model/constants/0", bytes(MIB))
    shared = of(
        "pytorch",
        serving(count=2) | {"parameters": {"ENABLE_WEIGHT_SHARING": "true"}},
        artifact__model_pt=out.getvalue(),
    )
    assert shared.certain_mib <= of("pytorch", serving(count=1), artifact__model_pt=out.getvalue()).certain_mib
    found = of("pytorch", serving(count=2), artifact__model_pt=out.getvalue())
    assert (mib_of(found, "weights"), mib_of(found, "activations")) == (6, 2) and found.certain_mib == 6


def test_a_release_that_asks_for_no_gpu_has_no_estimate() -> None:
    on_cpu = serving() | {"instance_group": [{"kind": "cpu", "count": 4}]}
    assert estimate("sluicegate-onnx", on_cpu, {}, {}) is None
    assert estimate("sluicegate-onnx", on_cpu, {"accelerator": {"vendor": "none"}}, {}) is None
    asks = estimate("sluicegate-onnx", on_cpu, {"accelerator": {"vendor": "nvidia"}}, {})
    assert asks is not None and asks.instances == 1 and mib_of(asks, "weights") is None
    assert estimate("tensorrt", on_cpu, {}, {}) is not None


def test_files_whose_headers_were_not_read_count_by_their_size() -> None:
    found = estimate("sluicegate-onnx", serving(), {}, {"artifact/model.onnx": (5 * MIB, {})})
    assert found is not None and mib_of(found, "weights") == 5 and "file sizes" in part(found, "weights").source
    assert not part(found, "activations").is_whole


def test_hostile_sizes_are_unknown() -> None:
    facts: dict[str, Any] = {"weights_bytes": 2**53 - 1}
    found = estimate("sluicegate-onnx", serving(), {}, {"artifact/model.onnx": (100, facts)})
    assert found is not None and mib_of(found, "weights") is None and found.certain_mib == 0
    assert "claim more bytes than the files hold" in part(found, "weights").source
    huge = serving(65_536, inputs=[{**X, "dims": [2**31 - 1, 2**31 - 1]}])
    beyond = estimate("pytorch", huge, {}, {})
    assert beyond is not None and mib_of(beyond, "activations") is None
    assert "more bytes than any device has" in part(beyond, "activations").source


def test_constants_in_inner_graphs_are_weights() -> None:
    value = helper.make_tensor_value_info
    constant = helper.make_node("Constant", [], ["k"], value=helper.make_tensor("k", 1, [256], bytes(1024), raw=True))
    inner = helper.make_graph([constant], "i", [], [value("k", 1, [256])])
    either = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    made = helper.make_graph([constant, either], "g", [value("c", 9, [1])], [value("y", 1, [256])])
    (_, facts) = read(artifact__model_onnx=helper.make_model(made).SerializeToString())["artifact/model.onnx"]
    assert facts["weights_bytes"] == 3 * 1024
