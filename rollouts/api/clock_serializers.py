"""A guard's evidence and the instants at which traffic was taken away, as JSON. Instants in UTC, e-values as log E."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers


class EvidenceOut(serializers.Serializer[Any]):
    """One guard's numbers in the present step: attempts, how many were bad, and what they prove."""

    bad_candidate = serializers.IntegerField()
    candidate = serializers.IntegerField()
    bad_stable = serializers.IntegerField()
    stable = serializers.IntegerField()
    phi = serializers.FloatField(help_text="dispersion: 1 where failures come one by one")
    log_e_worse = serializers.FloatField()
    log_e_fine = serializers.FloatField()
    log_e_better = serializers.FloatField()
    log_e_over = serializers.FloatField(help_text="the candidate is over the objective")
    log_e_stable_over = serializers.FloatField()


class RollbackTimesOut(serializers.Serializer[Any]):
    """When traffic was taken away, all measured. Durations are null until both ends are known."""

    first_bad_at = serializers.DateTimeField(allow_null=True)
    decided_at = serializers.DateTimeField(allow_null=True)
    zero_at = serializers.DateTimeField(allow_null=True, help_text="when every gateway had acknowledged weight 0")
    confirmed_at = serializers.DateTimeField(allow_null=True, help_text="when counters showed no more traffic on it")
    fault_to_zero_s = serializers.FloatField(allow_null=True)
    decision_to_zero_s = serializers.FloatField(allow_null=True)


class BadCountsOut(serializers.Serializer[Any]):
    """Attempts of both arms, and how many were bad."""

    bad_candidate = serializers.IntegerField()
    candidate = serializers.IntegerField()
    bad_stable = serializers.IntegerField()
    stable = serializers.IntegerField()


class CrossingOut(RollbackTimesOut):
    """A first crossing: traffic was taken away, and the candidate got another look."""

    code = serializers.CharField(help_text="reason code of the decision")
    reason = serializers.CharField()
    said = serializers.CharField(help_text="a short sentence with the counts")
    words = serializers.CharField(help_text="the guard in words")
    counts = BadCountsOut(allow_null=True, help_text="that convinced")
    state = serializers.CharField(help_text="the state that it was in")
    step_index = serializers.IntegerField()
    weight_bp = serializers.IntegerField(help_text="the weight that was taken away")
    begun_by = serializers.CharField(help_text="the person who ended the wait after it; empty if the engine did")


class SecondLookOut(serializers.Serializer[Any]):
    """How often evidence must speak against the candidate; see docs/rollouts.md, "A second look"."""

    look = serializers.IntegerField(help_text="the look of now, counted from 1")
    looks = serializers.IntegerField()
    after_s = serializers.FloatField(help_text="between two looks")
    is_waiting = serializers.BooleanField(help_text="traffic is away, and the next look has not begun")
    begins_at = serializers.DateTimeField(
        allow_null=True, help_text="at the earliest; null where it does not wait for a time"
    )
    crossings = CrossingOut(many=True)
    conviction = RollbackTimesOut(
        allow_null=True, help_text="the clock of the rollback after a crossing; null if there was none"
    )


class ClockOut(RollbackTimesOut):
    """The clock of the first time that traffic was taken away, all measured."""

    bad_candidate_attempts = serializers.IntegerField()
    bad_candidate_attempts_by_guard = serializers.DictField(child=serializers.IntegerField())
