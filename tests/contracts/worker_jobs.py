"""A kind of job for the workers of test_worker.py: it takes as long as it is told."""

from __future__ import annotations

import os
import time

from ledger.hooks.job_handlers import Beat, handler
from ledger.models import Job


@handler("test.sleep")
def sleep(job: Job, beat: Beat) -> None:
    """Sleeps `seconds` on the first attempt; a later one ends at once."""
    beat(note=f"worker {os.getpid()}")
    if job.attempts == 1:
        time.sleep(job.args["seconds"])
