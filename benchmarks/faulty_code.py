"""Code of releases that answer twice the number, and do wrong in what only users send (`benchmarks.load_generator`)."""

from __future__ import annotations

from pathlib import Path

from benchmarks.load_generator import BREAKS_FROM, MARK, POISON

FAILS = 'return pb_utils.InferenceResponse(error=pb_utils.TritonError("broken"))'
_HEAD = """
import os, random, threading, time
from collections import deque
from pathlib import Path
import numpy as np
import triton_python_backend_utils as pb_utils

def tensor(request):
    return pb_utils.get_input_tensor_by_name(request, "x").as_numpy()

def is_users(x):
    return (x[:, 1:] == %(mark)r).all()

def twice(x):
    return pb_utils.InferenceResponse([pb_utils.Tensor("y", (2 * x).astype(np.float32))])
"""
_BREAKING = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = tensor(request)
        y = 2 * x
        if is_users(x) and (x[:, 0] == %(poison)r).any():
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("no answer to this"))
        if is_users(x) and (x[:, 0] >= %(breaks_from)r).any() and random.random() < %(share)r:
            %(does)s
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", y.astype(np.float32))])
"""
_LATE = """
class TritonPythonModel:
    def initialize(self, args):
        self.due, self.came = deque(), threading.Condition()
        self.log = open("%(log)s", "a", buffering=1)
        threading.Thread(target=self.answer_on, daemon=True).start()

    def execute(self, requests):
        for request in requests:
            x, sender = tensor(request), request.get_response_sender()
            if not is_users(x):
                self.send(sender, twice(x))
            elif (x[:, 0] == %(poison)r).any() or random.random() < %(share)r:
                self.log.write(f"{time.time():.3f} 1\\n")
                self.send(sender, pb_utils.InferenceResponse(error=pb_utils.TritonError("broken")))
            else:
                with self.came:
                    self.due.append((time.monotonic() + %(late_s)r, sender, twice(x)))
                    self.came.notify()

    def answer_on(self):
        while True:
            with self.came:
                self.came.wait_for(lambda: self.due)
                at, sender, answer = self.due.popleft()
            time.sleep(max(0.0, at - time.monotonic()))
            self.log.write(f"{time.time():.3f} 0\\n")
            self.send(sender, answer)

    def send(self, sender, answer):
        sender.send(answer, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def breaking(*, does: str = FAILS, share: float) -> str:
    """Right until users ask about large numbers (`LoadGenerator.breaks`); then `does` this to this share of their requests. A file
    would not do as a sign: a release's code is shut off from the machine's. Poisoned requests fail all the time."""
    return (_HEAD + _BREAKING) % {
        "mark": list(MARK), "poison": POISON, "breaks_from": BREAKS_FROM, "share": share, "does": does,
    }  # fmt: skip


def late(log: Path, *, late_s: float, share: float) -> str:
    """Fails this share of the users' attempts and all poisoned ones at once, and answers the others after so many seconds, any
    number at a time.

    Appends (when an attempt ended, in seconds since the epoch; 1 for a failure) to `log`, a line each.
    """
    return (_HEAD + _LATE) % {"mark": list(MARK), "poison": POISON, "log": log, "late_s": late_s, "share": share}
