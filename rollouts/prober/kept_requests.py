"""Mirrored requests that wait to be kept, of the models whose policy allows it."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Final

from accounts.core.access import Actor
from rollouts.core.shadow import Arrays
from rollouts.prober.requests import Question
from rollouts.prober.targets import Profile
from validators.actions import keep_requests
from validators.core.contract import tensors_of
from validators.core.kept_requests import KeepRule, Sample, sample
from validators.queries.kept_requests import keep_rules, sampling_secret

ACTOR: Final = Actor.system("prober")


class KeptRequests:
    """Takes samples from any thread, and writes them where `turn` is called."""

    def __init__(self) -> None:
        self._secret = sampling_secret()
        self._lock = threading.Lock()
        self._rules: dict[int, KeepRule] = {}
        self._waiting: dict[int, dict[str, Sample]] = {}

    def offer(self, profile: Profile, question: Question, answered: Arrays) -> None:
        """Keeps it, should it be allowed: a request with the answer that stable gave twice."""
        with self._lock:
            rule = self._rules.get(profile.model_id)
        if rule is None or profile.stable is None:
            return
        found = sample(
            rule,
            self._secret,
            release=profile.stable.name,
            inputs=tensors_of(profile.stable.serving, "inputs"),
            asked=question.inputs,
            answered=answered,
            has_batch_axis=profile.rule.has_batch_axis,
        )
        if found is None:
            return
        with self._lock:
            waiting = self._waiting.setdefault(profile.model_id, {})
            waiting[found.digest] = found
            if len(waiting) > rule.most:
                del waiting[max(waiting, key=lambda digest: waiting[digest].rank)]

    def turn(self, model_ids: Collection[int]) -> None:
        """Writes what waits, under what each policy allows now, and goes on with these models. One query where nothing waits."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for model_id, samples in waiting.items():
            keep_requests(actor=ACTOR, model_id=model_id, samples=samples.values())
        rules = keep_rules(model_ids)
        with self._lock:
            self._rules = rules
