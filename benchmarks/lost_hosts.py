"""Hosts that are lost: links cut so that packets vanish, hosts killed, the database out of reach, under users who ask all the time.

Run as root `python -m benchmarks.lost_hosts [--agents] [--only ROW] [--list]`. Nine network namespaces of this machine on one bridge: a
database, two control planes with an engine each, three nodes, two gateways with relays, and the users. Control planes, engines, relays,
Envoys and PostgreSQL are real; the nodes' servers are stubs without agents. With `--agents` each node has its real agent, and a fourth
node may join: what serves is real Triton servers that agents start, and the rows are of what becomes of them.
Ends with 1 where a bound is broken, 2 where namespaces are not permitted.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks.losses.net import network
from benchmarks.losses.world import GATEWAYS, GRPC_PORT, HTTP_PORT, JOINS, NAMES, NODES, PLANES, machines, until

SETTLES_S = 3.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="ROW", help="rows whose name contains this; may be repeated")
    parser.add_argument("--list", action="store_true", help="name the rows, with their bounds")
    parser.add_argument("--keep", metavar="FOLDER", help="where the logs are copied to")
    parser.add_argument("--agents", action="store_true", help="nodes with real agents and servers, and their rows")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="sluicegate-hosts-"))
    folder.chmod(0o711)
    try:
        names = [JOINS, *NAMES] if asked.agents else NAMES
        with network(names) as net, machines(net, folder, has_agents=asked.agents) as made:
            rows = importlib.import_module("benchmarks.losses.nodes" if asked.agents else "benchmarks.losses.rows")
            chosen = [one for one in rows.ROWS if not asked.only or any(part in one.name for part in asked.only)]
            if asked.list:
                for row in chosen:
                    print(f"{row.name}: at most {row.most_lost} lost, {row.most_s:g} s ({row.bound})")
                return 0
            return run(rows, chosen, made)
    except RuntimeError as error:
        print(f"Hosts cannot be made here, it takes root and network namespaces: {error}", file=sys.stderr)
        return 2
    finally:
        if asked.keep:
            shutil.copytree(folder, asked.keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock", "postgres"))
        shutil.rmtree(folder, ignore_errors=True)


def run(rows: Any, chosen: list[Any], made: Any) -> int:
    story, question = rows.cast(made)
    for name in [*NODES, *PLANES, *GATEWAYS]:
        made.start(name)
    at = {name: made.host(name).address for name in GATEWAYS}
    gateways = {name: (f"{ip}:{HTTP_PORT}", f"{ip}:{GRPC_PORT}") for name, ip in at.items()}
    users = importlib.import_module("benchmarks.losses.users").Users(gateways, question)
    print(f"every gateway follows its routes after {story.begin():.1f} s", flush=True)
    users.start()
    scene = rows.Scene(made.net, made, story, users)
    broken = 0
    try:
        for row in chosen:
            broken += play(rows, row, scene)
    finally:
        users.stop()
        story.end()
    print(f"{broken} rows broke their bounds" if broken else "every bound held")
    return int(broken > 0)


def play(rows: Any, row: Any, scene: Any) -> bool:
    """Whether it broke its bound. Prints its line of the table."""
    until(lambda: all(rows.is_answering(scene, name) for name in GATEWAYS), "all is well before the row begins", 60)
    began = time.monotonic()
    try:
        found = row.play(scene)
    except Exception as error:
        traceback.print_exc()
        found = rows.Found(float("inf"), wrong=[str(error)])
    time.sleep(SETTLES_S)
    found.asked = len(scene.users.since(began))
    for name in GATEWAYS:
        (found.lost if name in found.counted_at else found.lost_elsewhere).update(scene.users.lost(began, name))
    if lost := [one.began - began for one in scene.users.since(began) if one.error and one.gateway in found.counted_at]:
        found.told["lost at s"] = " ".join(f"{one:.1f}" for one in lost[:20])
    found.wrong += scene.story.twice()
    slowest = max((one.ended - one.began for one in scene.users.since(began) if not one.error), default=0.0)
    is_broken = found.lost.total() > row.most_lost or found.seconds > row.most_s or bool(found.wrong)
    told = ", ".join(
        f"{key} {value:.1f}" if isinstance(value, float) else f"{key} {value}" for key, value in found.told.items()
    )
    print(
        f"| {row.name} | {found.asked} | {found.lost.total()} {dict(found.lost) or ''} | {found.lost_elsewhere.total()} | "
        f"{found.seconds:.1f} | {row.most_lost} / {row.most_s:g} s | {told}; slowest {slowest:.1f} s | "
        f"{'BROKEN ' + '; '.join(found.wrong) if is_broken else 'held'} |",
        flush=True,
    )
    return is_broken


if __name__ == "__main__":
    sys.exit(main())
