"""Cost of process faults for users, uploads, gate runs, pages and a rollout, on a local stack.

Run `python -m benchmarks.fault_matrix [--only PART …] [--out FILE]`; a minute for each fault, and
`--list` prints their names. A candidate has half of a model's traffic, in a step that does not end;
15 users a second ask this model and 8 a second ask an idle one, over HTTP and gRPC in turn. A small
release is pushed each 5 s, a gate run starts just before the fault, and a signed-in person asks for
the model's page four times a second, each time on a new connection.

Each row prints when it ends. A failed request that was sent before a kill and ended after it counts as
*in flight*. A row is *over* if another request failed, if the rollout, a gate run, an upload or a server
did not end as the fault allows, or if pages were away longer than promised. The row then names the
known fault in the product, if there is one. A limit that left no trace in the logs and events *did not
bite*. The exit code is 1 if a row without a known fault is over.

Not tried: jumps of the clock, loss of the network, full disks, kills by the kernel for memory.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psycopg

from benchmarks.after_kill import MOST_S, token_of, until
from benchmarks.fault_callers import Call, Uploads, failures
from benchmarks.fault_kinds import FAULTS, PUSHED, Fault, World
from sluicegate.stack import running

#: Users are watched for this long from the fault on, and for _AFTER_S from its end on, in seconds.
_WATCH_S, _AFTER_S = 30.0, 15.0
_GATE_S = 240.0
#: How logs and events state a shortage of files or memory.
SHORT = re.compile(
    r"too many open files|no file descriptors|EMFILE|epoll_create1 unavailable|cannot allocate memory|MemoryError",
    re.I,
)


@dataclass
class Row:
    """Observations of one fault. `over`: each observation that breaks a promise."""

    fault: Fault
    cells: list[str] = field(default_factory=list)
    over: list[str] = field(default_factory=list)

    HEAD = (
        "| fault | users, rollout | users, idle | p99, ms | rollout | gate | uploads | pages failed, back after | "
        "servers changed | over |"
    )

    def __str__(self) -> str:
        known = f" (known: {self.fault.known})" if self.over and self.fault.known else ""
        return f"| {self.fault.name} | {' | '.join(self.cells)} | {'; '.join(self.over) or 'no'}{known} |"

    def take(self, cell: str, *over: str) -> None:
        self.cells.append(cell)
        self.over += [one for one in over if one]


@dataclass(frozen=True)
class Span:
    """When a fault began and ended, and when its users were left alone, in monotonic seconds. `leads_s`: seconds
    until another engine led, or None if no engine was killed."""

    began: float
    ended: float
    watched: float
    leads_s: float | None


def observed(world: World, fault: Fault, number: int) -> Row:
    world.calm()
    row, before, world.killed_at = Row(fault), world.servers(), None
    logs = {path: path.stat().st_size for path in (world.stack.state_dir / "logs").iterdir()}
    (event,) = world.rows("SELECT coalesce(max(seq), 0) FROM ledger_event")[0]
    (decision,) = world.rows("SELECT coalesce(max(id), 0) FROM rollouts_decisionrecord")[0]
    with Uploads(world.shop, world.folder / f"row-{number}", PUSHED) as uploads:
        gate = world.shop.author.start_gates(uploads.push())
        span = _happens(world, fault, uploads)
        _count_users(row, world, span)
        state = world.shop.view(world.rollout)["state"]
        told = world.rows(
            "SELECT DISTINCT code FROM rollouts_decisionrecord WHERE id > %s AND rollout_id = %s AND code <> ''",
            decision,
            world.rollout,
        )
        words = ", ".join([state, *sorted(code for (code,) in told)])
        row.take(words, f"rollout {state}" if state != fault.rollout else "")
        if span.leads_s is not None:
            late = f"another engine leads after {span.leads_s:.1f} s"
            row.cells[-1] += f"; {late}"
            row.over += [late] if span.leads_s > MOST_S["decision"] else []
        verdict = world.shop.author.wait_for_gates(gate, timeout_s=_GATE_S)["verdict"]
        row.take(verdict, f"gate {verdict}" if verdict != "passed" else "")
        row.take(uploads.words(), *uploads.problems())
    looks = [look for look in world.pages.since(span.began) if look.asked < span.watched]
    row.take(*page_words(looks, span.ended, fault.page_s))
    after = world.servers()
    changed = [name for name, pids in before.items() if after.get(name) != pids]
    bad = [f"{name} replaced" for name in changed if name not in fault.replaces]
    row.take(", ".join(changed) or "none", *bad)
    if fault.limited and not _bit(world, logs, event, fault.limited):
        row.cells[0] = f"(the limit did not bite) {row.cells[0]}"
    return row


def _happens(world: World, fault: Fault, uploads: Uploads) -> Span:
    """Lets the fault happen, with uploads beside it, and waits until they and the users were watched."""
    uploads.begin()
    another_leads = _engine_leads(world) if fault.leads else None
    began = time.monotonic()
    with contextmanager(fault.begins)(world):
        leads_s = another_leads() if another_leads else None
        time.sleep(max(0.0, began + fault.for_s - time.monotonic()))
        ended = time.monotonic() if fault.for_s else began
    time.sleep(max(_AFTER_S, began + _WATCH_S - time.monotonic()))
    watched = time.monotonic()
    uploads.end()
    return Span(began, ended, watched, leads_s)


def _engine_leads(world: World) -> Callable[[], float]:
    """A function that waits for another leader, and returns the seconds since this call."""
    held: int = world.rows("SELECT token FROM ledger_lease WHERE name = 'engine'")[0][0]
    began = time.monotonic()

    def wait() -> float:
        with psycopg.connect(world.stack.database_url, autocommit=True) as session:
            until(lambda: token_of(session) > held)
        return time.monotonic() - began

    return wait


def _count_users(row: Row, world: World, span: Span) -> None:
    began = span.began
    fast: list[float] = []
    for users in world.users.values():
        calls = [call for call in users.since(began - 1) if call.asked < span.watched]
        kinds, flying = failures(calls, world.killed_at)
        words = f" ({', '.join(f'{count} {kind}' for kind, count in kinds.most_common())})" if kinds else ""
        beside = f", {flying} in flight" if flying else ""
        row.take(
            f"{kinds.total()} / {len(calls)}{words}{beside}",
            f"{kinds.total()} failed" if kinds else "",
        )
        fast += [call.ended - call.asked for call in calls if not call.error and call.asked < span.ended + 5]
        for call in [one for one in calls if one.error][:8]:
            print(
                f"  {users.model} {call.asked - began:+.2f} to {call.ended - began:+.2f} s: {call.told}",
                flush=True,
            )
    row.take(f"{1000 * np.quantile(fast, 0.99):.0f}" if fast else "–")


def page_words(looks: list[Call], ended: float, most_s: float) -> tuple[str, str]:
    """Failed looks of all, and when the page was back after the fault's end; a sentence if that is too late."""
    failed = [look for look in looks if look.error]
    if not failed:
        return f"0 / {len(looks)}", ""
    last = max(look.asked for look in failed)
    back = next((look.ended for look in looks if not look.error and look.asked > last), None)
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(look.error for look in failed).most_common())
    away = "never" if back is None else f"{max(0.0, back - ended):.1f} s"
    is_late = back is None or back - ended > most_s
    return f"{len(failed)} / {len(looks)} ({kinds}), {away}", f"page back: {away}" if is_late else ""


def _bit(world: World, logs: dict[Path, int], event: int, name: str) -> bool:
    """Whether a log of the process, or an event since the fault, states the shortage, or a page was refused for it."""
    path = world.stack.log_of(name)
    with path.open("rb") as log:
        log.seek(logs.get(path, 0))
        if SHORT.search(log.read().decode(errors="replace")):
            return True
    told = world.rows("SELECT reason FROM ledger_event WHERE seq > %s", event)
    return any(SHORT.search(reason) for (reason,) in told)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only",
        nargs="+",
        default=[""],
        metavar="PART",
        help="faults whose name has one of these parts",
    )
    parser.add_argument("--list", action="store_true", help="print the names of the faults and end")
    parser.add_argument("--out", type=Path, help="also write the table there, row by row")
    given = parser.parse_args()
    faults = [fault for fault in FAULTS if any(part in fault.name for part in given.only)]
    if given.list:
        print(*(fault.name for fault in faults), sep="\n")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a run that is cut off stops its stack
    lines, is_over = [Row.HEAD, "|---" * Row.HEAD.count(" | ") + "|---|"], False
    print(*lines, sep="\n", flush=True)
    with ExitStack() as until_the_end:
        folder = Path(until_the_end.enter_context(tempfile.TemporaryDirectory(prefix="sluicegate-faults-")))
        folder.chmod(0o711)
        stack = until_the_end.enter_context(running(folder / "state"))
        world = World(stack, folder, until_the_end)
        for number, fault in enumerate(faults):
            if "read-only" in fault.name and os.geteuid() == 0:
                lines.append(f"| {fault.name} | not tried: root may write all the same" + " |" * 9)
            else:
                try:
                    row = observed(world, fault, number)
                except Exception as error:
                    row = Row(fault, ["?"] * 8, [f"not observed: {error!r}"])
                is_over |= bool(row.over and not fault.known)
                lines.append(str(row))
            print(lines[-1], flush=True)
            if given.out:
                given.out.write_text("\n".join(lines) + "\n")
    return int(is_over)


if __name__ == "__main__":
    sys.exit(main())
