"""A release through the product's contract and cold start gates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.gpu_proof.judged import judged
from benchmarks.gpu_proof.made import ITEM
from benchmarks.gpu_proof.outcome import Outcome, Verdict
from benchmarks.gpu_proof.scene import Scene
from serving.ports import LaunchError
from validators.execution.gates import run_gate


def launch(scene: Scene) -> Outcome:
    """If the sandbox keeps the release from loading, later steps run without one."""
    granted = scene.launcher.granted
    numbers: dict[str, Any] = {"granted": granted.facts(allows_uncontained_code=True), "refused": granted.refused}
    failure = ""
    try:
        served = scene.dense()
    except LaunchError as error:
        failure = str(error)
        scene.without_sandbox()
        served = scene.dense()
    answer = served.infer({"x": np.ones((1, ITEM), np.float32)})["y"]
    assert (answer == 2).all(), f"the release answered {answer[0, :4].tolist()} where y = 2x is 2"
    numbers |= {"timings": served.timings, "failure_in_sandbox": failure}
    if failure:
        sentence = f"The release loads without a sandbox alone; in it the launcher reported: {failure}"
        return Outcome(Verdict.REFUTED, sentence, {**numbers, "layers_used": []})
    contained = f"in a sandbox of {', '.join(granted.layers)}" if granted.layers else "without a sandbox"
    is_contained = bool(granted.layers)
    sentence = f"The product's launcher started Triton {contained}, and the release answered y = 2x."
    return Outcome(Verdict.PROVED, sentence, {**numbers, "is_contained": is_contained})


def contract(scene: Scene) -> Outcome:
    policy = {"gates": ["contract"], "contract": {"timeout_s": 20}}
    good = run_gate("contract", scene.dense().context(policy))
    with scene.served(scene.make.dense("misdeclared", answers="FP64")) as twin:
        bad = run_gate("contract", twin.context({**policy, "contract": {"timeout_s": 20, "edges": False}}))
    return judged(good, bad, twin="outputs of another data type")


def cold_start(scene: Scene) -> Outcome:
    policy = {"gates": ["cold_start"], "cold_start": {"inferences": 20}}
    served = scene.dense()
    good = run_gate("cold_start", served.context(policy))
    limit_s = max(0.001, served.timings["load_s"] / 2)
    strict = {"gates": ["cold_start"], "cold_start": {"inferences": 5, "max_s": limit_s}}
    bad = run_gate("cold_start", replace(served.context(strict)))
    sentence = f"an allowance of {limit_s:.2f} s, half of what its load took"
    return judged(good, bad, twin=sentence, numbers={"timings": served.timings})
