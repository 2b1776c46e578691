"""Runs the gates of one gate run: a server first, then gate after gate, then the report.

The worker may die at any point. Gates that have a verdict keep it; the next worker goes on with the first that has none.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import django.db
import structlog
from django.db import transaction
from django.utils import timezone

from accounts.core.access import Actor
from ledger.core.errors import DomainError
from ledger.hooks.job_handlers import Beat
from registry.core.kinds import backend_of, spoken_by
from registry.queries import manifest_of
from serving.ports import InferenceServer
from serving.servers.core.redaction import redacted
from serving.targets.platforms import platform_of
from serving.targets.port import Trial, TrialServer
from validators import actions, queries
from validators.core.capacity import hardware_name
from validators.core.cold_start import still_loading_s
from validators.core.entry import advisory_anywhere
from validators.core.envelope import judged
from validators.core.expiry import uses_gpu
from validators.core.gates import GATES
from validators.core.lifecycle import UNFINISHED, GateRunState
from validators.core.policy import Policy, stored_policy
from validators.core.verdict import Judgement, Verdict
from validators.execution.exclusive import Disturbed, alone_on
from validators.execution.gates import Baseline, GateContext, run_gate
from validators.execution.gates.context import OutOfTime
from validators.execution.gpu_watch import watch_of
from validators.execution.last_words import with_last_words
from validators.execution.staging import staged, withdraw
from validators.models import GateResult, GateRun
from validators.queries.expiry import place_on
from validators.queries.report_facts import report_facts
from validators.queries.seen_sizes import seen_sizes

ACTOR = Actor.system("validator")
_TELL_EVERY_S = 0.5
_STOPS = (Verdict.FAILED, Verdict.ERRORED)

log = structlog.get_logger(__name__)


class Interrupted(Exception):
    """The gate run is no longer this worker's: it was cancelled, or another worker has the job."""


def execute_gate_run(pk: int, beat: Beat) -> None:
    """Runs what is left of a gate run to its report, and gives its server back.

    Returns quietly for one that is finished, cancelled or lost; an earlier worker may have died before it gave the server back.
    """
    gate_run = queries.gate_runs().get(pk=pk)
    if gate_run.state in UNFINISHED:
        gate_run = actions.begin_gate_run(actor=ACTOR, gate_run=gate_run)
        try:
            _Run(gate_run, beat).to_the_end()
        except Interrupted:
            gate_run.refresh_from_db()
            log.info("gate_run_interrupted", gate_run=pk, state=gate_run.state)
    if gate_run.state in (GateRunState.FINISHED, GateRunState.CANCELLED):
        withdraw(gate_run, actor=ACTOR)


class _Run:
    def __init__(self, gate_run: GateRun, beat: Beat) -> None:
        self.gate_run = gate_run
        self.policy: Policy = stored_policy(gate_run.policy)
        self.manifest = manifest_of(gate_run.release)
        self._beat = beat
        self._told_at = -1e9

    def to_the_end(self) -> None:
        runs = list(self.gate_run.results.order_by("position"))
        facts: dict[str, Any] = {}
        if any(not run.verdict for run in runs):
            trial = staged(
                self.gate_run, self.gate_run.release, actor=ACTOR, max_wait_s=self._max_wait_s(), pulse=self._pulse
            )
            if isinstance(trial, Judgement):
                self._never_ready(runs, trial)
            else:
                facts = report_facts(trial)
                self._run_all(runs, trial)
        self._pulse("writing the report")
        self.gate_run.refresh_from_db()
        actions.finish_gate_run(actor=ACTOR, gate_run=self.gate_run, facts=facts or report_facts(None))

    def _max_wait_s(self) -> float:
        """A release that is slow to start is measured to just beyond its limit, not for ever."""
        return self.policy.start_s + 15.0

    def _run_all(self, runs: list[GateResult], trial: Trial) -> None:
        stopped_by, advisory = "", advisory_anywhere(self.policy.document)
        for run in runs:
            if not run.verdict:
                judgement = self._skipped(stopped_by) if stopped_by else self._judge(run, trial)
                measured = None if stopped_by else place_on(trial.machine, self.gate_run.release)
                actions.record_judgement(actor=ACTOR, gate_result=run, judgement=judgement, measured=measured)
            if (
                Verdict(run.verdict) in _STOPS
                and run.gate not in advisory
                and self.policy.document["stop_at_first_failure"]
            ):
                stopped_by = stopped_by or f"{run.gate} {run.verdict}"

    def _skipped(self, stopped_by: str) -> Judgement:
        return Judgement(Verdict.SKIPPED, f"Not run, because {stopped_by}.")

    def _never_ready(self, runs: list[GateResult], judgement: Judgement) -> None:
        """The gate that judges the start reports it; without such a gate the first gate does.

        All at once: a worker that died between two verdicts would leave its successor gates to judge by another try.
        """
        pending = [run for run in runs if not run.verdict]
        teller = next((run for run in pending if GATES[run.gate].judges_start), pending[0])
        if GATES[teller.gate].judges_start:
            judgement = self._against_envelope(teller.gate, judgement)
        with transaction.atomic():
            for run in pending:
                own = judgement if run is teller else self._skipped(f"{self.gate_run.release.name} never became ready")
                actions.record_judgement(actor=ACTOR, gate_result=run, judgement=own)

    def _against_envelope(self, gate: str, judgement: Judgement) -> Judgement:
        """A load that ended with the envelope's own time is a breach of that time, and of the declared time to load."""
        waited_s = still_loading_s(judgement.reason)
        environment = self.gate_run.environment
        trial = platform_of(environment).trial(self.gate_run.release, environment)
        if waited_s is None or trial is None:
            return judgement
        on_gpu = uses_gpu(self.manifest)
        return judged(
            Judgement(judgement.verdict, judgement.reason, {**judgement.evidence, "still_loading_s": waited_s}),
            gate,
            self.manifest.get("envelope") or {},
            self.policy.of("envelope"),
            hardware=hardware_name(trial.machine.facts, on_gpu=on_gpu),
            uses_gpu=on_gpu,
        )

    def _judge(self, run: GateResult, trial: Trial) -> Judgement:
        """The gate's judgement, with what is known of the server where it is bad."""
        run.started_at = timezone.now()
        GateResult.objects.filter(pk=run.pk, verdict="").update(
            started_at=run.started_at, progress_done=0, progress_total=0, reason=""
        )
        judgement = self._measured(run, trial)
        server = trial.server_before(run.started_at)
        if judgement.verdict not in _STOPS or server is None:
            return judgement
        with contextlib.closing(server.client()) as client:
            return with_last_words(judgement, server, client, self.gate_run.release.model.slug, pulse=self._pulse)

    def _measured(self, run: GateResult, trial: Trial) -> Judgement:
        """An exception inside a gate is `errored`; only a lost database or job is raised."""
        try:
            with contextlib.ExitStack() as stack:
                server = trial.server()
                if server is None:
                    return Judgement(
                        Verdict.ERRORED, f"The server of {self.gate_run.release.name} is not serving any more."
                    )
                keep = stack.enter_context(self._machine(run, trial)) if GATES[run.gate].runs_alone else None
                return run_gate(run.gate, self._context(run, trial, server, stack, keep))
        except Disturbed as other:
            return Judgement(Verdict.ERRORED, f"The load was not alone: {other}.")
        except OutOfTime:
            return Judgement(
                Verdict.ERRORED, f"The gate was not done after {self.policy.gate_timeout_s:g} s, its time limit."
            )
        except DomainError as error:
            return Judgement(Verdict.ERRORED, f"The gate could not be run: {error.message}")
        except (Interrupted, django.db.Error):
            raise
        except Exception as error:
            log.exception("gate_broke", gate_run=self.gate_run.pk, gate=run.gate)
            return Judgement(Verdict.ERRORED, redacted(f"The gate itself broke: {type(error).__name__}: {error}"))

    def _machine(self, run: GateResult, trial: Trial) -> contextlib.AbstractContextManager[Callable[[], None]]:
        """The machine of the release's server, for this run alone. The wait is no part of the gate's time."""
        release = self.gate_run.release
        owner = f"gate run {self.gate_run.pk} of {release.model.slug} {release.name}"
        return alone_on(trial.machine.name, owner=owner, say=partial(self._say, run))

    def _context(
        self,
        run: GateResult,
        trial: Trial,
        server: TrialServer,
        stack: contextlib.ExitStack,
        keep: Callable[[], None] | None,
    ) -> GateContext:
        release, gate, digest = self.gate_run.release, GATES[run.gate], self.policy.asked_set
        items = queries.golden_items(release.model, digest) if digest else ()
        return GateContext(
            model=release.model.slug,
            release=release.name,
            serving=self.manifest["serving"],
            envelope=self.manifest.get("envelope") or {},
            contract=release.model.contract,
            policy=self.policy,
            server=_client(server, stack),
            timings=trial.timings,
            backend=backend_of(self.manifest),
            speaks=spoken_by(self.manifest),
            hardware=hardware_name(trial.machine.facts, on_gpu=uses_gpu(self.manifest)),
            progress=self._progress(run, keep),
            say=partial(self._say, run),
            stable=partial(self._stable_beside, run, trial, stack, keep or (lambda: None)),
            items=items,
            baseline=self._baseline(run.gate, stack, len(items)) if gate.replays_set else None,
            seen=seen_sizes(release.model) if gate.runs_alone else None,
            gpus=lambda: watch_of(self.gate_run, trial.server_before(run.started_at or timezone.now())),
            earlier=partial(self._earlier, server),
            readings=lambda since_s, until_s: server.readings(since_s=since_s, until_s=until_s) or (),
        )

    def _earlier(self, server: TrialServer, gate: str) -> dict[str, Any]:
        """Evidence of a gate that measured this very server; empty for another server."""
        result = self.gate_run.results.filter(gate=gate, started_at__gte=server.started_at).first()
        return result.evidence if result else {}

    def _stable_beside(
        self, run: GateResult, trial: Trial, stack: contextlib.ExitStack, keep: Callable[[], None]
    ) -> Baseline | None:
        """The stable release on a server of its own, where no user is and on the machine of the release that is tried."""
        stable = self.gate_run.baseline
        if stable is None:
            return None
        serving = manifest_of(stable)["serving"]
        if serving["inputs"] != self.manifest["serving"]["inputs"]:
            return Baseline(stable.name, absent_because=f"{stable.name} takes other inputs")

        def pulse(note: str) -> None:
            keep()
            self._say(run, f"it missed its objective, and is compared: {note}")

        there = staged(self.gate_run, stable, actor=ACTOR, max_wait_s=self._max_wait_s(), pulse=pulse)
        if isinstance(there, Judgement):
            return Baseline(stable.name, absent_because=there.reason)
        if there.machine.name != trial.machine.name:
            return Baseline(stable.name, absent_because=f"{stable.name} came up on {there.machine.name}")
        server = there.server()
        if server is None:
            return Baseline(stable.name, serving=serving, absent_because=f"the server of {stable.name} is gone")
        return Baseline(stable.name, server=_client(server, stack), serving=serving)

    def _baseline(self, gate: str, stack: contextlib.ExitStack, items: int) -> Baseline | None:
        stable = self.gate_run.baseline
        if stable is None:
            return None
        golden = self.policy.of(gate)
        outputs = manifest_of(stable)["serving"]["outputs"]
        output = golden["output"] or (outputs[0]["name"] if len(outputs) == 1 else "")
        answers = queries.stored_predictions(stable, golden_set=golden["set"], output=output, items=items)
        if answers is not None:
            return Baseline(stable.name, answers=answers)
        route = queries.stable_route(stable.model)
        there = platform_of(route.environment).trial(stable, route.environment) if route else None
        server = there.server() if there else None
        if server is None:
            return Baseline(stable.name, absent_because=f"{stable.name} has no answers on record and no server to ask")
        return Baseline(stable.name, server=_client(server, stack), serving=manifest_of(stable)["serving"])

    def _progress(self, run: GateResult, keep: Callable[[], None] | None) -> Callable[[int, int], None]:
        deadline = time.monotonic() + self.policy.gate_timeout_s

        def progress(done: int, total: int) -> None:
            if time.monotonic() > deadline:
                raise OutOfTime
            if keep is not None:
                keep()
            if done == total or time.monotonic() - self._told_at >= _TELL_EVERY_S:
                GateResult.objects.filter(pk=run.pk, verdict="").update(progress_done=done, progress_total=total)
                self._pulse(f"{run.gate}: {done} of {total}")

        return progress

    def _say(self, run: GateResult, sentence: str) -> None:
        """What the gate does or waits for, where its reason will stand; a heartbeat too."""
        GateResult.objects.filter(pk=run.pk, verdict="").exclude(reason=sentence).update(reason=sentence)
        self._pulse(f"{run.gate}: {sentence}")

    def _pulse(self, note: str) -> None:
        """Sends a heartbeat. Raises Interrupted when the run should stop."""
        self._told_at = time.monotonic()
        total = len(self.policy.gates)
        done = self.gate_run.results.exclude(verdict="").count()
        if not self._beat(done, total, note):
            raise Interrupted
        if GateRun.objects.values_list("state", flat=True).get(pk=self.gate_run.pk) != GateRunState.RUNNING:
            raise Interrupted


def _client(server: TrialServer, stack: contextlib.ExitStack) -> InferenceServer:
    """A client that the stack closes."""
    return stack.enter_context(contextlib.closing(server.client()))
