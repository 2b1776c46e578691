"""What became of a row's rollouts: a line for the terminal, and a line of a Markdown table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.calibration.premises.walking import Ran
from rollouts.core.lifecycle import RolloutState
from validators.core.compare import share_of

if TYPE_CHECKING:
    from benchmarks.calibration.ordinary.__main__ import Limit, Row

BACK = {RolloutState.ROLLED_BACK, RolloutState.PAUSED}
#: From this number of runs on, a share is compared with its limit as it is.
MANY = 200
#: The largest share of runs in which a stage may open while it should be closed.
OPENED = 0.01
HEAD = """| traffic | n | rolled back (95 %) | crossed | promoted, after | limit | holds |
|---|---|---|---|---|---|---|"""
HEAD_OF_FAULTS = """| fault | n | traffic away, s | convicted, s | convicted | limit | holds |
|---|---|---|---|---|---|---|"""


def told(row: Row, runs: Sequence[Ran]) -> str:
    """The row in one line, with what its limit asks."""
    n = len(runs)
    back = [one for one in runs if one.state in BACK]
    promoted = [one.ended_at for one in runs if one.state == RolloutState.PROMOTED]
    delays = [one.away_at - one.onset_at if one.away_at > one.onset_at else math.inf for one in runs]
    convicted = [one.ended_at - one.onset_at if one.state in BACK else math.inf for one in runs]
    crossed = sum(math.isfinite(one.away_at) for one in runs)
    is_fault, opened = not row.scenario.is_healthy, sum(_opened(one, row.limit) for one in runs)
    codes = ", ".join(f"{code} {count}" for code, count in Counter(one.code for one in back).most_common())
    held = Counter(code for one in runs for code in one.held if code != "need_more").most_common(3)
    parts = [
        f"back {len(back) / n:.1%}",
        f"crossed {crossed / n:.1%}",
        f"promoted {len(promoted) / n:.1%} after {_minutes(promoted)} min",
    ]
    if is_fault:
        parts.append(f"away after {_quantile(delays, 0.5)} / {_quantile(delays, 0.95)} s")
        parts.append(f"convicted after {_quantile(convicted, 0.5)} / {_quantile(convicted, 0.95)} s")
    if row.limit.closed_s is not None:
        parts.append(f"opened in it {opened / n:.1%}")
    parts += [codes, " ".join(f"[{code} {count}]" for code, count in held)]
    return f"{row.name:72} n {n:3} {_verdict(row.limit, n, len(back), promoted, delays, opened)}  {' · '.join(filter(None, parts))}"


def _verdict(limit: Limit, n: int, back: int, promoted: list[float], delays: list[float], opened: int) -> str:
    """Returns `ok`, `OVER`, or blanks without a limit.

    With fewer than `MANY` runs, a limit below 2 % allows two runs of a hundred more.
    """
    kept = []
    if limit.rolled_back is not None:
        by_chance = 0.02 if limit.rolled_back < 0.02 and n < MANY else 0.0
        kept.append(back <= (limit.rolled_back + by_chance) * n)
    if limit.promoted is not None:
        kept.append(len(promoted) >= limit.promoted * n)
    if limit.promoted_after_s is not None:
        kept.append(bool(promoted) and len(promoted) > n / 2 and float(np.median(promoted)) <= limit.promoted_after_s)
    if limit.closed_s is not None:
        kept.append(opened <= OPENED * n)
    if limit.found_s is not None:
        kept.append(sum(one <= limit.found_s for one in delays) >= limit.found * n)
    return "    " if not kept else "ok  " if all(kept) else "OVER"


def _opened(one: Ran, limit: Limit) -> bool:
    """Whether a stage began, or the candidate was promoted, within `closed_s`."""
    begin, end = limit.closed_s or (0.0, 0.0)
    at = [*one.stages, *([one.ended_at] if one.state == RolloutState.PROMOTED else [])]
    return any(begin < when <= end for when in at)


def _quantile(values: Sequence[float], q: float) -> str:
    found = float(np.quantile(values, q, method="inverted_cdf"))
    return f"{found:.0f}" if math.isfinite(found) else "never"


def _minutes(values: list[float]) -> str:
    return f"{float(np.median(values)) / 60:.0f}" if values else "–"


# --- Markdown ---------------------------------------------------------------------------------------------------------


def in_markdown(row: Row, runs: Sequence[Ran]) -> str:
    """Returns the row's line of the table under `HEAD`, or under `HEAD_OF_FAULTS` for a fault."""
    n = len(runs)
    back = [one for one in runs if one.state in BACK]
    promoted = [one.ended_at for one in runs if one.state == RolloutState.PROMOTED]
    delays = [one.away_at - one.onset_at if one.away_at > one.onset_at else math.inf for one in runs]
    opened = sum(_opened(one, row.limit) for one in runs)
    verdict = {"ok": "yes", "OVER": "**no**"}.get(
        _verdict(row.limit, n, len(back), promoted, delays, opened).strip(), "–"
    )
    if row.scenario.is_healthy:
        crossed = sum(math.isfinite(one.away_at) for one in runs)
        open_in_it = f", opened in it {opened / n:.1%}" if row.limit.closed_s is not None else ""
        went_on = f"{len(promoted) / n:.1%}, {_minutes(promoted)} min{open_in_it}"
        cells = [_interval(len(back), n), f"{crossed / n:.1%}", went_on]
    else:
        convicted = [one.ended_at - one.onset_at if one.state in BACK else math.inf for one in runs]
        pairs = [f"{_quantile(some, 0.5)} / {_quantile(some, 0.95)}" for some in (delays, convicted)]
        cells = [*pairs, _interval(len(back), n)]
    return f"| {row.name} | {n} | {' | '.join(cells)} | {_limits(row.limit)} | {verdict} |".replace("%", " %").replace(
        "  %", " %"
    )


def _interval(count: int, n: int) -> str:
    share = share_of(count, n)
    return f"{count / n:.1%} ({100 * share.low:.1f}–{100 * share.high:.1f})"


def _limits(limit: Limit) -> str:
    """Returns the limit's bounds in words, or a dash."""
    parts = []
    if limit.rolled_back is not None:
        parts.append(f"≤ {limit.rolled_back:.0%}" if limit.rolled_back else "0%")
    if limit.promoted is not None:
        parts.append(f"promoted ≥ {limit.promoted:.0%}")
    if limit.promoted_after_s is not None:
        parts.append(f"≤ {limit.promoted_after_s / 60:.0f} min")
    if limit.closed_s is not None:
        parts.append(f"opens in it ≤ {OPENED:.0%}")
    if limit.found_s is not None:
        parts.append(f"{limit.found:.0%} ≤ {limit.found_s:.0f} s")
    return ", ".join(parts) or "–"
