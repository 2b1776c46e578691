"""How many rollouts one engine ticks in time, and what it costs; and whether a long life makes anything grow.

    python -m benchmarks.engine_scale [--rollouts 10,100,1000] [--seconds 60] [--gateways 1] [--fake]
    python -m benchmarks.engine_scale --week [--ticks 604800] [--rollouts 4]

A PostgreSQL of its own (durable: fsync and synchronous_commit on) and, in a process of its own, an admin page as large as
that of an Envoy with these models, whose counters grow by 20 requests per second and model. The engine is the product's own
loop, ticking every second. `--fake` reads an in-process FakeGateway instead.

`lag` is how late a rollout's tick begins after its schedule; a `turn` ticks all of them, from renewing the lease to the last
commit; its CPU seconds are what it would take where nothing else runs, but for waiting for the database. CPU is that of the
engine's process and of all PostgreSQL's processes, per second of the run.

`--week` runs a few rollouts through a simulated week, a tick for each second, as fast as it goes: it shows how many rows and
bytes there are, and how large the process is.
"""

from __future__ import annotations

import argparse
import gc
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.admin_page import page_server, tell
from benchmarks.stores import database

if TYPE_CHECKING:
    from sluicegate.stack.postgres import Postgres

TICK_S = 1.0
ENVIRONMENT = "production"
#: Long steps: the rollouts shall go on, not end.
POLICY = {
    "preset": "fast",
    "second_look": {"looks": 1},
    "shadow": {"sample_pct": 0, "min_s": 0, "min_samples": 1, "deadline_s": 60},
    "steps": [{"weight_pct": 5, "min_s": 1_000_000, "min_samples": 10**8, "deadline_s": 2_000_000}],
    "guards": [{"indicator": "errors"}, {"indicator": "slow", "threshold_ms": 250}],
    "deadline_s": 2_592_000,
}
OBJECTIVES = {"errors_max_frac": 0.01, "slow": {"threshold_ms": 250, "max_frac": 0.01}}


# --- the cast ---------------------------------------------------------------------------------------------------------


class Cast:
    """Models with a rollout each, behind gateways that follow every route at once."""

    def __init__(self, gateways: int, admin_url: str) -> None:
        from serving.models import Gateway
        from tests.support.worlds.factories import make_admin, make_environment

        self.admin = make_admin()
        self.environment = make_environment(ENVIRONMENT, needs_passed_report=False)
        self.gateways = [
            Gateway.objects.create(
                environment=self.environment, name=f"gateway-{i}", admin_url=admin_url, http_url="", grpc_address=""
            )
            for i in range(gateways)
        ]
        self.arms: dict[str, tuple[str, str]] = {}  # by model: digests of stable and candidate

    def grow(self, count: int) -> None:
        """More models, until there are `count`, each with a rollout that is preparing."""
        from accounts.core.access import Actor
        from rollouts.actions import start_rollout
        from serving.traffic.actions.routes import set_route
        from tests.support.worlds.factories import make_model, make_release

        while len(self.arms) < count:
            model = make_model(f"model-{len(self.arms):04d}", objectives=OBJECTIVES, rollout_policy=POLICY)
            stable, candidate = make_release(model), make_release(model)
            for release in (stable, candidate):
                self._serve(release)
            set_route(
                actor=Actor.system("bench"),
                environment=self.environment,
                model=model,
                stable=stable,
                reason="It serves.",
            )
            start_rollout(actor=self.admin, candidate=candidate, environment=self.environment)
            self.arms[model.slug] = (str(stable.digest), str(candidate.digest))

    def _serve(self, release: Any) -> None:
        from tests.support.worlds.factories import make_replica, make_server

        replica = make_replica(release, self.environment, state="ready")
        make_server(replica)

    def obey(self) -> None:
        """Every gateway has taken every route."""
        from django.utils import timezone

        from serving.models import Route
        from serving.traffic.control_plane import store

        now = timezone.now()
        rows = [
            store.AckRow(gateway.pk, route.pk, route.generation, "", now)
            for gateway in self.gateways
            for route in Route.objects.all()
        ]
        store.write_acks(rows)
        self.be_seen(now)

    def be_seen(self, now: datetime) -> None:
        from serving.traffic.control_plane import store

        store.write_seen([gateway.pk for gateway in self.gateways], now)


@contextmanager
def seen_all_the_time(cast: Cast) -> Iterator[None]:
    """Gateways that keep speaking to their control plane."""
    from django.db import connection
    from django.utils import timezone

    stop = threading.Event()

    def run() -> None:
        while not stop.wait(3.0):
            cast.be_seen(timezone.now())
        connection.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


# --- what is measured -------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """One run's turns and costs."""

    lags: list[float] = field(default_factory=list)
    turns: list[float] = field(default_factory=list)
    cpus: list[float] = field(
        default_factory=list
    )  # of the engine's thread, from the end of one turn to that of the next
    engine_cpu_s: float = 0.0
    postgres_cpu_s: float = 0.0
    wall_s: float = 0.0


def measure(cast: Cast, counters: Any, postgres: Postgres, seconds: float) -> Run:
    """The engine's own loop for so long, after its memory is warm."""
    from rollouts.engine import loop

    run = Run()

    def keep(lags: Any, turn_s: float) -> None:
        run.lags += lags
        run.turns.append(turn_s)
        run.cpus.append(time.thread_time())

    engine = loop.Engine(counters, tick_s=TICK_S, lease_s=3.0)
    loop.observe_turn = keep
    _bring_live(engine, cast)
    run.lags, run.turns, run.cpus = [], [], []
    threading.Timer(seconds, engine.stop).start()
    gc.collect()
    cpu, theirs, began = time.process_time(), _cpu_of_tree(_pid(postgres)), time.monotonic()
    engine.run()
    run.wall_s = time.monotonic() - began
    run.cpus = [later - earlier for earlier, later in pairwise(run.cpus)]
    run.engine_cpu_s, run.postgres_cpu_s = time.process_time() - cpu, _cpu_of_tree(_pid(postgres)) - theirs
    return run


def _bring_live(engine: Any, cast: Cast) -> None:
    """Turns until every rollout has traffic that the gateways acknowledged, and some more."""
    from rollouts.models import Rollout

    timings, engine.timings = engine.timings, replace(engine.timings, effects_share=1e6)  # all start in one turn
    while Rollout.objects.exclude(state="shifting").exists():
        engine.step()
    engine.timings = timings
    while Rollout.objects.exclude(state="shifting", step_started_at__isnull=False).exists():
        cast.obey()
        engine.step()
    for _ in range(5):
        engine.step()


def _pid(postgres: Postgres) -> int:
    assert postgres.process is not None
    return postgres.process.pid


def _cpu_of_tree(pid: int) -> float:
    """CPU seconds of a process and of its children, those that ended included."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for one in (pid, *_children(pid)):
        try:
            parts = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, parts[11:15] if one == pid else parts[11:13])) / ticks
    return total


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def quantile(values: Collection[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def scale(sizes: list[int], seconds: float, gateways: int, *, is_fake: bool) -> None:
    print(
        f"{os.cpu_count()} cores, {gateways} gateway(s), {'FakeGateway' if is_fake else 'admin page over HTTP'}, {seconds:g} s each"
    )
    print(
        "rollouts | lag p50 / p99 / max s | turn p50 / p99 / max s | CPU s of a turn p50 / p99 | engine CPU | PostgreSQL CPU "
        "| ms CPU per rollout and tick | turns"
    )
    with page_server() as url, database(is_durable=True) as postgres:
        from serving.traffic.adapters.envoy_counters import EnvoyCounters

        cast = Cast(gateways, url)
        for size in sizes:
            cast.grow(size)
            tell(url, cast.arms)
            counters = steady_fake(cast) if is_fake else EnvoyCounters()
            with seen_all_the_time(cast):
                run = measure(cast, counters, postgres, seconds)
            lags = " / ".join(f"{quantile(run.lags, share):.3f}" for share in (0.5, 0.99, 1))
            turns = " / ".join(f"{quantile(run.turns, share):.3f}" for share in (0.5, 0.99, 1))
            cpus = " / ".join(f"{quantile(run.cpus, share):.3f}" for share in (0.5, 0.99))
            ms = 1000 * (run.engine_cpu_s + run.postgres_cpu_s) / max(1, len(run.lags))
            print(
                f"{size} | {lags} | {turns} | {cpus} | {run.engine_cpu_s / run.wall_s:.2f} | {run.postgres_cpu_s / run.wall_s:.2f} | "
                f"{ms:.2f} | {len(run.turns)} in {run.wall_s:.0f} s",
                flush=True,
            )
        print(f"state of a rollout: {_state_bytes():.0f} bytes; resident memory of the engine: {_rss_mib():.0f} MiB")


def steady_fake(cast: Cast) -> Any:
    from tests.support.fakes.gateway import FakeGateway

    class Steady(FakeGateway):
        """Each reading first brings a second of traffic."""

        def read(self, **asked: Any) -> Any:
            for model, (stable, candidate) in cast.arms.items():
                self.count(model, stable, attempts=19)
                self.count(model, candidate, attempts=1)
            return super().read(**asked)

    return Steady()


# --- a week -----------------------------------------------------------------------------------------------------------


class SimulatedClock:
    """Goes on by a tick with every turn."""

    ahead_s = 0.0

    def __init__(self) -> None:
        self.at = datetime(2030, 1, 1, tzinfo=UTC)

    def sync(self) -> datetime:
        return self.at

    def now(self) -> datetime:
        return self.at


def week(rollouts: int, ticks: int) -> None:
    """A tick for each second of simulated time; the last rollout gets a request now and then, so that it often has no data."""
    with database(is_durable=False):
        from rollouts.engine.loop import Engine
        from tests.support.fakes.gateway import FakeGateway

        cast, clock = Cast(1, ""), SimulatedClock()
        cast.grow(rollouts)
        fake = FakeGateway(now=clock.now)
        engine = Engine(fake, tick_s=TICK_S, lease_s=60.0, clock=clock)  # type: ignore[arg-type]
        busy, thin = list(cast.arms.items())[:-1], list(cast.arms.items())[-1]

        def tick() -> None:
            clock.at += timedelta(seconds=TICK_S)
            for model, (stable, candidate) in busy:
                fake.count(model, stable, attempts=19)
                fake.count(model, candidate, attempts=1)
            if int(clock.at.timestamp()) % 45 == 0:
                for digest in thin[1]:
                    fake.count(thin[0], digest, attempts=1)
            engine.step()

        _run_week(cast, clock, tick, ticks)


def _run_week(cast: Cast, clock: SimulatedClock, tick: Callable[[], None], ticks: int) -> None:
    from serving.models import Gateway

    print(f"{len(cast.arms)} rollouts, {ticks} simulated ticks of {TICK_S:g} s")
    print(
        "simulated | ticks/s | observations | decisions | events | bytes of state | MiB of observations | MiB of rollouts | MiB resident"
    )
    cast.obey()
    Gateway.objects.update(seen_at=clock.at + timedelta(days=400))  # they stay about, whatever the simulated time is
    began, done = time.monotonic(), 0
    shown = {max(1, round(ticks * share)) for share in (0.0001, 0.005, 0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1)}
    for _ in range(20):
        tick()
        cast.obey()
        Gateway.objects.update(seen_at=clock.at + timedelta(days=400))
    while done < ticks:
        tick()
        done += 1
        if done in shown:
            print(f"{timedelta(seconds=done)} | {done / (time.monotonic() - began):.0f} | {_growth()}", flush=True)


def _growth() -> str:
    from django.db import connection

    from ledger.models import Event
    from rollouts.models import DecisionRecord, Observation

    gc.collect()
    sizes = []
    for table in ("rollouts_observation", "rollouts_rollout"):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_total_relation_size(%s)", [table])
            sizes.append(cursor.fetchone()[0] / 2**20)
    return (
        f"{Observation.objects.count()} | {DecisionRecord.objects.count()} | {Event.objects.count()} | {_state_bytes():.0f} | "
        f"{sizes[0]:.1f} | {sizes[1]:.1f} | {_rss_mib():.0f}"
    )


def _state_bytes() -> float:
    """Of the JSON that the engine keeps of a rollout, on average."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT avg(length(engine_state::text)) FROM rollouts_rollout")
        return float(cursor.fetchone()[0])


def _rss_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", default="", help="how many, or several numbers with commas")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--fake", action="store_true")
    parser.add_argument("--week", action="store_true")
    parser.add_argument("--ticks", type=int, default=604_800)
    given = parser.parse_args()
    sizes = sorted(int(one) for one in (given.rollouts or ("4" if given.week else "10,100,1000")).split(","))
    if given.week:
        week(sizes[0], given.ticks)
    else:
        scale(sizes, given.seconds, given.gateways, is_fake=given.fake)


if __name__ == "__main__":
    main()
