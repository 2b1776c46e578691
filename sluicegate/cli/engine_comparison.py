"""One comparison of `sluicegate engine`: a plan and its graph asked the same, request by request, and judged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from registry.core.engine_flavour import Flavour
from registry.core.engine_profile import InputProfile
from registry.core.spec import Spec
from serving.adapters import tensorrt
from serving.adapters.cuda import Cuda, CudaError
from serving.adapters.onnx_reference import GraphError, OnnxReference
from sluicegate.cli.errors import refuse
from sluicegate.client.documents import text_of

if TYPE_CHECKING:  # the command line runs without numpy until arrays are at hand
    from validators.core.inputs import Arrays


@dataclass(frozen=True)
class Asked:
    """What is to be built or compared. `capability`: the compute capability to build for; None: that of this machine's GPU."""

    folder: Path
    onnx: Path
    spec: Spec
    profile: tuple[InputProfile, ...]
    flavour: Flavour
    examples: Path | None
    within: float | None
    seed: int
    capability: str | None = None
    is_compared: bool = True

    @property
    def declared(self) -> dict[str, Any]:
        engine: dict[str, Any] = self.spec.envelope.get("engine", {})
        return engine


def compared(
    asked: Asked, plan: bytes, cuda: Cuda, reference: OnnxReference, examples: Sequence[Arrays]
) -> dict[str, Any]:
    """The verdict on the plan, with what it rests on; made-up inputs where there are no examples. Raises BadPlan, and
    TensorRTError and CudaError where the plan cannot be loaded."""
    from validators.core import plan_agreement, plan_requests
    from validators.core.contract import tensors_of

    serving = asked.spec.serving
    inputs, outputs = tensors_of(serving, "inputs", are_sent=False), tensors_of(serving, "outputs", are_sent=False)
    has_batch_axis = serving["max_batch_size"] > 0
    answered: list[plan_agreement.AnswerPair] = []
    unknown = ""
    requests = plan_requests.plan_requests(
        inputs, asked.profile, has_batch_axis=has_batch_axis, seed=asked.seed, examples=examples
    )
    host_code = asked.declared.get("version_compatible", False)
    with tensorrt.Plan(plan, cuda, asked.flavour, host_code=host_code) as loaded:
        for request in requests:
            try:
                graph = reference.run(request.inputs, [one.name for one in outputs])
                own = loaded.run(request.inputs)
            except tensorrt.BadPlan:
                raise
            except (GraphError, CudaError, tensorrt.TensorRTError) as error:
                unknown = f"{request.name}: {error}"
                break
            answered.append(plan_agreement.AnswerPair(replace(request, inputs={}), graph, own))
    verdict, reason, found = plan_agreement.judge_plan(
        outputs,
        answered,
        precision=asked.declared.get("precision"),
        stated=asked.within,
        has_batch_axis=has_batch_axis,
    )
    if unknown and verdict is not plan_agreement.Agreement.FAILED:
        verdict, reason = plan_agreement.Agreement.UNKNOWN, unknown
    return {
        "verdict": verdict.value,
        "reason": reason,
        "details": [],
        "device": cuda.name,
        "compute_capability": cuda.compute_capability,
        "onnxruntime": reference.version,
        "profile": [one.as_json() for one in asked.profile],
        "requests": [one.request.name for one in answered],
        "outputs": [one.as_json() for one in found],
    }


def examples_of(asked: Asked) -> list[Arrays]:
    """The examples as arrays without a batch axis, none where no file was named. Raises CommandError naming the line of one that
    cannot be used."""
    if asked.examples is None:
        return []
    from validators.core.contract import tensors_of
    from validators.core.inputs import item_arrays
    from validators.core.plan_requests import outside_of

    path, tensors, found = asked.examples, tensors_of(asked.spec.serving, "inputs", are_sent=False), []
    has_batch_axis = asked.spec.serving["max_batch_size"] > 0
    for number, line in enumerate(text_of(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            item = item_arrays(tensors, json.loads(line)["inputs"])
            why = outside_of(asked.profile, item, has_batch_axis=has_batch_axis)
        except (ValueError, KeyError, TypeError) as error:
            why = f'it has no usable "inputs": {error}'
        if why:
            raise refuse(f"{path}, line {number}: {why}.", "Mend the line, or the declared profile.")
        found.append(item)
    if not found:
        raise refuse(f"{path} has no examples.", 'Write lines such as {"inputs": {"x": [1, 2]}}.')
    return found
