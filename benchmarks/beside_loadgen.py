"""Our load generator beside MLCommons LoadGen, on one stub that stalls: do both see the same, and how much does each bring from one core?

    python -m benchmarks.beside_loadgen [--seconds 120] [--rate 150]

LoadGen (its Server scenario: Poisson arrivals, latency from the scheduled instant) runs in an environment of its own (`.build/loadgen`,
from benchmarks/loadgen.lock) and says when it issued each query; ours sends at those very instants, so that chance does not tell them
apart. The stub answers after SERVICE_S, and not at all for STALL_S of every STALL_EVERY_S seconds. Then, pinned to one core, a stub
that answers at once: the greatest of RATES at which the 99 % quantile of latency, due to done, stays within HONEST_S.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HOME, UV = ROOT / ".build" / "loadgen", ROOT / ".build" / "installer" / "bin" / "uv"
LOCK = ROOT / "benchmarks" / "loadgen.lock"
SERVICE_S, STALL_S, STALL_EVERY_S = 0.005, 1.0, 20.0
#: Both answer with so many threads: a stall of a second leaves fewer unanswered at the rates that are measured.
THREADS = 256
RATES, RATE_SECONDS, HONEST_S = (250, 500, 750, 1000, 1500, 2000, 3000, 4000, 6000, 8000), 4.0, 0.01


class Stub:
    """Answers after `service_s`; in the last second of every STALL_EVERY_S after its first question, only at that second's end."""

    def __init__(self, service_s: float, *, stalls: bool) -> None:
        self.service_s, self.stalls = service_s, stalls
        self._began: float | None = None
        self._lock = threading.Lock()

    def answer(self) -> None:
        now = time.perf_counter()
        with self._lock:
            began = self._began = now if self._began is None else self._began
        phase = (now - began) % STALL_EVERY_S
        rest = STALL_EVERY_S - phase if self.stalls and phase >= STALL_EVERY_S - STALL_S else 0.0
        if rest + self.service_s > 0:
            time.sleep(rest + self.service_s)

    def send(self, at: int, *, timeout_s: float) -> None:
        """As requests to an inference server."""
        self.answer()

    def connect(self) -> None:
        """There is nothing between."""


# --- LoadGen, in its own environment ----------------------------------------------------------------------------------


def loadgen(rate: float, seconds: float, stub: Stub, folder: Path) -> None:
    """Runs it and prints {"p99_s", "issued": instants in seconds from the first} as JSON."""
    import mlperf_loadgen as lg  # type: ignore[import-not-found]

    issued: list[float] = []
    pool = ThreadPoolExecutor(THREADS)

    def one(query: int) -> None:
        stub.answer()
        lg.QuerySamplesComplete([lg.QuerySampleResponse(query, 0, 0)])

    def issue(samples: Any) -> None:
        issued.append(time.perf_counter())
        for sample in samples:
            pool.submit(one, sample.id)

    settings = lg.TestSettings()
    settings.scenario, settings.mode = lg.TestScenario.Server, lg.TestMode.PerformanceOnly
    settings.server_target_qps, settings.server_target_latency_ns = rate, 10_000_000_000
    settings.min_duration_ms, settings.min_query_count = int(seconds * 1000), 1
    logs = lg.LogSettings()
    logs.log_output.outdir, logs.log_output.copy_summary_to_stdout, logs.enable_trace = str(folder), False, False
    sut = lg.ConstructSUT(issue, lambda: None)
    qsl = lg.ConstructQSL(1, 1, lambda _: None, lambda _: None)
    lg.StartTestWithLogSettings(sut, qsl, settings, logs, "")
    pool.shutdown()
    summary = (folder / "mlperf_log_summary.txt").read_text()
    found = re.search(r"99\.00 percentile latency \(ns\)\s*:\s*(\d+)", summary)
    if found is None:
        raise SystemExit(summary)
    print(json.dumps({"p99_s": int(found[1]) / 1e9, "issued": [at - issued[0] for at in issued]}))


def beside(rate: float, seconds: float, *, is_quick: bool) -> dict[str, Any]:
    """What LoadGen printed, of a child of ours in its environment."""
    if not HOME.exists():
        subprocess.run([UV, "venv", "-q", "--python", sys.executable, HOME], check=True)
        subprocess.run(
            [UV, "pip", "install", "-q", "--require-hashes", "-r", LOCK, "--python", HOME / "bin" / "python"],
            check=True,
        )
    argv = [HOME / "bin" / "python", __file__, "--child", "--rate", str(rate), "--seconds", str(seconds)]
    done = subprocess.run([*argv, *(["--quick"] if is_quick else [])], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# --- ours -------------------------------------------------------------------------------------------------------------


def ours(due_s: Any, stub: Stub) -> float:
    """The 99 % quantile of latency, due to done, in seconds."""
    import numpy as np

    from validators.execution.runners.load import drive

    requests: Any = stub
    attempts = drive(requests, np.asarray(due_s), timeout_s=5, progress=lambda sent: None)
    unsent = [one.error for one in attempts if not one.is_sent]
    if unsent:
        return float("inf")
    return float(np.quantile([one.done_s - one.due_s for one in attempts], 0.99, method="higher"))


def poisson(rate: float, seconds: float) -> Any:
    import numpy as np

    return np.cumsum(np.random.default_rng(1).exponential(1 / rate, int(rate * seconds)))


def greatest(p99_of: Any) -> float:
    """The greatest rate up to which all are honest."""
    best = 0.0
    for rate in RATES:
        if min(p99_of(rate) for _ in range(2)) > HONEST_S:
            break
        best = rate
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--rate", type=float, default=150, help="a second, of the stub that stalls")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help=argparse.SUPPRESS)
    said = parser.parse_args()
    if said.child:
        stub = Stub(0.0, stalls=False) if said.quick else Stub(SERVICE_S, stalls=True)
        with tempfile.TemporaryDirectory() as folder:
            loadgen(said.rate, said.seconds, stub, Path(folder))
        return
    theirs = beside(said.rate, said.seconds, is_quick=False)
    mine = ours(theirs["issued"], Stub(SERVICE_S, stalls=True))
    print(f"{len(theirs['issued'])} requests at {said.rate:g}/s, a stall of {STALL_S:g} s every {STALL_EVERY_S:g} s")
    print(
        f"p99: ours {1000 * mine:.1f} ms, LoadGen {1000 * theirs['p99_s']:.1f} ms, ratio {mine / theirs['p99_s']:.4f}"
    )
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    their_rate = greatest(lambda rate: beside(rate, RATE_SECONDS, is_quick=True)["p99_s"])
    my_rate = greatest(lambda rate: ours(poisson(rate, RATE_SECONDS), Stub(0.0, stalls=False)))
    print(
        f"one core, p99 within {1000 * HONEST_S:g} ms: ours {my_rate:g}/s, LoadGen {their_rate:g}/s, ratio {my_rate / their_rate:.2f}"
    )


if __name__ == "__main__":
    main()
