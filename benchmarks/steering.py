"""Whether callers can steer a verdict: rollouts walked with an attacker and without, paired by seed.

Run `python -m benchmarks.steering [--runs 300] [--only PART] [--times 4] [--lines]`. It prints one line for each way to steer
and each candidate: in how many pairs both rollouts ended alike, and the median ratio of their times with its 95 % interval (bootstrap).

First the program makes each of the attacker's calls once, through a real gateway to a real Triton. It records the lines that this
call adds to Envoy's page of statistics (`--lines` prints them).
Then users are simulated as in `benchmarks.calibration.ordinary`, and the attacker's lines
go through the product's own reader (`serving.traffic.adapters.envoy_stats`, the outcome table) and the engine's conversion.

Premise: an attacker changes nothing but counts, and for forced calls the time of users who wait behind them. Calls for which the model
runs are left out: they are evidence as users' are, also those that the gateway puts right (gRPC without `te`), and requests that take
long. Load is another matter: it is bounded by quotas and places in flight.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import struct
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sluicegate.settings")

import django
import grpc
import numpy as np

django.setup()

from benchmarks.calibration.cells import OBJECTIVES  # noqa: E402
from benchmarks.calibration.premises.scenario import Fault, Scenario  # noqa: E402
from benchmarks.calibration.premises.walking import Ran, Run  # noqa: E402
from benchmarks.calibration.traffic import EDGES_MS, SLOW, Latency  # noqa: E402
from rollouts.core.counter_deltas import Reading  # noqa: E402
from rollouts.core.rules.forced_calls import ForcedCalls  # noqa: E402
from rollouts.engine.gateway_counters import _reading  # noqa: E402
from serving.traffic.adapters.envoy_stats import Series, parse  # noqa: E402
from tests.support.rigs.gateway_rig import FORCES, MODEL, Rig, wait_until  # noqa: E402
from tests.support.rigs.hostile_rig import METHOD, Servers, servers  # noqa: E402
from tests.support.servers.hostile import GOOD, good_message, message, packed, raw  # noqa: E402
from tests.support.servers.raw_requests import grpc_head, message_of, over_h2, over_http  # noqa: E402

SEED, RUNS, FEW, TIMES = 3202, 300, 20, 4.0
ARMS = ("sha256:" + "2b" * 32, "sha256:" + "1a" * 32)  # the candidate, stable
EDGES = tuple(zip(SLOW, (1000 * edge for edge in EDGES_MS), strict=True))
#: Takes a minute of the model (`tests.support.rigs.hostile_rig.DOUBLES`).
_LONG = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [6.5]}]}).encode()
_WRONG = json.dumps({"inputs": [{"name": "z", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}).encode()
_INFER, _SERVICE = f"/v2/models/{MODEL}/infer", "/inference.GRPCInferenceService"
_JSON = ("content-type", "application/json")
EVERY_S = 10


@dataclass(frozen=True)
class Way:
    """Calls of one kind: `times` as many as users make, or one each EVERY_S for forced calls."""

    name: str
    ask: Callable[[Servers], object]
    is_forced: bool = False
    is_long: bool = False  # it leaves its server at work for a minute


def _http(path: str, *head: tuple[str, str], body: bytes = GOOD, method: str = "POST") -> Callable[[Servers], object]:
    return lambda world: over_http(world.parts.envoy.port, path, list(head) or [_JSON], body, method=method)


def _h2(
    call: str, payload: bytes, *more: tuple[str, str], without: tuple[str, ...] = ()
) -> Callable[[Servers], object]:
    head = grpc_head(f"{_SERVICE}/{call}", ("x-sluicegate-model", MODEL), *more, without=without)
    return lambda world: over_h2(world.parts.envoy.port, head, message_of(payload))


def _grpc(payload: bytes, timeout_s: float = 20.0) -> Callable[[Servers], object]:
    def ask(world: Servers) -> None:
        with world.parts.envoy.channel() as channel, contextlib.suppress(grpc.RpcError):
            channel.unary_unary(METHOD)(payload, timeout=timeout_s, metadata=(("x-sluicegate-model", MODEL),))

    return ask


def _leave(world: Servers) -> None:
    """The caller closes its connection as soon as the model works."""
    with contextlib.suppress(OSError):
        over_http(world.parts.envoy.port, _INFER, [_JSON], _LONG, timeout_s=0.02)


_SLOW_MESSAGE = message(MODEL, packed(1, 1)) + raw(struct.pack("<f", 6.5))
WAYS = (
    Way("readiness", _http(f"/v2/models/{MODEL}/ready", body=b"", method="GET")),
    Way("metadata", _http(f"/v2/models/{MODEL}", body=b"", method="GET")),
    Way("statistics", _http(f"/v2/models/{MODEL}/stats", body=b"", method="GET")),
    Way("readiness over gRPC", _h2("ModelReady", b"")),
    Way("statistics over gRPC", _h2("ModelStatistics", b"")),
    Way("JSON of 100 levels", _http(_INFER, body=b"[" * 100)),
    Way("content type of gRPC", _http(_INFER, ("content-type", "application/grpc"))),
    Way("URL of 8,300 bytes", _http(f"{_INFER}?{'a' * 8300}")),
    Way("GET", _http(_INFER, body=b"", method="GET")),
    Way("a version that is none", _http(f"/v2/models/{MODEL}/versions/7/infer")),
    Way("metadata that are no base64", _h2("ModelInfer", good_message(MODEL), ("x-bin", "@@@@"))),
    Way("a gRPC path with a query", _h2("ModelInfer?x", good_message(MODEL))),
    Way("the model's 400", _http(_INFER, body=_WRONG)),
    Way("INVALID_ARGUMENT of the server", _grpc(message(MODEL, packed(1, 3)) + raw(struct.pack("<f", 1.0)))),
    Way("forced calls of 0.6 s", _http(_INFER, _JSON, ("x-sluicegate-release", "r1"), *FORCES.items()), is_forced=True),
    Way("the caller left at once", _leave, is_long=True),
    Way("a deadline of 200 ms", _grpc(_SLOW_MESSAGE, 0.2), is_long=True),
)
#: Of one call: the name of each line that it adds to, with `{digest}` and `{slot}` in it, and by how much in each bucket.
Lines = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
_BUCKET = re.compile(r"B([\d.e+]+)\(\d+,(\d+)\)")


def recorded(ways: Iterable[Way]) -> dict[str, Lines]:
    """Makes each call once. Returns the lines that it added to the gateway's page, by the way's name."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="sluicegate-steering-") as folder, servers(Path(folder)) as world:
        for way in ways:
            if way.is_long:
                world.running["r1"] = world.start("r1")
            world.parts.apply(None, stable=world.arm("r1"), allows_forced=way.is_forced)
            before = _page(world)
            way.ask(world)
            wait_until(lambda before=before: _page(world).total() > before.total(), way.name)
            time.sleep(1.0)  # a caller that left: its attempt ends after its request
            found[way.name] = _added(before, _page(world))
    return found


def _page(world: Servers) -> Counter[tuple[str, str]]:
    """The cumulative count of each bucket of each line."""
    world.parts.envoy.flushed()
    text = world.parts.envoy.admin("/stats?filter=^sli\\.(request|latency)&histogram_buckets=cumulative")
    page: Counter[tuple[str, str]] = Counter()
    for line in text.splitlines():
        name, _, buckets = line.partition(": ")
        for edge, count in _BUCKET.findall(buckets):
            page[name, edge] = int(count)
    return page


def _added(before: Counter[tuple[str, str]], after: Counter[tuple[str, str]]) -> Lines:
    lines: dict[str, list[tuple[str, int]]] = {}
    for (name, edge), count in after.items():
        lines.setdefault(name, []).append((edge, count - before[name, edge]))
    return tuple(
        (re.sub(r"\.slot\.\d+", ".slot.{slot}", name.replace(Rig.STABLE, "{digest}")), tuple(buckets))
        for name, buckets in lines.items()
        if buckets[-1][1]
    )


#: Its short steps, so that evidence decides when it is promoted, and not a least time.
_WELL: dict[str, Any] = {"policy": {"preset": "demo"}, "horizon_s": 3600}
_BAD: dict[str, Any] = {"policy": {"preset": "standard"}, "horizon_s": 1200}
CANDIDATES = {
    "healthy": _WELL,
    "fails 10 %": {**_BAD, "faults": (Fault(0.1),)},
    "5 % take five times as long": {**_BAD, "slower": Latency(tail_frac=0.05)},
}


class Steered(Run):
    """A rollout beside which an attacker asks; its chances are apart from the users', which stay those of the pair."""

    def __init__(self, scenario: Scenario, seed: list[int], lines: Lines, rate_per_s: float | None) -> None:
        """`rate_per_s`: the attacker's calls, split as users' requests are; None: one in EVERY_S, all on the candidate."""
        super().__init__(scenario, np.random.default_rng(seed))
        self.lines, self.rate_per_s = lines, rate_per_s
        self.chance = np.random.default_rng([*seed, 1])
        self.asked: Counter[tuple[int, int]] = Counter()  # by slot and arm
        self.series: dict[str, Series] = {}
        self.last: Reading | None = None

    def _traffic(self, at: int) -> bool:
        is_followed = super()._traffic(at)
        gateway = next(iter(self.gateways.values()))
        if self.rate_per_s is None and self.engine.engine_state.of(ForcedCalls).are_refused:
            self.world.slow_times = ()  # nobody waits behind a call that the gateway refuses
        elif self.rate_per_s is None:
            self.asked[gateway.slot, 0] += at > 0 and at % EVERY_S == 1
        else:
            count = int(self.chance.poisson(self.rate_per_s))
            drawn = int(self.chance.binomial(count, gateway.weight)) if gateway.weight else 0
            self.asked[gateway.slot, 0] += drawn
            self.asked[gateway.slot, 1] += count - drawn
        return is_followed

    def _readings(self, at: int) -> dict[str, Reading]:
        users = super()._readings(at)
        name, own = next(iter(users.items()))
        counted = parse("\n".join(self._page()), self.series).get(MODEL)
        if counted is None:
            return users
        page = counted.counters(name, own.epoch, datetime.fromtimestamp(own.at, UTC))
        self.last = more = _reading(ARMS, page, EDGES, own.slot, self.last)
        others = {
            slot: (one + more.others[slot][0], two + more.others[slot][1]) for slot, (one, two) in own.others.items()
        }
        return {
            name: replace(own, candidate=own.candidate + more.candidate, stable=own.stable + more.stable, others=others)
        }

    def _page(self) -> list[str]:
        return [
            f"{name.format(digest=ARMS[arm], slot=slot)}: "
            + " ".join(f"B{edge}(0,{count * each})" for edge, each in buckets)
            for (slot, arm), count in self.asked.items()
            for name, buckets in self.lines
        ]


def walked(candidate: str, run: int, way: Way | None = None, lines: Lines = (), times: float = TIMES) -> Ran:
    """One rollout; with a way, beside an attacker."""
    scenario = Scenario("steering", candidate, 10.0, base=(0.003,), poison=0.002, retried=True, objectives=OBJECTIVES,
                        latency=Latency(), **CANDIDATES[candidate])  # fmt: skip
    scenario = replace(scenario, policy={**scenario.policy, "second_look": {"looks": 1}})
    seed = [SEED, zlib.crc32(candidate.encode()), run]
    if way is None:
        return Run(scenario, np.random.default_rng(seed)).walked(is_watched_on=False)
    if way.is_forced:  # users of the candidate wait behind a forced call
        scenario = replace(scenario, slow_times=(Fault(0.6, every_s=EVERY_S, on_s=1),))
        return Steered(scenario, seed, lines, None).walked(is_watched_on=False)
    users_per_s = scenario.rate_per_s * 10_000 / scenario.parsed().steps[0].weight_bp
    return Steered(scenario, seed, lines, times * users_per_s).walked(is_watched_on=False)


def counts_nothing(lines: Lines) -> bool:
    """Whether a call adds to no count of an arm: then its pairs can differ in nothing, and a few of them are walked."""
    page = "\n".join(
        f"{name.format(digest=ARMS[0], slot=0)}: " + " ".join(f"B{e}(0,{n})" for e, n in each) for name, each in lines
    )
    counted = parse(page, {}).get(MODEL)
    if counted is None:
        return True
    read = _reading(ARMS, counted.counters("one", "e", datetime.now(UTC)), EDGES, 0)
    return not (read.candidate.attempts or read.candidate.routed or any(read.candidate.bad.values()))


def told(way: Way, candidate: str, pairs: list[tuple[Ran, Ran]]) -> str:
    """One line: pairs that ended alike, and the median of the times' ratios with its interval."""
    alike = sum(one.state == other.state for one, other in pairs)
    ratios = np.array(
        [other.ended_at / one.ended_at for one, other in pairs if np.isfinite(one.ended_at + other.ended_at)]
    )
    chance = np.random.default_rng(SEED)
    medians = [np.median(chance.choice(ratios, len(ratios))) for _ in range(1000)] if len(ratios) else [np.nan]
    low, high = np.quantile(medians, [0.025, 0.975])
    is_kept = alike >= 0.99 * len(pairs) and bool(len(ratios)) and 0.9 <= np.median(ratios) <= 1.1
    ends = ", ".join(f"{state} {count}" for state, count in Counter(one.state for one, _ in pairs).most_common())
    return (
        f"{way.name:32} {candidate:28} n {len(pairs):3} {'ok  ' if is_kept else 'OVER'} alike {alike / len(pairs):6.1%} · "
        f"time × {np.median(ratios) if len(ratios) else np.nan:.2f} ({low:.2f} to {high:.2f}) · control: {ends}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS, help="pairs for each line (default: %(default)s)")
    parser.add_argument(
        "--only", nargs="*", default=[""], metavar="PART", help="ways whose name has one of these parts"
    )
    parser.add_argument("--times", type=float, default=TIMES, help="calls for each user request (default: %(default)s)")
    parser.add_argument("--lines", action="store_true", help="print what each call adds to the gateway's page")
    args = parser.parse_args()
    ways = [way for way in WAYS if any(part in way.name for part in args.only)]
    lines = recorded(ways)
    for way in ways if args.lines else ():
        print(way.name, *(f"  {name}: {buckets}" for name, buckets in lines[way.name]), sep="\n")
    for candidate in CANDIDATES:
        controls = [walked(candidate, run) for run in range(args.runs)]
        for way in ways:
            began = time.monotonic()
            of_way, few = lines[way.name], FEW if counts_nothing(lines[way.name]) and not way.is_forced else args.runs
            pairs = [(one, walked(candidate, run, way, of_way, args.times)) for run, one in enumerate(controls[:few])]
            print(f"{told(way, candidate, pairs)}  ({time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
