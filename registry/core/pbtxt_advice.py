"""Fields of Triton's config.pbtxt that a release has no place for: the consequence of each, and the next step.

Only fields that change no answer may simply be removed. Source: Triton's model_config.proto and docs/user_guide/
model_configuration.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from registry.core.kinds.triton import TRITON


@dataclass(frozen=True)
class Advice:
    """`means`: the consequence, as a sentence. `fix`: what to do; it begins with "Remove" only if nothing is lost."""

    means: str
    fix: str


def _harmless(name: str, why: str) -> Advice:
    return Advice(f"It changes no answer: {why}.", f"Remove {name}.")


_SHAPE_TENSOR: Final = Advice(
    "A plan whose input or output is a shape cannot be served here.",
    "Build the plan with fixed sizes or optimization profiles, so that no tensor of it is a shape.",
)
_LAYOUT: Final = Advice(
    "Callers send and receive plain row-major tensors.",
    "Build the plan with linear formats for its inputs and outputs.",
)
_RESHAPE: Final = Advice(
    "The server passes tensors on as callers send them, so the model would get another shape than it takes.",
    "Write the model's own shape as dims, here and in release.yaml, or put a Reshape into the graph. Then remove reshape.",
)
_PRIORITIES: Final = Advice(
    "The server's queue has one level, so all requests would wait alike.",
    "Give requests classes in the model's traffic_policy: the gateway sheds the less important ones first.",
)
_RAGGED: Final = Advice(
    "The server joins only requests of equal shapes, so the model would miss the tensors that describe a ragged batch.",
    "Let the model take padded inputs with a mask, and pad in the caller or in artifact/model.py.",
)

#: Message of Triton's protobuf → field → advice.
ADVICE: Final[dict[str, dict[str, Advice]]] = {
    "ModelConfig": {
        "runtime": _harmless("runtime", "runtime.image in release.yaml decides which libraries run the model"),
        "version_policy": _harmless("version_policy", "a server serves one release"),
        "metric_tags": _harmless("metric_tags", "every count is labelled with model and release here"),
        "model_metrics": _harmless("model_metrics", "latencies are measured at the gateway here"),
        "response_cache": _harmless("response_cache", "every request is computed here"),
        "batch_input": _RAGGED,
        "batch_output": _RAGGED,
        "sequence_batching": Advice(
            "Requests of one sequence do not meet the same server, so state between requests would be lost.",
            "Pass the state as an input and an output of each request, or send a sequence as one request.",
        ),
        "ensemble_scheduling": Advice(
            "It is the model: without it nothing connects the steps. A release is one model.",
            "Join the steps in one graph, or call them from artifact/model.py (runtime.backend: python). Or push each step "
            "as a model of its own, and let the caller pass the answers on.",
        ),
        "default_model_filename": Advice(
            "The file that a backend loads has a fixed name here.",
            "Rename the file to artifact/model.onnx, model.py, model.pt or model.plan. Then remove default_model_filename.",
        ),
        "cc_model_filenames": Advice(
            "A release has one engine plan, and every server loads that one.",
            "Push one release for each kind of GPU, each with its plan as artifact/model.plan.",
        ),
        "model_warmup": Advice(
            "The first users would wait for a cold model: warm-up requests come from release.yaml.",
            "List them under serving.warmup in release.yaml. Then remove model_warmup.",
        ),
        "model_operations": Advice(
            "A release cannot bring libraries, so the graph's own operators would be missing.",
            "Export the graph with standard operators, or use a runtime image that has the library.",
        ),
        "model_repository_agents": Advice(
            "No agent of Triton runs: an agent that decrypts or changes files would leave them as they are.",
            "Put the files into artifact/ as the server loads them; digests are checked without an agent.",
        ),
    },
    "ModelOptimizationPolicy": {
        **{
            name: _harmless(name, "it is about speed alone, which the load gate measures")
            for name in (
                "graph",
                "priority",
                "cuda",
                "input_pinned_memory",
                "output_pinned_memory",
                "gather_kernel_buffer_threshold",
                "eager_batching",
            )
        },
        "execution_accelerators": Advice(
            "An accelerator computes in other kernels and may compute in FP16, so the answers would be others.",
            "Export the graph in that precision, or build a plan of it: artifact/model.plan (runtime.backend: tensorrt). "
            "Then remove execution_accelerators.",
        ),
    },
    "ModelInput": {
        "format": _harmless("format", "the order of the dimensions is that of dims"),
        "reshape": _RESHAPE,
        "optional": Advice(
            "Every caller would have to send it: a declared input is needed in each request.",
            "Push a graph in which the input has a default, and do not declare it. Or bring code (runtime.backend: python) that "
            "takes one input and fills in what is missing.",
        ),
        "allow_ragged_batch": _RAGGED,
        "is_shape_tensor": _SHAPE_TENSOR,
        "is_non_linear_format_io": _LAYOUT,
    },
    "ModelOutput": {
        "reshape": _RESHAPE,
        "label_filename": Advice(
            "Class names would be lost: an answer to a classification request holds numbers alone.",
            "Let the model answer the names as a BYTES output, or map numbers to names in the caller. Then remove label_filename.",
        ),
        "is_shape_tensor": _SHAPE_TENSOR,
        "is_non_linear_format_io": _LAYOUT,
    },
    "ModelDynamicBatching": {
        "preserve_ordering": _harmless("preserve_ordering", "each answer belongs to its request"),
        "priority_levels": _PRIORITIES,
        "default_priority_level": _PRIORITIES,
        "priority_queue_policy": _PRIORITIES,
    },
    "ModelInstanceGroup": {
        "name": _harmless("name", "instances need no name"),
        "host_policy": _harmless("host_policy", "the agent decides on which processors a server runs"),
        "rate_limiter": Advice(
            "Instances run whenever they have a request, so a shared resource would not be protected.",
            "Bound the model instead: envelope.limits.max_concurrency, or a smaller count of instances.",
        ),
        "gpus": Advice(
            "The agent gives each server its devices, and instances run on each of them.",
            "Declare how many it needs as envelope.accelerator.count. Then remove gpus.",
        ),
        "secondary_devices": Advice(
            "Deep-learning accelerators (DLA) are not given to servers here.", "Build the plan for the GPU."
        ),
        "profile": Advice(
            "The server chooses among the profiles of the plan by the shape of each request.",
            "Build the plan with the profile that fits your requests. Then remove profile.",
        ),
        "passive": Advice(
            "Every instance gets requests here, so this one would answer too.",
            "Remove the whole instance group, unless it should answer.",
        ),
    },
}


def advice_for(message: str, field: str) -> Advice:
    """The advice for a field that a release has no place for."""
    unknown = Advice(
        "It is a field that this installation does not know.",
        f"Remove {field}, if the model answers the same without it.",
    )
    return ADVICE.get(message, {}).get(field, unknown)


def backend_fix(backend: str) -> str:
    """What to do about a config.pbtxt that names another backend than release.yaml does."""
    if backend in TRITON.backends:
        return "Make the two equal."
    if backend == "ensemble":
        return ADVICE["ModelConfig"]["ensemble_scheduling"].fix
    return (
        f"Releases run on {', '.join(TRITON.backends)}. Convert the model to ONNX, or load it in artifact/model.py "
        "(runtime.backend: python)."
    )
