"""A CI job against the real web application: its runner, which may be lost at any request, and those who work for the server.

Identity tokens come from a real issuer on loopback. Worker, node and engine are a thread here, under a clock of the test.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.db import connection, transaction
from django.db.models.functions import Now
from django.utils import timezone

import registry.tasks  # noqa: F401 - registers the handlers of its jobs
from accounts.core.access import Actor
from ledger.core.lifecycle import JobState
from ledger.models import Job
from ledger.tasks import run_job
from rollouts.actions.transitions import move
from rollouts.core.lifecycle import ACTIVE, RolloutState
from rollouts.models import Rollout
from serving.models import Node
from serving.traffic.actions.routes import set_route
from sluicegate.cli.ci_template import script_text
from tests.support.rigs.web_rig import WebServer
from tests.support.servers.issuer import AUDIENCE, Issuer
from tests.support.worlds.factories import make_environment, make_model, make_node, make_team
from tests.support.worlds.issuer_setup import configured, rule_for
from tests.support.worlds.model_files import onnx_file
from tests.support.worlds.registry_samples import CONTRACT, IMAGE
from tests.support.worlds.rollout_setup import OBJECTIVES, TOLD
from validators.actions.gate_runs import begin_gate_run, finish_gate_run, record_judgement
from validators.core.expiry import place_of
from validators.core.verdict import Judgement, Verdict
from validators.models import GateRun

ROOT = Path(__file__).resolve().parents[3]
MODEL = "sentiment"
SYSTEM = Actor.system("test")
PART_BYTES = 64 << 10
#: The whole job by the command line.
COMMANDS = f"""set -e
sluicegate login --oidc-token env
sluicegate push . --wait
sluicegate rollout start {MODEL}/r1 --wait
"""
#: As the template has it, and by the command line.
JOBS = {"curl": script_text(), "commands": COMMANDS}


class Clock:
    """The time of the test's process: the real time plus `ahead`. Identity tokens are judged by the real time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = timedelta()
        real = timezone.now
        monkeypatch.setattr(timezone, "now", lambda: real() + self.ahead)

    def pass_(self, **how: float) -> None:
        self.ahead += timedelta(**how)


@dataclass
class Crew:
    """Worker, node and engine. A rollout is brought as far as `goal`, at once or as its simulated age allows."""

    clock: Clock
    goal: str = "promoted"
    goes_by_age: bool = False
    _over: threading.Event = field(default_factory=threading.Event)
    problem: BaseException | None = None

    def __enter__(self) -> Crew:
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)
        if self.problem is not None:
            raise self.problem

    def _work(self) -> None:
        try:
            while not self._over.wait(0.05):
                for job in Job.objects.filter(state=JobState.QUEUED, attempts=0, due_at__lte=Now()):
                    if job.kind.startswith("registry."):
                        run_job(str(job.pk))
                for gate_run in GateRun.objects.filter(state__in=["queued", "running"]):
                    pass_gates(gate_run)
                Node.objects.update(seen_at=timezone.now())
                for rollout in Rollout.objects.filter(state__in=sorted(ACTIVE)):
                    self._move_on(rollout)
        except BaseException as error:
            self.problem = error
        finally:
            connection.close()

    def _move_on(self, rollout: Rollout) -> None:
        if self.goes_by_age:
            self.clock.pass_(seconds=30)
        age_s = (timezone.now() - rollout.created_at).total_seconds()
        wanted = self.goal
        if self.goes_by_age:
            wanted = (
                "preparing" if age_s < 60 else "shifting" if age_s < 900 else "baking" if age_s < 2100 else self.goal
            )
        for state in path_between(rollout.state, wanted):
            bring(rollout, state)


#: The ways of a rollout, as far as tests of jobs go them.
_WAYS = (
    ("preparing", "shifting", "baking", "promoted"),
    ("preparing", "shifting", "baking", "rolling_back", "rolled_back"),
)


def path_between(state: str, goal: str) -> Sequence[str]:
    """The states after `state`, up to the goal; none if it is there, or further."""
    way = next(one for one in _WAYS if state in one and goal in one)
    return way[way.index(state) + 1 : way.index(goal) + 1]


@transaction.atomic
def bring(rollout: Rollout, state: str) -> None:
    """The rollout in the state, and what goes with it."""
    if state == "promoted":
        set_route(
            actor=SYSTEM,
            environment=rollout.environment,
            model=rollout.model,
            stable=rollout.candidate,
            reason="It was proven.",
        )
    move(rollout, RolloutState(state), actor=SYSTEM, reason=f"It is {state}.")


def pass_gates(gate_run: GateRun) -> None:
    """All gates of it pass, on the only node."""
    node = Node.objects.get()
    place = place_of(node.name, node.facts, IMAGE)
    begin_gate_run(actor=SYSTEM, gate_run=gate_run)
    for one in gate_run.results.all():
        record_judgement(
            actor=SYSTEM, gate_result=one, judgement=Judgement(Verdict.PASSED, "Fine.", {}), measured=place
        )
    finish_gate_run(actor=SYSTEM, gate_run=gate_run, facts={})


class FlakyServer(WebServer):
    """The web application. It kills the job before the answer to the request that `fatal` names."""

    def __init__(self) -> None:
        self.fatal: tuple[str, str] | None = None
        self.job: subprocess.Popen[str] | None = None
        self.on_request: list[tuple[str, str, Any]] = []
        super().__init__()

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await super()._application(scope, receive, send)
            return
        # The template asks the server to hold each wait for 50 s. A busy server may answer earlier (`MOST_KEPT`), and so does this one.
        scope = {**scope, "query_string": scope["query_string"].replace(b"timeout_s=50", b"timeout_s=1")}
        for method, path, act in list(self.on_request):
            if scope["method"] == method and re.search(path, scope["path"]):
                self.on_request.remove((method, path, act))
                act()

        async def lose(message: Any) -> None:
            if self._is_fatal(scope):
                self.fatal = None
                assert self.job is not None
                os.killpg(self.job.pid, signal.SIGKILL)
            await send(message)

        await super()._application(scope, receive, lose)

    def _is_fatal(self, scope: Any) -> bool:
        if self.fatal is None:
            return False
        return bool(scope["method"] == self.fatal[0] and re.search(self.fatal[1], scope["path"]))


@dataclass
class Shop:
    """A model's repository with its CI, and the server that it ships to."""

    server: FlakyServer
    issuer: Issuer
    crew: Crew
    folder: Path
    tmp: Path
    rule: Any

    def job(self, how: str, **env: str) -> tuple[int, str]:
        """(exit code, all that was printed) of one run of the job."""
        self.begin(how, **env)
        return self.end()

    def begin(self, how: str, **env: str) -> None:
        place = self.tmp / "home"
        place.mkdir(exist_ok=True)
        bin_ = Path(sys.executable).parent
        known = {
            "PATH": f"{bin_}:{os.environ['PATH']}", "HOME": str(place), "XDG_CONFIG_HOME": str(place), "TMPDIR": str(self.tmp),
            "PYTHONPATH": str(ROOT), "SLUICEGATE_STATE_DIR": str(place), "SLUICEGATE_URL": self.server.url, "MODEL": MODEL,
            "SLUICEGATE_AUDIENCE": AUDIENCE,
        }  # fmt: skip
        self.server.job = subprocess.Popen(
            ["bash", "-c", JOBS[how]], cwd=self.folder, env={**known, **env}, start_new_session=True, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def end(self) -> tuple[int, str]:
        job = self.server.job
        assert job is not None
        try:
            told, _ = job.communicate(timeout=150)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
        return job.returncode, told

    def github(self) -> dict[str, str]:
        """The environment of a job that may ask for identity tokens at any time."""
        return {
            "ACTIONS_ID_TOKEN_REQUEST_URL": f"{self.issuer.url}/actions?api-version=2",
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "of-the-job",
        }

    def gitlab(self, count: int = 1) -> dict[str, str]:
        """The environment of a job with `count` identity tokens, each good until the job's time-out."""
        names = ["SLUICEGATE_ID_TOKEN", *(f"SLUICEGATE_ID_TOKEN_{number}" for number in range(2, count + 1))]
        return {name: self.issuer.github_token(exp=int(time.time()) + 6 * 3600) for name in names}


@contextmanager
def shop(monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Path) -> Iterator[Shop]:
    """A team with a robot, a rule that gives tokens of 15 minutes, a model, a node, and a release folder of three parts."""
    settings.UPLOAD_PART_BYTES = PART_BYTES
    make_node(
        facts=TOLD, runtimes=[{"image": IMAGE, "server": "triton", "backends": ["sluicegate-onnx"], "versions": {}}]
    )
    make_environment("staging", is_routed=False)
    make_environment("production", needs_passed_report=True)
    make_model(MODEL, team=make_team("search"), contract=CONTRACT, objectives=OBJECTIVES)
    folder = tmp_path / "release"
    (folder / "artifact").mkdir(parents=True)
    (folder / "artifact" / "weights.data").write_bytes(os.urandom(2 * PART_BYTES + 17))
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "vocab.txt").write_text("good\nbad\n")
    (folder / "artifact" / "model.onnx").write_bytes(onnx_file("graph one"))
    (folder / "release.yaml").write_text(
        yaml.safe_dump(
            {
                "model": MODEL,
                "runtime": {"image": IMAGE, "server": "triton", "backend": "sluicegate-onnx"},
                "serving": {"max_batch_size": 16, **CONTRACT},
            }
        )
    )
    with Issuer() as issuer, Crew(Clock(monkeypatch)) as crew:
        rule = rule_for(configured(issuer), models=[MODEL], verbs=["release.push", "gates.run", "rollout.start"])
        server = FlakyServer()
        try:
            yield Shop(server, issuer, crew, folder, tmp_path, rule)
        finally:
            server.stop()


def until(is_so: Any, what: str, within_s: float = 120) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
