"""One of the processes that send a load: `python -m validators.execution.runners.generator`, which `generators` starts.

It reads a line of JSON, bodies and a schedule, says that it is ready, and sends from the instant that the next line tells. A few times
a second it tells which attempts ended. It stops when it is told to, and ends at once when its input does, as its starter is gone, or
when its starter has said nothing for as long as it said it might: one that is stopped ends no load.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any, BinaryIO

import numpy as np

from ledger.adapters.linux_processes import die_with_starter
from serving.ports import Parcel
from serving.servers.adapters.triton_requests import opened
from validators.execution.runners.load import LoadRun

_TELL_EVERY_S = 0.1


def main() -> None:
    die_with_starter(signal.SIGKILL)  # a process that is stopped sees no end of its input
    source = sys.stdin.buffer
    told = json.loads(source.readline())
    bodies = tuple(source.read(size) for size in told["sizes"])
    schedule = np.frombuffer(source.read(8 * told["requests"]), np.float64)
    requests = opened(Parcel(**{**told["parcel"], "bodies": bodies, "json_bytes": tuple(told["parcel"]["json_bytes"])}))
    run = LoadRun(
        requests,
        schedule,
        told["timeout_s"],
        slots=told["slots"],
        places=range(told["first"], sys.maxsize, told["step"]),
    )
    _say(run, 0)
    run.began = json.loads(source.readline())["began"]
    heard = threading.Event()
    threading.Thread(target=_obey, args=(source, run, heard), daemon=True).start()
    threading.Thread(target=_end_in_silence, args=(heard, told["silence_s"]), daemon=True).start()
    _send(run)


def _send(run: LoadRun) -> None:
    sender = threading.Thread(target=run.send_all, name="load-sender")
    sender.start()
    read = 0
    while sender.is_alive():
        sender.join(_TELL_EVERY_S)
        read += _say(run, read)
    if run.failure is not None:
        raise run.failure
    _say(run, read, cpu_s=run.cpu_s)


def _say(run: LoadRun, read: int, cpu_s: float | None = None) -> int:
    """Tells of the attempts from the place `read` on; how many those are. `cpu_s` says that it was all."""
    now_s = run.now_s  # first: whatever ended before this is told of
    new = run.attempts[read:]
    rows = [[one.at, one.sent_s, one.done_s, one.error, one.is_refused, one.is_sent, one.came_s] for one in new]
    told: dict[str, Any] = {"now_s": now_s, "sent": run.sent, "cpu_s": cpu_s, "attempts": rows}
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    return len(new)


def _obey(source: BinaryIO, run: LoadRun, heard: threading.Event) -> None:
    """Every line says that its starter is there; some say more."""
    while line := source.readline():
        heard.set()
        if "stop" in json.loads(line):
            run.stopped.set()
    os._exit(1)


def _end_in_silence(heard: threading.Event, silence_s: float) -> None:
    """In a thread of its own: what this process tells is held up when nobody reads it."""
    while heard.wait(silence_s):
        heard.clear()
    sys.stderr.write(f"its starter said nothing for {silence_s:g} s\n")
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    try:
        main()
    except BaseException as failure:
        sys.stderr.write(f"{type(failure).__name__}: {failure}\n")
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)  # a thread still waits for its starter's words
