"""False alarms of the watch, and its delays: `python -m benchmarks.calibration.watch [--models N] [--days N] [--runs N]`.

The first table counts alarms on healthy traffic (`streams`), as pages per 1,000 models and day and tickets per model and month, with
the 95 % limit of the pages. The second gives the time from the beginning of a failure to the page and the ticket, median and 90 %
quantile, beside the rule of the SRE workbook on the same requests. Requests are drawn independently of each other within a bin.
"""

from __future__ import annotations

import argparse
import time
import zlib

import numpy as np

from benchmarks.calibration.watch.streams import STREAMS, Stream
from benchmarks.calibration.watch.tests import Detector, first_by_workbook
from rollouts.core.watch.sequential_test import PAGE, TICKET

RATIO = round(TICKET.bin_s / PAGE.bin_s)
BURNS = (2.0, 5.0, 10.0, 30.0, float("inf"))
#: Healthy bins before the failure, so that the workbook's windows are full, and the most that is waited for.
BEFORE, MOST = 2160, 8640


def false_alarms(stream: Stream, models: int, days: int) -> tuple[int, int]:
    """(pages, tickets) on healthy traffic."""
    rng = np.random.default_rng(zlib.crc32(stream.name.encode()))
    page, ticket = Detector(PAGE, stream.limit, models), Detector(TICKET, stream.limit, models)
    pages = tickets = 0
    for bad, requests in stream.days(models, days, rng):
        pages += sum(int(page.after(x, n).sum()) for x, n in zip(bad, requests, strict=True))
        minutes = [one.reshape(-1, RATIO, models).sum(axis=1) for one in (bad, requests)]
        tickets += sum(int(ticket.after(x, n).sum()) for x, n in zip(*minutes, strict=True))
    return pages, tickets


def delays(rate_per_s: float, limit: float, burn: float, runs: int) -> dict[str, list[float]]:
    """Seconds from the beginning of the failure to each alarm, inf where none came within a day."""
    rng = np.random.default_rng(zlib.crc32(f"{rate_per_s} {limit} {burn}".encode()))
    share = np.full(BEFORE + MOST, 0.2 * limit)
    share[BEFORE:] = min(1.0, burn * limit)
    requests = rng.poisson(rate_per_s * PAGE.bin_s, (BEFORE + MOST, runs))
    bad = rng.binomial(requests, share[:, None])
    found: dict[str, list[float]] = {"workbook": []}
    for name, tier, ratio in (("page", PAGE, 1), ("ticket", TICKET, RATIO)):
        detector, first = Detector(tier, limit, runs), np.full(runs, np.inf)
        x, n = (one.reshape(-1, ratio, runs).sum(axis=1) for one in (bad, requests))
        for i in range(len(x)):
            over = detector.after(x[i], n[i]) & np.isinf(first)
            first[over & (i >= BEFORE // ratio)] = (i + 1) * tier.bin_s - BEFORE * PAGE.bin_s
            if i > BEFORE // ratio and not np.isinf(first).any():
                break
        found[name] = first.tolist()
    for run in range(runs):
        at = first_by_workbook(bad[:, run], requests[:, run], limit, BEFORE)
        found["workbook"].append(np.inf if at is None else (at + 1 - BEFORE) * PAGE.bin_s)
    return found


def _told(values: list[float]) -> str:
    middle, late = (float(np.quantile(values, q, method="higher")) for q in (0.5, 0.9))
    return " / ".join(
        "–" if np.isinf(one) else f"{one:.0f} s" if one < 600 else f"{one / 60:.0f} min" for one in (middle, late)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--only", choices=["healthy", "delays"], default=None)
    asked = parser.parse_args()
    began = time.monotonic()
    if asked.only != "delays":
        print(
            "| healthy stream | pages | per 1,000 models and day | at most (95 %) | tickets per model and month |\n|---|---|---|---|---|"
        )
        for stream in STREAMS:
            pages, tickets = false_alarms(stream, asked.models, asked.days)
            days = asked.models * asked.days
            most = (
                (pages + 1.92 + 1.96 * np.sqrt(pages + 0.96)) if pages else 3.0
            )  # Poisson, Wilson's form; rule of three
            print(
                f"| {stream.name} | {pages} | {1000 * pages / days:.2f} | {1000 * most / days:.2f} | {30 * tickets / days:.3f} |",
                flush=True,
            )
        print()
    if asked.only != "healthy":
        print("| objective, rate | failure | page | ticket | SRE workbook |\n|---|---|---|---|---|")
        for limit, rate in (
            (0.01, 1.0),
            (0.01, 10.0),
            (0.01, 100.0),
            (0.001, 1.0),
            (0.001, 10.0),
            (0.001, 100.0),
            (0.001, 1000.0),
        ):
            for burn in BURNS:
                found = delays(rate, limit, burn, asked.runs)
                words = "all fail" if np.isinf(burn) else f"{burn:g} times the objective"
                told = " | ".join(_told(found[name]) for name in ("page", "ticket", "workbook"))
                print(f"| {100 * limit:g} %, {rate:g}/s | {words} | {told} |", flush=True)
    print(f"\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
