"""Warm-up and health-check requests, made from a release's own declarations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serving.ports import Inference, InferenceError, InferenceServer, LaunchError
from serving.servers.core.warm_requests import array, requests

__all__ = ["array", "check", "limits_of", "requests", "warm_up"]


def warm_up(
    server: InferenceServer, model: str, serving: dict[str, Any], *, limits: Mapping[str, Any], timeout_s: float
) -> None:
    """Asks every warm-up request once, `timeout_s` for each; `limits` are the envelope's. Raises LaunchError("warmup_failed")."""
    try:
        for tensors in requests(serving, limits):
            check(server.infer(model, tensors, timeout_s=timeout_s), serving)
    except ValueError as error:
        raise LaunchError(
            "warmup_failed", f"A warm-up request cannot be made: {error}. Correct serving.warmup and push again."
        ) from error
    except InferenceError as error:
        hint = (
            ""
            if serving.get("warmup")
            else " It was made up from the declared inputs; give real ones in serving.warmup, or declare their sizes and values in "
            "envelope.limits."
        )
        raise LaunchError("warmup_failed", f"A warm-up request failed: {error.message}{hint}") from error


def limits_of(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a release's envelope says of its inputs."""
    return (manifest.get("envelope") or {}).get("limits") or {}


def check(answer: Inference, serving: dict[str, Any]) -> None:
    """Raises InferenceError unless every declared output came: a server answers 200 without an output that its code forgot."""
    missing = [tensor["name"] for tensor in serving["outputs"] if tensor["name"] not in answer.outputs]
    if missing:
        raise InferenceError("server_error", f"The answer lacks the outputs {', '.join(missing)}.")
