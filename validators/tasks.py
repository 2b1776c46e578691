"""Celery tasks: run the gates of a release."""

from __future__ import annotations

from ledger.hooks.job_handlers import Beat, handler
from ledger.models import Job
from validators.actions import JOB_KIND, give_up_gate_run
from validators.execution.run import ACTOR, execute_gate_run
from validators.execution.staging import withdraw
from validators.queries import gate_runs


def _give_up(job: Job) -> None:
    gate_run = gate_runs().filter(pk=job.args["gate_run"]).first()
    if gate_run is not None:
        give_up_gate_run(actor=ACTOR, gate_run=gate_run, why=job.error)
        withdraw(gate_run, actor=ACTOR)


@handler(JOB_KIND, on_failed=_give_up)
def run_gates(job: Job, beat: Beat) -> None:
    """Runs the gates of the gate run that the job names."""
    execute_gate_run(job.args["gate_run"], beat)
