"""How soon a decision is in force on every gateway, with a thousand models and fifty gateways.

Run `python -m benchmarks.fleet_scale [--models 1000] [--gateways 50] [--changes 200] [--real 2]`; some minutes. Ends with 1 where a change
was in force on the last gateway later than `--limit-ms` in more than one case of a hundred.

A PostgreSQL of its own (durable), one control plane in a process of its own, and gateways: real Envoys (`--real`, the second one behind
its relay) and, in one more process, stubs that take every resource and say so at once. All share this machine's cores, so the figures are
upper bounds. Weights change by `set_route`, which the engine calls, one change after another, each when the one before is in force.

*decided*: `set_route` is called; *committed*: it has returned; *in force*: the last gateway's acknowledgement has reached the control
plane; *recorded*: it can be read in the database, where the engine looks. Three worlds in one run: one model and one stub; the whole fleet;
the whole fleet while replicas come and go (`--replicas-per-s`) and the weight is taken back to zero.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fleet_world import SEED, SETTLES_WITHIN_S, Processes, World, replicas_come_and_go
from benchmarks.stores import database

WITHIN_S = 60.0
STAGES = ("decided", "committed", "woken", "read", "published", "first sent", "last sent", "in force", "recorded")


@dataclass(frozen=True)
class Change:
    """One change of a weight, as whoever made it saw it. Unix seconds."""

    route_id: int
    generation: int
    host: str
    decided: float
    committed: float
    acked: float  # as the product has it


def change(world: World, number: int, bp: int, gateways: int) -> Change:
    """Made, and waited for."""
    from serving.traffic.control_plane.virtual_hosts import vhost_name

    decided = time.time()
    route = world.change(number, bp)
    committed = time.time()
    end = time.monotonic() + WITHIN_S
    while (told := world.acknowledged(route))[0] < gateways:
        if time.monotonic() > end:
            words = world.words(route)
            raise RuntimeError(
                f"generation {route.generation} is in force on {told[0]} of {gateways} gateways: {words}"
            )
        time.sleep(0.02)
    return Change(route.pk, route.generation, vhost_name(route.model.slug), decided, committed, told[1])


def changes(world: World, count: int, gateways: int, *, is_rollback: bool = False) -> list[Change]:
    """So many, at random rollouts; `is_rollback`: every other one gives the weight back, and is left out."""
    draw, made = random.Random(SEED), []
    for i in range(count):
        number = draw.randrange(len(world.split))
        if is_rollback:
            change(world, number, 2500 + i, gateways)
        made.append(change(world, number, 0 if is_rollback else 1000 + i, gateways))
        time.sleep(draw.uniform(0.0, 0.05))
    return made


def settle(world: World, processes: Processes, gateways: int) -> float:
    """Seconds until every gateway has every route."""
    began = time.monotonic()
    while world.settled() < world.models * gateways:
        processes.cpu_s()
        if time.monotonic() - began > SETTLES_WITHIN_S:
            raise RuntimeError(f"{world.settled()} of {world.models * gateways} routes are taken")
        time.sleep(0.2)
    return time.monotonic() - began


# --- what was noted ---------------------------------------------------------------------------------------------------


def instants(made: Iterable[Change], noted: dict[str, Any]) -> list[dict[str, Any]]:
    """When each change came to each stage; `by`: when each gateway's word of it came to the control plane."""
    plane, sent = noted["control plane"], noted.get("stub gateways", [])
    words = [(at, name, *one) for at, (name, told) in plane["acknowledged"] for one in told]
    found = []
    for one in made:
        key = (one.route_id, one.generation)
        by = {name: at for at, name, route_id, generation, _ in reversed(words) if (route_id, generation) == key}
        read = min(at for at, generation in plane["read"] if generation >= one.generation)
        published = min(at for at, generation in plane["published"] if generation >= one.generation)
        pushed = [row for row in sent if row[2] == one.host and published <= row[0] <= max(by.values())]
        recorded = max(at for at, rows in plane["written"] for row in rows if tuple(row[1:]) == key)
        found.append({
            "decided": one.decided, "committed": one.committed, "woken": max(at for at, _ in plane["woken"] if at <= read),
            "read": read, "published": published, "first sent": min(row[0] for row in pushed),
            "last sent": max(row[0] for row in pushed), "in force": max(by.values()), "recorded": recorded,
            "by": by, "acked": one.acked, "bytes": pushed[0][3],
        })  # fmt: skip
    return found


def row(words: str, values_ms: Iterable[float]) -> str:
    p50, p95, p99, most = np.quantile(list(values_ms), [0.5, 0.95, 0.99, 1.0])
    return f"| {words} | {p50:.1f} | {p95:.1f} | {p99:.1f} | {most:.1f} |"


def report(words: str, seen: list[dict[str, Any]], stubs: int) -> float:
    """Prints the table of one phase; returns its p99 of decided → in force, in ms."""

    def ms(start: str, end: str) -> list[float]:
        return [1000 * (one[end] - one[start]) for one in seen]

    print(f"\n**{words}**: {len(seen)} changes, {seen[0]['bytes']} bytes to each gateway\n")
    print("| ms | p50 | p95 | p99 | max |\n|---|---|---|---|---|")
    print(row("**decided → in force on all**", ms("decided", "in force")))
    print(row("decided → the last acknowledgement's own time (`acked_at`)", ms("decided", "acked")))
    print(row("decided → recorded", ms("decided", "recorded")))
    for start, end in pairwise(STAGES):
        print(row(f"{start} → {end}", ms(start, end)))
    names = sorted(seen[0]["by"])
    for name in names:
        if not name.startswith("stub"):
            print(row(f"published → in force on {name}", [1000 * (one["by"][name] - one["published"]) for one in seen]))
    if stubs:
        last = [max(at for name, at in one["by"].items() if name.startswith("stub")) for one in seen]
        at = [1000 * (end - one["published"]) for end, one in zip(last, seen, strict=True)]
        print(row(f"published → in force on {stubs} stubs", at))
    return float(np.quantile(ms("decided", "in force"), 0.99))


def spent(words: str, before: dict[str, float], after: dict[str, float], wall_s: float, count: int) -> None:
    told = [f"{name} {1000 * (after[name] - before[name]) / count:.0f}" for name in after]
    print(f"\nCPU ms for each change, {words} ({wall_s:.0f} s): {', '.join(told)}", flush=True)


# --- the phases -------------------------------------------------------------------------------------------------------


def alone(world: World, folder: Path, count: int) -> float:
    """One model, one gateway."""
    world.grow(1, 1)
    world.register("stub-0", 10_000)
    processes = Processes(folder)
    try:
        processes.start(["stub-0"])
        settle(world, processes, 1)
        made = changes(world, count, 1)
        return report("one model, one gateway", instants(made, processes.stop()), 1)
    finally:
        processes.kill()


def fleet(world: World, folder: Path, asked: argparse.Namespace) -> float:
    """All models, all gateways, at rest and while replicas come and go."""
    from tests.support.servers.stub_server import free_port

    world.grow(asked.models, asked.rollouts)
    real = {f"envoy-{'relayed' if i % 2 else 'bare'}-{i}": free_port() for i in range(asked.real)}
    stubs = [f"stub-{i}" for i in range(asked.gateways - len(real))]
    for name, port in real.items():
        world.register(name, port)
    for i, name in enumerate(stubs):
        world.register(name, 10_000 + i)
    processes = Processes(folder)
    try:
        processes.start(stubs)
        for name in real:
            processes.spawn_envoy(name, is_relayed="relayed" in name)
        took = settle(world, processes, asked.gateways)
        print(
            f"\n{asked.models} models on {asked.gateways} gateways ({len(real)} real): all settled in {took:.0f} s",
            flush=True,
        )
        phases, cpu, began = {}, processes.cpu_s(), time.monotonic()
        time.sleep(5.0)
        spent("at rest for 5 s", cpu, processes.cpu_s(), 5.0, 1)
        cpu, began = processes.cpu_s(), time.monotonic()
        phases["at rest"] = changes(world, asked.changes, asked.gateways)
        spent("at rest", cpu, processes.cpu_s(), time.monotonic() - began, asked.changes)
        if asked.replicas_per_s:
            cpu, began = processes.cpu_s(), time.monotonic()
            with replicas_come_and_go(world, asked.replicas_per_s) as done:
                phases["back to zero"] = changes(world, asked.rollbacks, asked.gateways, is_rollback=True)
                pace = len(done) / (time.monotonic() - began)
            spent(
                f"{pace:.0f} replica changes a second",
                cpu,
                processes.cpu_s(),
                time.monotonic() - began,
                2 * asked.rollbacks,
            )
        noted = processes.stop()
        found = [
            report(f"{asked.models} models, {asked.gateways} gateways, {words}", instants(made, noted), len(stubs))
            for words, made in phases.items()
        ]
        return found[0]
    except RuntimeError:
        processes.cpu_s()  # a process that has ended says why
        raise
    finally:
        processes.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--rollouts", type=int, default=20, help="models that have a candidate")
    parser.add_argument("--gateways", type=int, default=50)
    parser.add_argument("--real", type=int, default=2, help="of these, Envoys; every other one behind its relay")
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--rollbacks", type=int, default=30, help="while replicas come and go")
    parser.add_argument("--replicas-per-s", type=float, default=200.0)
    parser.add_argument("--limit-ms", type=float, default=150.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sg-") as name, database(is_durable=True):
        world = World()
        one = alone(world, Path(name), min(asked.changes, 50))
        all_ms = fleet(world, Path(name), asked)
    print(f"\np99 of decided → in force: {all_ms:.0f} ms, {all_ms / one:.1f} times that of one model and one gateway")
    if all_ms > asked.limit_ms:
        print(f"That is more than {asked.limit_ms:.0f} ms.")
    return int(all_ms > asked.limit_ms)


if __name__ == "__main__":
    sys.exit(main())
