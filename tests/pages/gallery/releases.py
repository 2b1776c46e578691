"""Models and releases as a team has them: files that are read, golden sets that are asked, gates that are judged by our own judges."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from django.utils import timezone

from accounts.core.access import Actor
from ledger.core.canonical import sha256_of
from registry import actions
from registry.models import Release, ServedModel
from serving.models import Environment
from tests.support.worlds.model_files import onnx_file, tokenizer_file
from tests.support.worlds.registry_samples import draft_with
from validators.actions import add_golden_set
from validators.actions.gate_runs import finish_gate_run, record_judgement
from validators.core import envelope
from validators.core.cold_start import judge_cold_start
from validators.core.contract import judge_contract
from validators.core.golden import Replay, judge_golden
from validators.core.golden_set import parse_golden_set
from validators.core.load import Attempt, judge_load, summarise
from validators.core.policy import Policy, parse_policy
from validators.core.verdict import Judgement, Verdict
from validators.models import GateResult, GateRun, Report

IMAGE = f"triton-server@{sha256_of(b'the runtime of the pictures')}"
SYSTEM = Actor.system("worker")
GOLDEN = Path(__file__).resolve().parents[3] / "examples" / "sentiment" / "golden.jsonl"
OBJECTIVES: dict[str, Any] = {"errors_max_frac": 0.001, "slow": {"threshold_ms": 250, "max_frac": 0.01}}
CONTRACT: dict[str, Any] = {
    "inputs": [{"name": "text", "data_type": "BYTES", "dims": [1]}],
    "outputs": [{"name": "probabilities", "data_type": "FP32", "dims": [2]}],
}
#: Fast enough that three stages are some minutes; the tolerances are the demo's.
ROLLOUT: dict[str, Any] = {
    "preset": "demo",
    "steps": [{"weight_pct": weight, "min_s": 20, "min_samples": 60, "deadline_s": 900} for weight in (5, 25, 50)],
    "bake": {"min_s": 30, "min_samples": 200, "deadline_s": 900},
    "deadline_s": 14_400,
    "instant_window_s": 7200,
}
#: As quick as the demo's, for rollouts whose end is all that a page shows.
QUICK: dict[str, Any] = {
    "preset": "demo",
    "steps": [{"weight_pct": weight, "min_s": 2, "min_samples": 40, "deadline_s": 600} for weight in (25, 50)],
    "bake": {"min_s": 2, "min_samples": 40, "deadline_s": 600},
    "instant_window_s": 7200,
}
HARDWARE = {"hardware": {"facts": {"gpus": ["NVIDIA L4"], "driver": "570.86.15", "cpu_count": 16}}}
WEIGHTS = [(f"encoder.layers.{layer}.{part}", "FP16", [8, 8]) for layer in range(6) for part in ("attention", "dense")]
INT8 = [
    (name + suffix, kind, [8, 8])
    for name, *_ in WEIGHTS
    for suffix, kind in (("_quantized", "INT8"), ("_scale", "FP32"))
]
TOOK_S = {"contract": 1.2, "cold_start": 10.9, "golden": 18.4, "load": 30.6}
CODE = '''"""Answers by the encoder, one batch at a time."""

import numpy as np

MOST_TOKENS = 128


def tokens_of(text: str) -> list[str]:
    return text.lower().split()[:MOST_TOKENS]


def run(batch: list[str]) -> np.ndarray:
    lengths = [len(tokens_of(text)) for text in batch]
    padded = np.zeros((len(batch), max(lengths)))
    return encode(padded, lengths)
'''
NEW_CODE = CODE.replace("[:MOST_TOKENS]", "").replace(
    "    lengths = [", "    # longer texts are cut by the tokenizer itself\n    lengths = ["
)


def a_model(actor: Actor, slug: str, team: str, title: str, **over: Any) -> ServedModel:
    """A model with objectives, gates and a policy that this world's rollouts follow."""
    policies = {"objectives": OBJECTIVES, "gate_policy": GATES, "rollout_policy": ROLLOUT, "contract": CONTRACT, **over}
    return actions.create_model(actor=actor, slug=slug, team=team, title=title, **policies)[0]


GATES: dict[str, Any] = {
    "gates": ["contract", "cold_start", "golden", "load"],
    "cold_start": {"max_s": 60},
    "golden": {
        "set": sha256_of(GOLDEN.read_bytes()), "output": "probabilities", "min_accuracy": 0.75, "min_agreement": 0.9,
        "max_accuracy_drop": 0.02, "max_slice_drop": 0.05,
    },
    "load": {"rate_per_s": 40, "max_duration_s": 60, "slo_quantile": 0.95, "max_lag_ms": 250},
}  # fmt: skip


def golden_set(model: ServedModel) -> None:
    add_golden_set(actor=SYSTEM, model=model, data=GOLDEN.read_bytes())


def pushed(
    actor: Actor, model: ServedModel, note: str, precision: str = "float32", *, code: str = "", words: str = "good"
) -> Release:
    """A sealed release whose files are true files."""
    weights, most = (INT8, 32) if precision == "int8" else (WEIGHTS, 16)
    spec = {
        "model": model.slug, "runtime.image": IMAGE, "provenance.notes": note, "provenance.labels": {"precision": precision},
        "provenance.dataset": "vaderSentiment 3.3.2, ratings of 0.5 and stronger", "envelope.host.memory_mib_min": 2048,
        "envelope.performance": [{
            "hardware": "NVIDIA-L4", "workload": "golden.jsonl", "source": "declared",
            "load_shape": {"mode": "open", "rate_per_s": 20}, "latency_ms": {"p50": 30, "p99": 100},
            "cold_start_s": {"download": 5, "load": 8, "warmup": 1},
        }],
        "serving.max_batch_size": most, "envelope.limits.max_batch_size": most,
    }  # fmt: skip
    files = {"tokenizer__tokenizer_json": tokenizer_file({"[UNK]": 0, "bad": 1, words: 2})}
    if code:
        files["artifact__model_py"] = code.encode()
    data = onnx_file(f"{model.slug} {note}", weights=weights)  # type: ignore[arg-type]
    draft = draft_with(actor, model, data, spec, **files)
    return actions.seal(actor=actor, release=draft)


def judged(
    release: Release,
    environment: Environment,
    *,
    wrong: float = 0.12,
    p50_ms: float = 24.0,
    baseline: Release | None = None,
    lost: Mapping[str, float] | None = None,
    seed: int = 3,
) -> Report:
    """The report of the release's gates: `wrong` of the golden answers are, and more of a slice's by `lost`."""  # fmt: skip
    policy = parse_policy(release.model.gate_policy, release.model.objectives)
    run = gate_run(release, environment, policy, baseline)
    serving = json.loads(release.manifest)["serving"]
    own = answers(release, wrong, lost or {}, seed)
    base = answered_by(baseline) if baseline else None
    items = parse_golden_set(GOLDEN.read_bytes())
    replay = Replay(
        items,
        [one.label for one in items],
        own,
        base,
        baseline.name if baseline else "",
        dict(list(enumerate(own))[:64]),
    )
    golden = judge_golden(replay, policy.of("golden"))
    golden.evidence.update(golden_set=policy.golden_set, output="probabilities", predictions=own)
    found = {
        "contract": judge_contract([], {size: [] for size in (1, 2, serving["max_batch_size"])}, refused={}),
        "cold_start": judge_cold_start(
            {"fetch_s": 3.21, "load_s": 6.84, "warmup_s": 0.42}, [p50_ms * 1.6, *[p50_ms] * 9], policy.of("cold_start")
        ),
        "golden": golden,
        "load": load_of(policy, p50_ms, seed),
    }  # fmt: skip
    is_over = False
    for result in run.results.order_by("position"):
        judgement = envelope.judged(
            found[result.gate], result.gate, json.loads(release.manifest).get("envelope") or {}, policy.of("envelope"),
            hardware="NVIDIA L4", uses_gpu=False,
        )  # fmt: skip
        if is_over:
            judgement = Judgement(Verdict.SKIPPED, "An earlier gate failed.", {})
        began = timezone.now() - timedelta(seconds=TOOK_S[result.gate])
        GateResult.objects.filter(pk=result.pk).update(started_at=began)
        result.refresh_from_db()
        record_judgement(actor=SYSTEM, gate_result=result, judgement=judgement)
        is_over = is_over or judgement.verdict is Verdict.FAILED
    return finish_gate_run(actor=SYSTEM, gate_run=GateRun.objects.get(pk=run.pk), facts=HARDWARE)


def gate_run(release: Release, environment: Environment, policy: Policy, baseline: Release | None = None) -> GateRun:
    """A run that has begun, with all of its gates."""
    began = timezone.now() - timedelta(seconds=61)
    run = GateRun.objects.create(
        release=release, environment=environment, policy=policy.document, policy_digest=policy.digest, baseline=baseline,
        state="running", requested_by="otto", started_at=began,
    )  # fmt: skip
    GateResult.objects.bulk_create(
        GateResult(gate_run=run, gate=gate, position=position, progress_total=800 if gate == "golden" else 0)
        for position, gate in enumerate(policy.gates)
    )
    return run


def answers(release: Release, wrong: float, lost: Mapping[str, float], seed: int) -> list[Any]:
    """To the golden set's items; most mistakes are the same ones for every release."""
    common, own = random.Random(7), random.Random(seed)
    found: list[Any] = []
    for item in parse_golden_set(GOLDEN.read_bytes()):
        is_wrong = common.random() < wrong * 0.85 or own.random() < wrong * 0.15 + lost.get(item.slice, 0.0)
        found.append(1 - int(item.label) if is_wrong else item.label)
    return found


def answered_by(release: Release) -> list[Any]:
    """What its own golden gate wrote down."""
    result = GateResult.objects.filter(gate_run__release=release, gate="golden").latest("pk")
    return list(result.evidence["predictions"])


def load_of(policy: Policy, p50_ms: float, seed: int) -> Judgement:
    """What our own judge says of answers that take this long at the median, one in a hundred much longer."""
    section = policy.of("load")
    dice = np.random.default_rng(seed)
    due = np.sort(dice.uniform(0.0, 15.0, int(15 * section["rate_per_s"])))
    takes = dice.lognormal(np.log(p50_ms / 1000), 0.45, len(due))
    attempts = [Attempt(float(at), float(at), float(at + took)) for at, took in zip(due, takes, strict=True)]
    found = judge_load(summarise(attempts, duration_s=15.0, slo_ms=section["slo_ms"]), section)
    return Judgement(found.verdict, found.reason, {**found.evidence, "full_per_s": 132.0, "full_at_once": 64})
