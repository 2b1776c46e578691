"""The main job on the real Triton, Envoy, PostgreSQL and Valkey, while every process of ours is killed in every phase of it.

First release, gates under a dying worker, promotion through kills, and a rollback by evidence in the middle of kills;
users, who ask all the time, see no failure.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psycopg
import pytest

from accounts.core.addresses import API
from sluicegate.client import Client
from sluicegate.stack import Stack, running
from tests.flows.tiny import ENVIRONMENT, FAILS_ON_LARGE, Shop, Users, model_document
from tests.support.house.dashboards import NEEDS_GPU, RULES, expressions
from tests.support.rigs.gateway_rig import wait_until
from tests.support.rigs.other_user import trespasses
from tests.support.rigs.parts import prometheus
from tests.support.rigs.prometheus_rig import PrometheusProcess

pytestmark = [pytest.mark.real("envoy", "triton", "curl", "jq", "prometheus"), pytest.mark.timeout(1200)]
#: Everything that is ours and may die at any moment. The gateway and the servers are what users reach: see tests/real.
MORTALS = ("engine", "worker", "scheduler", "agent", "control_plane", "prober", "web")
#: Seconds of a step at the least; who must find a rollout in a state does not rest on it.
STEP_S = 2
#: A rollout that stays in each state until everybody was killed in it, however long that takes.
HELD = {**model_document(STEP_S)["rollout_policy"], "approvals": {"bake": 1, "promote": 1}}
SCRAPE_S = 2.0
#: Workers that died are missed sooner than in production, so that the test need not wait.
ENV = {"SLUICEGATE_JOB_LEASE_S": "3"}


@contextlib.contextmanager
def passable_folder() -> Iterator[Path]:
    """Everybody may pass through it: whoever is to be kept out of the state folder is kept out by its own modes."""
    with tempfile.TemporaryDirectory(prefix="sluicegate-flow-") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with (
        passable_folder() as folder,
        running(folder / "state", env=ENV, ready_s=300) as up,
    ):
        yield up


@pytest.fixture
def metrics(stack: Stack, tmp_path: Path) -> Iterator[PrometheusProcess]:
    """A stock Prometheus that finds what to scrape by itself, with the alert rules."""
    folder = tmp_path / "prometheus"
    folder.mkdir()
    (folder / "token").write_text(stack.admin_token)
    discovery = {
        "url": f"{stack.base_url}{API}/prometheus-targets",
        "refresh_interval": "1s",
        "authorization": {"type": "Bearer", "credentials_file": str(folder / "token")},
    }
    found = PrometheusProcess(folder, {"http_sd_configs": [discovery]}, every_s=SCRAPE_S, rules=[RULES])
    found.start()
    yield found
    found.stop()


def test_promoted_and_rolled_back_though_every_process_is_killed_in_every_phase(
    stack: Stack, metrics: PrometheusProcess, tmp_path: Path
) -> None:
    began_at = time.time()
    with Shop(stack, tmp_path, step_s=STEP_S) as shop, Rows(stack) as rows:
        with Users(stack, begins=False) as users:
            with shop.shipping("one") as first:  # curl and jq alone, as `sluicegate ci-template` writes them
                shop.until(first, "shifting")
                shop.until_acknowledged(first)
                users.begin()
                assert "absolute" in " ".join(d["reason"] for d in shop.until(first, "promoted")["decisions"])
            assert trespasses(stack.state_dir) == []  # uploads, servers' folders, logs of real traffic

            with killed_at(
                stack, "worker", lambda: 4 <= rows.verdicts() < 6
            ):  # in the middle of the second release's gates
                second = shop.start(shop.prove("two"), policy=HELD)
            for phase, goes_on_by in (("preparing", None), ("shifting", "bake"), ("baking", "promote")):
                rows.until(second, phase)
                kill(stack, *MORTALS)
                if goes_on_by is not None:
                    shop.approve(second, goes_on_by)
            seen = shop.until(second, "promoted")
            assert [step["weight_bp"] for step in seen["steps"]] == [5000, 9500]

            third = shop.start(shop.prove("three", code=FAILS_ON_LARGE))
            rows.until(third, "rolling_back", "rolled_back")
            kill(stack, *MORTALS)
            seen = shop.until(third, "rolled_back")

        assert users.failures == []
        assert_each_move_happened_once(shop, second, "promoted")
        assert_each_move_happened_once(shop, third, "rolled_back")
        assert audit(stack)["is_whole"]
        assert seen["clock"]["bad_candidate_attempts"] > 0
        # what users got agrees with what the engine says it did
        zero_at = time_of(seen["clock"]["zero_at"])
        assert max(asked for name, asked in users.answers if name == "r3") <= zero_at + 0.2
        assert {name for name, asked in users.answers if asked > zero_at + 0.2} == {"r2"}
        assert shop.author.get(f"/environments/{ENVIRONMENT}")["routes"][0]["stable"] == "r2"
        rows.kept()
    assert_prometheus_saw_it(metrics, began_at)


def assert_prometheus_saw_it(metrics: PrometheusProcess, began_at: float) -> None:
    """Each target is up, each page is well formed, each rule can be evaluated, and each panel of the dashboards has data."""
    wait_until(
        lambda: [one["labels"] for one in metrics.read("targets")["activeTargets"] if one["health"] != "up"] == [],
        "each target is up",
        60,
    )
    targets = metrics.read("targets")["activeTargets"]
    assert {one["labels"]["job"] for one in targets} == {"sluicegate", "inference"}
    for target in targets:
        if target["labels"]["job"] == "sluicegate":
            page = httpx.get(target["scrapeUrl"], timeout=60, trust_env=False).text
            checked = subprocess.run(
                [str(prometheus("promtool")), "check", "metrics"],
                input=page,
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert checked.returncode == 0, f"{target['labels']}: {checked.stderr}"
    rules = [rule for group in metrics.read("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"]: (rule["health"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"} == {}

    def empty() -> list[str]:
        window = f"start={began_at:.0f}&end={time.time():.0f}&step=5"
        return [
            name
            for name, query in expressions("30s").items()
            if NEEDS_GPU not in query and not metrics.read(f"query_range?query={quote(query)}&{window}")["result"]
        ]

    # The watch writes its counts once a minute, and its engine was killed again and again.
    end = time.monotonic() + 120
    while (missing := empty()) and time.monotonic() < end:
        time.sleep(5)
    assert missing == []


class Rows:
    """The database itself, which tells of a state sooner than the API and lives on when the web process does not."""

    def __init__(self, stack: Stack) -> None:
        self._session = psycopg.connect(stack.database_url, autocommit=True)

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def kept(self, within_s: float = 180) -> None:
        """Returns once a minute of traffic was kept by the service's own role. The leader must live through a whole one."""
        end = time.monotonic() + within_s
        while not self._session.execute("SELECT 1 FROM serving_seriesminute LIMIT 1").fetchone():
            assert time.monotonic() < end, "no minute was kept"
            time.sleep(1)

    def verdicts(self) -> int:
        """How many gates have one."""
        row = self._session.execute("SELECT count(*) FROM validators_gateresult WHERE verdict <> ''").fetchone()
        return int(row[0]) if row else 0

    def until(self, rollout_id: int, *states: str, within_s: float = 300) -> None:
        """Returns within some hundredths of a second after the rollout came into one of the states."""
        deadline = time.monotonic() + within_s
        while True:
            row = self._session.execute(
                "SELECT state, reason FROM rollouts_rollout WHERE id = %s", [rollout_id]
            ).fetchone()
            if row and row[0] in states:
                return
            assert time.monotonic() < deadline, f"not {states} but {row}"
            time.sleep(0.02)


def kill(stack: Stack, *names: str) -> None:
    """SIGKILL to all of them at once, and waits until the stack has started each again."""
    pids = {name: stack.pid_of(name) for name in names}
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    for name, pid in pids.items():
        assert stack.pid_of(name, unlike=pid, within_s=120) != pid
    time.sleep(0.5)


@contextlib.contextmanager
def killed_at(stack: Stack, name: str, is_time: Callable[[], bool]) -> Iterator[None]:
    """Kills the process, once, while the block runs. Asserts that the time for it came."""
    was_killed, is_over = threading.Event(), threading.Event()

    def watch() -> None:
        while not is_over.wait(0.02):
            if is_time():
                kill(stack, name)
                was_killed.set()
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(180)
    assert was_killed.is_set(), f"the time to kill the {name} never came"


def audit(stack: Stack) -> dict[str, Any]:
    with Client(stack.base_url, stack.admin_token) as admin:
        found: dict[str, Any] = admin.get("/audit")
        return found


def time_of(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def assert_each_move_happened_once(shop: Shop, rollout_id: int, end: str) -> None:
    events = list(shop.author.pages(f"/events?subject_type=rollout&subject_id={rollout_id}"))
    moves = [(event["from_state"], event["to_state"]) for event in events if event["to_state"] != event["from_state"]]
    assert len(moves) == len(set(moves)), moves
    assert moves[0][1] == end
