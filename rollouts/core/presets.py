"""The presets of a rollout policy: the same fields with other numbers. Units as in docs/rollouts.md."""

from __future__ import annotations

from typing import Any

from rollouts.core.indicators import INDICATORS


def _stages(weights: tuple[float, ...], min_s: float, min_samples: int, deadline_s: float) -> list[dict[str, Any]]:
    return [
        {"weight_pct": weight, "min_s": min_s, "min_samples": min_samples, "deadline_s": deadline_s}
        for weight in weights
    ]


def _shadow(sample_pct: float, min_s: float, min_samples: int, deadline_s: float) -> dict[str, Any]:
    return {"sample_pct": sample_pct, "min_s": min_s, "min_samples": min_samples, "deadline_s": deadline_s}


def _second_look(after_s: float) -> dict[str, Any]:
    return {"looks": 2, "after_s": after_s, "alpha_second": 0.05}


_COMMON: dict[str, Any] = {
    "shadow": _shadow(0, 60, 100, 1800),
    "holdback_pct": 5,
    "alpha_roll_back": 0.01,
    "alpha_promote": 0.05,
    "on_undecided": "hold",
    "all_failing_attempts": 10,
    "cold_attempts": 20,
    "cold_s": 120,
    "no_data_s": 30,
    "stale_s": 15,
    "blind_limit_s": 120,
    "on_blind": "hold",
    "ack_deadline_s": 10,
    "prepare_deadline_s": 1800,
    "when_stable_is_gone": "hold",
    "stable_gone_s": 60,
    "undo_max_s": 86_400,
    "second_look": _second_look(60),
    "watch": {"control_pct": 0, "roll_back": "never"},
    "dispersion_window_s": 5,
    "approvals": {},
    "approval_valid_s": 86_400,
    "freeze_windows": [],
}
PRESETS: dict[str, dict[str, Any]] = {
    "careful": {
        **_COMMON,
        "shadow": _shadow(10, 120, 200, 3600),
        "steps": _stages((1, 5, 10, 25, 50), 300, 500, 7200),
        "bake": {"min_s": 3600, "min_samples": 1000, "deadline_s": 14_400},
        "budget_bad": 50,
        "deadline_s": 172_800,
        "instant_window_s": 86_400,
        "undo_max_s": 172_800,
    },
    "standard": {
        **_COMMON,
        "steps": _stages((5, 25, 50), 180, 300, 3600),
        "bake": {"min_s": 1800, "min_samples": 500, "deadline_s": 7200},
        "budget_bad": 200,
        "deadline_s": 86_400,
        "instant_window_s": 14_400,
    },
    "fast": {
        **_COMMON,
        "steps": _stages((10, 50), 60, 100, 900),
        "bake": {"min_s": 300, "min_samples": 200, "deadline_s": 1800},
        "all_failing_attempts": 5,
        "second_look": _second_look(30),
        "cold_s": 30,
        "budget_bad": 500,
        "deadline_s": 14_400,
        "instant_window_s": 3600,
    },
    "demo": {
        **_COMMON,
        "steps": _stages((25, 50), 5, 40, 90),
        "bake": {"min_s": 6, "min_samples": 40, "deadline_s": 90},
        "all_failing_attempts": 5,
        "no_data_s": 10,
        "stale_s": 5,
        "blind_limit_s": 20,
        "prepare_deadline_s": 180,
        "stable_gone_s": 10,
        "second_look": _second_look(5),
        "dispersion_window_s": 2,
        "cold_attempts": 10,
        "cold_s": 0,
        "budget_bad": 500,
        "deadline_s": 900,
        "instant_window_s": 20,
        "undo_max_s": 600,
    },
}
_STRICT = {name: {"ratio": one.ratio, "plus_frac": one.plus_frac} for name, one in INDICATORS.items()}
_ROOMY = {"ratio": 1.5, "plus_frac": 0.02}
#: How much worse than the reference is too much, and how close to it is proof enough, unless the guard says.
ROLL_BACK_OVER = {
    "careful": _STRICT,
    "standard": _STRICT,
    "fast": _STRICT,
    "demo": dict.fromkeys(_STRICT, _ROOMY),
}
PROMOTE_WITHIN = {
    "careful": {"ratio": 1.5, "plus_frac": 0.005},
    "standard": {"ratio": 2, "plus_frac": 0.005},
    "fast": {"ratio": 2, "plus_frac": 0.01},
    "demo": {"ratio": 2, "plus_frac": 0.1},
}
#: Share of `alpha_roll_back` that the default guard `refused` takes. A release that refuses good requests refuses many, and the
#: other guards keep nearly all of their share.
REFUSED_ALPHA = 0.1
