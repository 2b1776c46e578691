"""How often the gates' smaller judges are wrong, and what they catch: errors, classes, tokens, the first inference, open files.

Run `python -m benchmarks.judges [--runs 300]`; five minutes on one core. Seeded, apart from what the constants were chosen by. Each is the
gate's own judgement, under the policy's defaults but for what a row says. Cells are passed / failed of all runs in percent, where one
verdict is told alone, failed. Up to the limit (1 ×) a failure is an error, and beyond it a pass is one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from validators.core.cold_start import judge_cold_start
from validators.core.golden_length import length_shift
from validators.core.growth import growth_of
from validators.core.load import Attempt, LoadSummary, judge_load, summarise
from validators.core.policy import parse_policy
from validators.core.request_classes import ClassSummary
from validators.core.resources import opens
from validators.core.token_times import BETWEEN_TOKENS, FIRST_TOKEN, TokenObjective, judge_tokens, summarise_seen
from validators.core.verdict import Verdict

SEED = 20261124
Counts = npt.NDArray[np.int64]
Dice = np.random.Generator
#: Shares of requests by class: three thirds by size of what is no longest one.
CLASSES = {"short": 0.2917, "medium": 0.2917, "long": 0.2916, "longest": 0.125}
OBJECTIVES = {
    "99 % at 20/s": {"rate_per_s": 20, "slo_ms": 100, "slo_quantile": 0.99},
    "95 % at 8/s": {"rate_per_s": 8, "slo_ms": 100, "slo_quantile": 0.95},
}
MULTIPLES = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
TIMES = [f"{one:g} ×" for one in MULTIPLES]
#: What comes and goes beside files that stay open.
#: The share by which texts may get longer or shorter.
LENGTH_LIMIT = 0.1
FILES = ("connections come and go", "connections are kept, ever more", "closed together, now and then")
IN_TIME = summarise([Attempt(0.0, 0.0, 0.01)], duration_s=1.0, slo_ms=100.0)


def load_section(**load: Any) -> dict[str, Any]:
    return parse_policy({"load": load}).of("load")


def measured(sent: Counts, over: Counts, **more: Any) -> LoadSummary:
    """A run of one count of requests a second, with so many over; sent in time, and answered."""
    return replace(
        IN_TIME, requests=int(sent.sum()), over=int(over.sum()), over_per_window=tuple(over.tolist()),
        sent_per_window=tuple(sent.tolist()), **more,
    )  # fmt: skip


def errors(policy: Mapping[str, Any], requests: int, share: float, dice: Dice) -> Verdict:
    """Of so many requests, each of which fails by itself."""
    summary = replace(IN_TIME, requests=requests, errors=int(dice.binomial(requests, share)))
    return judge_load(summary, policy).verdict


def classes(policy: Mapping[str, Any], usual: float, longest: float, dice: Dice) -> Verdict:
    """Of four classes, of which the longest has its own share over."""
    seconds = round(policy["max_duration_s"])
    sent = {name: dice.poisson(policy["rate_per_s"] * share, seconds) for name, share in CLASSES.items()}
    over = {name: dice.binomial(sent[name], longest if name == "longest" else usual) for name in CLASSES}
    told = tuple(
        ClassSummary(name, int(sent[name].sum()), 0, int(over[name].sum()), 0.0, {}, tuple(over[name].tolist()),
                     tuple(sent[name].tolist()))
        for name in CLASSES
    )  # fmt: skip
    return judge_load(measured(sum(sent.values()), sum(over.values()), classes=told), policy).verdict


def tokens(policy: Mapping[str, Any], of: TokenObjective, whole: float, seen: float, dice: Dice) -> Verdict:
    """Of whole answers and what an objective on their responses sees, each over by itself."""
    sent = dice.poisson(policy["rate_per_s"], round(policy["max_duration_s"]))
    answers, responses = (measured(sent, dice.binomial(sent, share)) for share in (whole, seen))
    return judge_tokens(judge_load(answers, policy), answers, {of: responses}, policy).verdict


def gaps(policy: Mapping[str, Any], alone: float, over: float, dice: Dice) -> Verdict:
    """Of streams of 2 to 40 responses, but for the share `alone`, which have one; the share `over` has a mean gap of more than 50 ms.

    The single gaps of all vary, by a Gamma distribution of shape .5, so that some of every stream are longer.
    """
    seconds = round(policy["max_duration_s"])
    due = np.sort(dice.uniform(0, seconds, round(policy["rate_per_s"] * seconds)))
    further = np.where(dice.random(len(due)) < alone, 0, dice.integers(1, 40, len(due)))
    is_over = dice.random(len(due)) < over
    mean_s = 0.05 * np.where(is_over, dice.uniform(1.01, 2, len(due)), dice.uniform(0.2, 0.99, len(due)))
    single = np.split(dice.gamma(0.5, 1, further.sum()), np.cumsum(further)[:-1])
    attempts = []
    for due_s, total_s, shares in zip(due.tolist(), (mean_s * further).tolist(), single, strict=True):
        came = np.cumsum(shares)
        came_s = (due_s, *(due_s + came * (total_s / came[-1])).tolist()) if total_s else (due_s,)
        attempts.append(Attempt(due_s, due_s, came_s[-1], came_s=came_s))
    whole = summarise(attempts, duration_s=seconds, slo_ms=policy["slo_ms"])
    seen = summarise_seen(attempts, BETWEEN_TOKENS, duration_s=seconds, policy=policy)
    return judge_tokens(judge_load(whole, policy), whole, {BETWEEN_TOKENS: seen}, policy).verdict


def first_inference(policy: Mapping[str, Any], excess_ms: float, cv: float, stalled: float, dice: Dice) -> Verdict:
    """Of inferences of 50 ms, lognormal, the first of which takes `excess_ms` more; the share `stalled` of all meets a stall of 1.5 s."""
    spread = np.sqrt(np.log1p(cv**2))
    took = 50 * dice.lognormal(-(spread**2) / 2, spread, policy["inferences"])
    took += 1500 * (dice.random(len(took)) < stalled)
    took[0] += excess_ms
    return judge_cold_start({"load_s": 1.0}, took.tolist(), policy).verdict


def open_files(policy: Mapping[str, Any], kind: str, left: float, readings: int, requests: int, dice: Dice) -> Verdict:
    """Of a server that leaves `left` files open for each request, beside what comes and goes."""
    at = np.linspace(0, requests, readings)
    held = np.floor(left * at + dice.uniform()) + 40
    if kind == FILES[0]:
        held += dice.poisson(8, readings)
    elif kind == FILES[1]:
        held += np.minimum(32, np.floor(at / 20))
    else:
        every = dice.uniform(30, 300)
        held += np.floor(0.1 * ((at + dice.uniform(0, every)) % every))
    points = list(zip(at.tolist(), held.tolist(), strict=True))
    found = opens(growth_of(points, confidence=0.975), requests, policy)
    return found[0].verdict if found else Verdict.PASSED


def length(policy: Mapping[str, Any], shift: float, spread: float, texts: int, dice: Dice) -> Verdict:
    """Of texts of 20 to 400 letters, half of which are more than 1 + `shift` times as long as stable's."""
    letters = dice.integers(20, 400, texts)
    longer = np.maximum(1, np.round(letters * (1 + shift) * dice.lognormal(0, spread, texts))).astype(int)
    references, answers = ([{"text": "a" * int(n)} for n in each] for each in (letters, longer))
    _, check = length_shift(references, answers, LENGTH_LIMIT, policy, reference="stable's")
    assert check is not None
    return check.verdict


def row(judge: Callable[[Dice], Verdict], runs: int, *key: int) -> str:
    """passed / failed, in percent. `key` seeds the cell apart from the others."""
    dice = np.random.default_rng([SEED, *key])
    found = [judge(dice) for _ in range(runs)]
    return f"{100 * found.count(Verdict.PASSED) / runs:.1f} / {100 * found.count(Verdict.FAILED) / runs:.1f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for one in rows:
        print(f"| {' | '.join(one)} |", flush=True)


def main() -> None:
    """Prints the tables of docs/gates.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judges", description=__doc__)
    parser.add_argument("--runs", type=int, default=300, help="for each cell (300)")
    runs = parser.parse_args().runs
    of_errors(runs)
    for at, (name, told) in enumerate(OBJECTIVES.items()):
        of_latency(name, told, at, runs)
    of_gaps(runs)
    of_cold_starts(runs)
    of_open_files(runs)
    of_lengths(runs)


def of_errors(runs: int) -> None:
    policy = load_section(duration_s=10)
    table(["errors; .1 % allowed, requests", *TIMES], (
        [str(count), *(row(partial(errors, policy, count, m * 0.001), runs, 1, count, at) for at, m in enumerate(MULTIPLES))]
        for count in (160, 547, 2188, 10_000)
    ))  # fmt: skip


def of_latency(name: str, told: Mapping[str, Any], at: int, runs: int) -> None:
    policy, streams, share = load_section(**told), load_section(**told, ttft_slo_ms=50), 1 - told["slo_quantile"]
    kinds: dict[str, Callable[[float], Callable[[Dice], Verdict]]] = {
        "every class over": lambda over: partial(classes, policy, over, over),
        "the longest over, others 0.1 ×": lambda over: partial(classes, policy, 0.1 * share, over),
        "first tokens over, answers 0.1 ×": lambda over: partial(tokens, streams, FIRST_TOKEN, 0.1 * share, over),
        "answers over, first tokens 0.1 ×": lambda over: partial(tokens, streams, FIRST_TOKEN, over, 0.1 * share),
    }
    table([name, *TIMES], (
        [kind, *(row(judge(m * share), runs, 2 + which, at, n) for n, m in enumerate(MULTIPLES))]
        for which, (kind, judge) in enumerate(kinds.items())
    ))  # fmt: skip


def of_gaps(runs: int) -> None:
    table(["mean gaps over", "have one response", *TIMES], (
        [
            name, f"{alone:.0%}",
            *(row(partial(gaps, policy, alone, m * (1 - told["slo_quantile"])), runs, 9, at, round(100 * alone), n)
              for n, m in enumerate(MULTIPLES)),
        ]
        for at, (name, told) in enumerate(OBJECTIVES.items())
        for policy in [load_section(**told | {"slo_ms": 5000}, itl_slo_ms=50)]
        for alone in (0.0, 0.75)
    ))  # fmt: skip


def of_cold_starts(runs: int) -> None:
    policy, more_ms = parse_policy({}).of("cold_start"), (0, 500, 900, 1000, 1100, 2000)
    table(["first inference slower by, ms", *map(str, more_ms)], (
        [
            f"cv {cv:g}, {stalled:.0%} stalled",
            *(row(partial(first_inference, policy, ms, cv, stalled), runs, 6, at, n) for n, ms in enumerate(more_ms)),
        ]
        for at, (cv, stalled) in enumerate([(0.1, 0.0), (1.0, 0.0), (0.1, 0.01), (0.1, 0.05)])
    ))  # fmt: skip


def of_open_files(runs: int) -> None:
    policy, left = parse_policy({"gates": ["resources"]}).of("resources"), (0.0, 0.01, 0.02, 0.04, 0.1)
    table(["open files; .02 allowed", "requests", *(f"{one:g} a request" for one in left)], (
        [
            kind, str(requests),
            *(row(partial(open_files, policy, kind, one, readings, requests), runs, 7, at, requests, n)
              for n, one in enumerate(left)),
        ]
        for at, kind in enumerate(FILES)
        for readings, requests in ((120, 600), (400, 2000), (1200, 6000))
    ))  # fmt: skip


def of_lengths(runs: int) -> None:
    policy, shifts = {"confidence": 0.95, "rule": "measured"}, (0.0, 0.05, 0.1, 0.15, 0.2, 0.3)
    table(["length of texts; .1 allowed", "texts", *(f"{one:g} longer" for one in shifts)], (
        [
            f"spread by {spread:g}", str(texts),
            *(row(partial(length, policy, one, spread, texts), runs, 8, texts, round(100 * spread), at)
              for at, one in enumerate(shifts)),
        ]
        for spread in (0.05, 0.3, 1.0)
        for texts in (20, 100, 400)
    ))  # fmt: skip


if __name__ == "__main__":
    main()
