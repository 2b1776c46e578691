"""Two engines at their real pace: a killed leader is replaced when its lease is over, and one that was frozen writes nothing more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sluicegate.settings import BASE_DIR

pytestmark = pytest.mark.timeout(300)


def test_the_second_engine_leads_within_a_lease_and_a_tick_and_the_frozen_first_writes_nothing(tmp_path: Path) -> None:
    ours = {"DATABASE_URL", "REDIS_URL", "SLUICEGATE_STATE_DIR"}
    env = {name: value for name, value in os.environ.items() if name not in ours}
    file = tmp_path / "takeover.json"
    argv = [sys.executable, "-m", "tests.kills", "--takeover", "3", "--report", str(file)]
    done = subprocess.run(argv, cwd=BASE_DIR, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert file.exists(), done.stdout[-2000:] + done.stderr[-4000:]
    found = json.loads(file.read_text())
    assert found["frozen_wrote"] == [] and done.returncode == 0
    # the lease, a tick, and time for the work, of which a busy machine may take much; nobody leads where no lease ends
    assert found["lease_s"] + found["tick_s"] < 5
    assert found["kills"] == 3 and found["leads_max_s"] < found["lease_s"] + found["tick_s"] + 15
