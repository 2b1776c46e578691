"""The door through which workers run gates."""

from __future__ import annotations

from ledger.jobs import Beat, handler
from ledger.models import Job
from validators.actions import JOB_KIND, give_up_validation
from validators.execution.run import ACTOR, run_validation
from validators.execution.staging import withdraw
from validators.queries import validations


def _give_up(job: Job) -> None:
    validation = validations().filter(pk=job.args["validation"]).first()
    if validation is not None:
        give_up_validation(actor=ACTOR, validation=validation, why=job.error)
        withdraw(validation, actor=ACTOR)


@handler(JOB_KIND, on_failed=_give_up)
def run_gates(job: Job, beat: Beat) -> None:
    """Runs the gates of the validation that the job names."""
    run_validation(job.args["validation"], beat)
