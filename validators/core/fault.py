"""Whose fault it is that a release never became ready."""

from __future__ import annotations

from validators.core.verdict import Verdict

#: A launcher's reasons (`serving.ports.LaunchError`) that are the release's doing, and those that are the machine's.
RELEASE_FAULTS = ("bad_config", "load_failed", "not_ready", "warmup_failed")
MACHINE_FAULTS = ("runtime_mismatch", "fetch_failed", "digest_mismatch")
#: Nothing of the release has run yet.
_BEFORE_IT_RUNS = ("pending", "fetching")


def verdict_of_failure(reason: str, last_state: str) -> Verdict:
    """`failed` where the release is to blame, `errored` where the machine is.

    A launcher's code in `reason` decides; without one, the last state before the failure does.
    """
    if any(code in reason for code in MACHINE_FAULTS):
        return Verdict.ERRORED
    if any(code in reason for code in RELEASE_FAULTS):
        return Verdict.FAILED
    return Verdict.ERRORED if last_state in _BEFORE_IT_RUNS else Verdict.FAILED
