"""Real plans of TensorRT for RTX: what their headers hold, and every reason to refuse one, by the check, the seal and the fit.

The builder needs no GPU. No plan is run here.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from onnx import TensorProto, helper

from accounts.actions import actor_for
from accounts.core.access import Actor
from ledger.core.errors import DomainError
from registry import actions
from registry.core.engine_flavour import RTX
from registry.core.engine_profile import InputProfile
from registry.core.formats import HEAD_BYTES, inspect
from registry.models import Release, ServedModel
from serving.targets.adapters import tensorrt
from tests.support.rigs.tensorrt_rig import use_rtx
from tests.support.worlds.factories import make_node
from tests.support.worlds.golden_models import INPUTS, OUTPUTS, embedding_graph
from tests.support.worlds.model_files import plan_file
from tests.support.worlds.registry_samples import IMAGE, person, put, release_yaml, served_model, sha256

pytestmark = [
    pytest.mark.real("tensorrt-rtx", "onnx"),
    pytest.mark.shows("builder:tensorrt-rtx"),
    pytest.mark.django_db,
]
PLAN = "artifact/model.plan"
#: Of the plans here, so that tests need not name the installed version.
CAPABILITY, OTHER = "8.9", "8.6"


def dynamic_graph() -> bytes:
    """y = |x|, of any number of columns."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


#: Kind of plan → (graph, least, usual and largest shape of its input x, the dims of x and y in serving).
KINDS: dict[str, tuple[Callable[[], bytes], tuple[tuple[int, ...], ...], list[int], list[int]]] = {
    "FP32": (embedding_graph, ((1, INPUTS), (4, INPUTS), (8, INPUTS)), [INPUTS], [OUTPUTS]),
    "FP16": (lambda: embedding_graph(is_half=True), ((1, INPUTS), (4, INPUTS), (8, INPUTS)), [INPUTS], [OUTPUTS]),
    "dynamic": (dynamic_graph, ((1, 1), (4, 16), (8, 64)), [-1], [-1]),
}

#: Kinds with a matrix product in FP32, for which TensorRT for RTX 1.7.1 has no kernel on 7.5.
NOT_FOR_TURING = {"FP32", "FP16"}


@cache
def built(kind: str, capability: str = CAPABILITY) -> bytes:
    """A plan by the real builder, which the fixture `rtx` has made importable."""
    graph, shapes, *_ = KINDS[kind]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(graph())
        options = tensorrt.BuildOptions(compute_capability=capability, workspace_mib=64)
        return tensorrt.Graph(path, [InputProfile("x", *shapes)], RTX).build(options).plan


@pytest.fixture(autouse=True)
def rtx(monkeypatch: pytest.MonkeyPatch) -> Any:
    return use_rtx(monkeypatch)


@pytest.fixture
def dev(api: Callable[..., Any]) -> Any:
    user = person("dev")
    served_model(actor_for(user), contract={})
    return api(user)


def document(kind: str, version: str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """A release.yaml that agrees with the plan of that kind, with changes."""
    _, shapes, x, y = KINDS[kind]
    profile = dict(zip(("min", "opt", "max"), map(list, shapes), strict=True))
    return release_yaml(
        {
            "runtime.backend": "tensorrt",
            "serving": {
                "max_batch_size": 8,
                "inputs": [{"name": "x", "data_type": "FP32", "dims": x}],
                "outputs": [{"name": "y", "data_type": "FP32", "dims": y}],
                "instance_group": [{"kind": "gpu", "count": 1}],
            },
            "envelope": {
                "accelerator": {"vendor": "nvidia", "memory_mib_min": 512},
                "limits": {"max_input_dims": {"x": [shapes[2][1]]}},
                "engine": {
                    "type": "trt-plan",
                    "flavour": "rtx",
                    "builder_version": version,
                    "built_on": {"compute_capability": CAPABILITY},
                    "workspace_mib": 64,
                    "optimization_profiles": [{"input": "x", **profile}],
                },
            },
            **(changes or {}),
        }
    )


def checked(client: Any, said: dict[str, Any], plan: bytes) -> list[tuple[str, str]]:
    """[(field, message and next step)] that `sluicegate check` finds: the server in the first bytes, the command in the whole file."""
    head = base64.b64encode(plan[:HEAD_BYTES]).decode()
    file = {"path": PLAN, "size_bytes": len(plan), "sha256": sha256(plan), "head": head}
    answer = client.post("/api/v1/models/sentiment/releases:check", {"document": said, "files": [file]}, format="json")
    assert answer.status_code == 200, answer.json()
    whole = [one.as_json() for one in inspect(PLAN, io.BytesIO(plan), len(plan)).problems]
    found = [(one["field"], f"{one['message']} {one['fix']}") for one in [*answer.json()["problems"], *whole]]
    return list(dict.fromkeys(found))


def sealed(said: dict[str, Any], plan: bytes) -> Release:
    """The release, sent and sealed as a client does. Raises DomainError."""
    actor, model = Actor.system("tests"), ServedModel.objects.get(slug="sentiment")
    draft, _ = actions.create_draft(actor=actor, model=model, spec=deepcopy(said))
    put(actor, draft, PLAN, plan)
    return actions.seal(actor=actor, release=draft)


def refusals(said: dict[str, Any], plan: bytes) -> list[tuple[str, str]]:
    """[(field, message and next step)] with which the draft, the upload or the seal refuses."""
    with pytest.raises(DomainError) as refused:
        sealed(said, plan)
    return [(one["field"], f"{one['message']} {one['fix']}") for one in refused.value.facts["errors"]]


# --- what a plan is


@pytest.mark.parametrize("capability", RTX.capabilities)
@pytest.mark.parametrize("kind", KINDS)
def test_the_header_of_a_plan_holds_flavour_version_and_compute_capability(
    kind: str, capability: str, rtx: Any
) -> None:
    if capability == "7.5" and kind in NOT_FOR_TURING:
        with pytest.raises(tensorrt.TensorRTError) as refused:
            built(kind, capability)
        assert "built no plan from model.onnx" in str(refused.value)
        assert any("Turing (SM75): FP32 GEMM is not supported" in one for one in refused.value.details)
        return
    plan = built(kind, capability)
    facts = inspect(PLAN, io.BytesIO(plan), len(plan)).facts
    assert (facts["flavour"], facts["tensorrt"]) == ("rtx", rtx.__version__)
    assert facts["compute_capabilities"] == [capability]
    assert int.from_bytes(plan[16:24], "little") == len(plan), "the header counts the whole plan"


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_that_agrees_with_its_envelope_is_sealed(dev: Any, rtx: Any, kind: str) -> None:
    said = document(kind, rtx.__version__)
    assert checked(dev, said, built(kind)) == []
    release = sealed(said, built(kind))
    [header] = dev.get(f"/api/v1/models/sentiment/releases/{release.name}/headers").json()["results"]
    facts = header["facts"]
    assert (facts["flavour"], facts["tensorrt"], facts["compute_capabilities"]) == (
        "rtx",
        rtx.__version__,
        [CAPABILITY],
    )


# --- why a plan is refused: each row for each kind of plan, by the check and by the seal

ENGINE, ACCELERATOR = "envelope.engine", "envelope.accelerator"
PROFILE = f"{ENGINE}.optimization_profiles"


def same(plan: bytes) -> bytes:
    return plan


def of_another_version(plan: bytes) -> bytes:
    return plan[:24] + bytes([1, 6, 1, 120]) + plan[28:]


Spoil = Callable[[bytes], bytes]
#: Reason → (what is done to the plan, changes of release.yaml, the problem's field, parts of its text).
ROWS: dict[str, tuple[Spoil, dict[str, Any], str, tuple[str, ...]]] = {
    "the flavour is not declared": (
        same, {f"{ENGINE}.flavour": ...}, f"{ENGINE}.flavour",
        ("a plan of TensorRT for RTX", "without envelope.engine.flavour it is standard", "Write rtx if the runtime has"),
    ),
    "another flavour is declared": (
        same, {f"{ENGINE}.flavour": "standard"}, f"{ENGINE}.flavour",
        ("a plan of TensorRT for RTX", "envelope.engine.flavour is standard", "send a plan of TensorRT."),
    ),
    "the plan is of the other flavour": (
        lambda plan: plan_file(b"x" * 99), {}, f"{ENGINE}.flavour",
        ("a plan of TensorRT, ", "envelope.engine.flavour is rtx", "Write standard if the runtime has TensorRT, "),
    ),
    "another version is declared": (
        same, {f"{ENGINE}.builder_version": "1.6"}, f"{ENGINE}.builder_version", ("1.6 is not what built", "Write \""),
    ),
    "the plan is of another version": (
        of_another_version, {}, f"{ENGINE}.builder_version", ("which says 1.6.1.120 in its header", 'Write "1.6.1.120"'),
    ),
    "another compute capability is declared": (
        same, {f"{ENGINE}.built_on.compute_capability": OTHER}, f"{ENGINE}.built_on.compute_capability",
        ("8.6 is not what", "its header has 8.9", 'Write "8.9"'),
    ),
    "an H100 is declared": (
        same, {f"{ENGINE}.built_on.compute_capability": "9.0"}, f"{ENGINE}.built_on.compute_capability",
        ("builds no plan for compute capability 9.0 (H100, H200), only for 7.5, 8.0, 8.6, 8.9, 12.0, 12.1", "flavour: standard"),
    ),
    "other compute capabilities are asked for": (
        same, {f"{ACCELERATOR}.compute_capability": {"any_of": ["8.0", OTHER]}}, f"{ENGINE}.built_on.compute_capability",
        ("built for compute capability 8.9", "any_of allows 8.0, 8.6 only", "Build the plan for 8.0"),
    ),
    "a later compute capability is asked for": (
        same, {f"{ACCELERATOR}.compute_capability": {"min": "12.0"}}, f"{ENGINE}.built_on.compute_capability",
        ("built for compute capability 8.9", "asks for 12.0 or later", "ask for 8.9"),
    ),
    "another GPU is asked for": (
        same, {f"{ACCELERATOR}.sku_allow": ["NVIDIA-A10"]}, f"{ENGINE}.built_on.compute_capability",
        ("sku_allow allows NVIDIA-A10 (8.6) only", "Build the plan for 8.6"),
    ),
    "an H100 is asked for": (
        same, {f"{ACCELERATOR}.sku_allow": ["NVIDIA-H100-80GB-HBM3"], f"{ENGINE}.built_on": ...}, f"{ACCELERATOR}.sku_allow",
        ("9.0 (H100, H200)", "Ask for another GPU, or write flavour: standard"),
    ),
    "it is to load in later versions": (
        same, {f"{ENGINE}.version_compatible": True}, f"{ENGINE}.version_compatible", ("builds no such plan", "Remove it"),
    ),
    "it is to run on other GPUs": (
        same, {f"{ENGINE}.hardware_compatibility": "ampere_plus"}, f"{ENGINE}.hardware_compatibility",
        ("builds no such plan", "Remove it"),
    ),
    "serving lets in larger batches": (
        same, {"serving.max_batch_size": 16}, f"{PROFILE}[0]",
        ("takes batches of 1 to 8, and serving lets in 1 to 16", "Write a batch of 1 in min and of 16 in max"),
    ),
    "a single item is too few": (
        same, {f"{PROFILE}.0.min.0": 2}, f"{PROFILE}[0]", ("takes batches of 2 to 8", "Write a batch of 1 in min"),
    ),
    "the profile has another number of dims": (
        same, {f"{PROFILE}.0": {"input": "x", "min": [1], "opt": [4], "max": [8]}}, f"{PROFILE}[0]",
        ("x has 2 dimensions with the batch axis, the profile has 1", "Give as many"),
    ),
    "the profile is of an input that is not served": (
        same, {f"{PROFILE}.0.input": "pixels"}, f"{PROFILE}[0].input", ("has no 'pixels'", "The inputs are x"),
    ),
    "the device is smaller than plan and workspace": (
        same, {f"{ACCELERATOR}.memory_mib_min": 64}, f"{ACCELERATOR}.memory_mib_min",
        ("64 MiB cannot hold the weights and a workspace of 64 MiB", "Ask for at least 65"),
    ),
    "the declared peak is smaller than plan and workspace": (
        same, {f"{ACCELERATOR}.memory_mib_peak_declared": 64}, f"{ACCELERATOR}.memory_mib_peak_declared",
        ("64 MiB cannot hold the weights and a workspace of 64 MiB", "Ask for at least 65"),
    ),
    "it is cut": (lambda plan: plan[:-1], {}, PLAN, ("it is truncated: its header counts", "unchanged")),
    "it is cut in its header": (lambda plan: plan[:30], {}, PLAN, ("it has 30 bytes, fewer than a plan's header", "unchanged")),
    "it goes on after its end": (lambda plan: plan + b"more", {}, PLAN, ("longer than the plan in it", "unchanged")),
    "it begins with metadata": (
        lambda plan: b'\x0c\x00\x00\x00{"names": 1}' + plan, {}, PLAN, ("it has metadata before the plan", "Strip the metadata"),
    ),
    "it is something else": (lambda plan: b"GGUF" + plan[4:], {}, PLAN, ("does not begin as a TensorRT plan does", "unchanged")),
    "it is empty": (lambda plan: b"", {}, PLAN, ("it is empty", "Send the file")),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("row", ROWS)
def test_a_plan_that_does_not_fit_is_refused_with_its_reason(dev: Any, rtx: Any, kind: str, row: str) -> None:
    spoil, changes, field, parts = ROWS[row]
    plan, said = spoil(built(kind)), document(kind, rtx.__version__, changes)
    for where, found in (("check", checked(dev, said, plan)), ("seal", refusals(said, plan))):
        told = [text for at, text in found if at.endswith(field)]
        assert len(found) == 1 and told, f"{where} found {found}"
        assert all(part in told[0] for part in parts), f"{where}: {told[0]}"


@pytest.mark.parametrize(
    ("kind", "changes", "parts"),
    [
        ("dynamic", {"envelope.limits.max_input_dims.x": [128]}, ("takes dims up to [64]", "lets in [128]", "Write [128] in max")),
        ("FP32", {f"{PROFILE}.0.max.1": INPUTS + 1}, ("x has the dims [8], which the profile contradicts", "where the size is fixed")),
    ],
)  # fmt: skip
def test_dims_that_the_plan_would_refuse_are_not_let_in(
    dev: Any, rtx: Any, kind: str, changes: dict[str, Any], parts: tuple[str, ...]
) -> None:
    said = document(kind, rtx.__version__, changes)
    for found in (checked(dev, said, built(kind)), refusals(said, built(kind))):
        [(field, text)] = found
        assert field.endswith(f"{PROFILE}[0]") and all(part in text for part in parts), text


# --- where it fits


def labels(major: int, minor: int) -> dict[str, str]:
    compute = {"nvidia.com/gpu.compute.major": str(major), "nvidia.com/gpu.compute.minor": str(minor)}
    return {"nvidia.com/gpu.count": "1", "nvidia.com/gpu.product": "GPU", "nvidia.com/gpu.memory": "23034", **compute}


@pytest.mark.parametrize(
    ("versions", "compute", "verdict", "says"),
    [
        ({"tensorrt_rtx": ...}, (8, 9), "yes", "the plan was built for 8.9"),
        ({"tensorrt_rtx": "1.6.1.120"}, (8, 9), "no", "The node has TensorRT for RTX 1.6.1.120; the plan loads in"),
        ({"tensorrt": "10.3.0"}, (8, 9), "no", "The node has TensorRT 10.3.0; the plan loads in TensorRT for RTX only."),
        ({}, (8, 9), "unknown", "The node tells no TensorRT for RTX"),
        ({"tensorrt_rtx": ...}, (9, 0), "no", "The node has compute capability 9.0; the plan was built for 8.9"),
    ],
)  # fmt: skip
def test_a_plan_fits_a_node_of_its_version_and_compute_capability(
    dev: Any, rtx: Any, versions: dict[str, Any], compute: tuple[int, int], verdict: str, says: str
) -> None:
    """The envelope declares neither: both facts are the header's."""
    engine = {f"{ENGINE}.builder_version": ..., f"{ENGINE}.built_on": ...}
    release = sealed(document("FP32", rtx.__version__, engine), built("FP32"))
    own = {name: rtx.__version__ if version is ... else version for name, version in versions.items()}
    runtime = {"image": IMAGE, "server": "triton", "backends": ["tensorrt"], "versions": own}
    make_node("node", facts={"labels": labels(*compute)}, runtimes=[runtime])
    [told] = dev.get(f"/api/v1/models/sentiment/releases/{release.name}/fit").json()["results"]
    assert told["verdict"] == verdict, told
    assert any(says in reason["message"] for reason in told["reasons"] if reason["verdict"] == verdict), told
