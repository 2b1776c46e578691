"""A streaming release like a language model: its first token, the time between tokens, the largest gap, and tokens a second."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from benchmarks.gpu_proof.judged import judged
from benchmarks.gpu_proof.outcome import Outcome, Refuted
from benchmarks.gpu_proof.scene import Burst, Scene, Served
from validators.core.verdict import Verdict as Gate
from validators.execution.gates import run_gate

_CONCURRENCIES = (1, 4, 16)
_LONG_PROMPT = 4096
#: Objectives in multiples of the times at leisure, and at least so many ms: other work of the machine must not break them.
_SLACK, _LEAST_TTFT_MS, _LEAST_ITL_MS = 30, 500, 100
#: A load of this many requests convinces the gate (17 is its least at this quantile), and lasts no longer than this.
_REQUESTS, _MOST_S = 25, 30


def stream_times(scene: Scene) -> Outcome:
    """The product's load gate with objectives on tokens; the twin is asked for a tenth of its own time between tokens."""
    tokens = 16 if scene.config.is_quick else 64
    scene.clear()
    with scene.served(scene.make.stream(tokens=tokens)) as served:
        whole = served.infer({"text": np.array([[b"a prompt"]], object)})["y"].reshape(-1)[0].decode().split()
        assert len(whole) == tokens, f"the answer has {len(whole)} tokens of {tokens}"
        for count in _CONCURRENCIES:  # each size of batch loads kernels of its own when it is first met
            served.burst(count, count)
        at = {count: _times(served, count, tokens) for count in _CONCURRENCIES}
        beside = _beside_a_long_prompt(served, tokens)
        rate = max(0.5, min(50.0, at[4]["requests_per_s"] / 3))
        alone = at[1]
        objectives = {
            "ttft_slo_ms": max(_LEAST_TTFT_MS, _SLACK * alone["ttft_p50_ms"]),
            "itl_slo_ms": max(_LEAST_ITL_MS, _SLACK * alone["itl_p50_ms"]),
        }
        enough_s = min(_MOST_S, _REQUESTS / rate)
        policy = _policy(rate, scene.seconds(max(10, enough_s), 3), **objectives)
        good = run_gate("load", served.context(policy))
        strict = {**objectives, "itl_slo_ms": max(0.01, alone["itl_p50_ms"] / 10)}
        bad = run_gate("load", served.context(_policy(rate, scene.seconds(max(4, enough_s), 1), **strict)))
    numbers = {
        "tokens": tokens,
        "at_once": {str(count): found for count, found in at.items()},
        "beside_long_prompt": beside,
    }
    found = judged(
        good, bad, twin="an objective of a tenth of its own time between tokens", numbers={**numbers, "policy": policy}
    )
    if good.verdict is not Gate.PASSED:
        return found
    return Outcome(found.verdict, f"{_sentence(at)} {found.sentence}", found.numbers)


def _sentence(at: dict[int, dict[str, Any]]) -> str:
    alone, rates = at[1], ", ".join(f"{one['tokens_per_s']:.0f}" for one in at.values())
    return (
        f"Alone: first token after {alone['ttft_p50_ms']:.1f} ms, {alone['itl_p50_ms']:.2f} ms between tokens, largest gap "
        f"{alone['gap_max_ms']:.1f} ms. Tokens a second at 1, 4 and 16 streams: {rates}."
    )


def _policy(rate: float, seconds: float, **objectives: float) -> dict[str, Any]:
    load = {
        "rate_per_s": rate,
        "duration_s": seconds,
        "slo_quantile": 0.8,
        "least_dispersion": 1,
        "burst_s": 0,
        "timeout_s": 30,
    }
    return {"gates": ["load"], "load": {**load, "slo_ms": 30_000, **objectives}}


def _times(served: Served, at_once: int, tokens: int) -> dict[str, Any]:
    burst = served.burst(max(8, 2 * at_once), at_once)
    if burst.errors:
        raise Refuted(f"{len(burst.errors)} of {len(burst.attempts)} streams failed: {burst.errors[0]}")
    short = [len(one.came_s) for one in burst.attempts if len(one.came_s) != tokens]
    if short:
        raise Refuted(f"{len(short)} streams had other than {tokens} responses: {short[:5]}")
    return {
        **times_of(burst),
        "tokens_per_s": round(burst.responses / burst.seconds, 2),
        "requests_per_s": round(burst.per_s, 3),
    }


def times_of(burst: Burst) -> dict[str, float]:
    """Quantiles in ms of the first token and of the gaps; the largest gap of any stream."""
    first = [(one.came_s[0] - one.sent_s) * 1000 for one in burst.attempts]
    gaps = np.concatenate([np.diff(one.came_s) for one in burst.attempts]) * 1000
    quantiles = {
        f"{name}_p{share}_ms": float(np.quantile(of, share / 100))
        for name, of in (("ttft", first), ("itl", gaps))
        for share in (50, 99)
    }
    return {name: round(value, 3) for name, value in {**quantiles, "gap_max_ms": float(gaps.max())}.items()}


def _beside_a_long_prompt(served: Served, tokens: int) -> dict[str, float]:
    """The gaps of four streams while one caller sends a prompt of 4096 tokens."""
    long = {"text": np.array([[b"x" * _LONG_PROMPT]], object)}
    asked = threading.Thread(target=lambda: served.infer(long))
    asked.start()
    burst = served.burst(8, 4)
    asked.join()
    return times_of(burst)
