"""The node's agent while a gate tries other batchings: it brings their servers up and ends them, and must have none left."""

from __future__ import annotations

import time

from accounts.core.access import Actor
from serving.agent.timings import AgentTimings
from serving.agent.variants import VariantReconciler
from serving.models import Variant
from serving.queries import live_variants
from tests.support.fakes.ports import Compute, FakeLauncher, FakeModel
from tests.support.worlds.factories import RUNTIME

#: Whoever is not wanted any more is gone after some looks of the agent; a busy machine may take its time.
GONE_WITHIN_S = 20.0


class VariantAgent:
    """The real reconciler of each variant, over servers in this process, which outlive every worker.

    `compute` is the model that they serve. `problems` are what must not be.
    """

    def __init__(self, compute: Compute) -> None:
        self.launcher = FakeLauncher(
            [{"image": RUNTIME}], lambda spec: FakeModel(spec.serving or spec.manifest["serving"], compute)
        )
        self._reconcilers: dict[int, VariantReconciler] = {}
        self.problems: list[str] = []

    def turn(self) -> None:
        for pk in live_variants().values_list("pk", flat=True):
            self._reconcilers.setdefault(pk, self._reconciler(pk)).step()
        if len(self.launcher.running) > 1:
            self.problems.append(f"{len(self.launcher.running)} servers of other batchings share the machine")

    def see_off(self) -> None:
        """Waits for all of them to be gone, which nobody needs to ask for any more."""
        until = time.monotonic() + GONE_WITHIN_S
        while live_variants().exists() and time.monotonic() < until:
            self.turn()
            time.sleep(0.02)
        left = [f"{one.pk}, wanted until {one.until:%H:%M:%S}" for one in live_variants()]
        if left or self.launcher.running:
            self.problems.append(f"left behind: variants {left}, servers {list(self.launcher.running)}")
        if not Variant.objects.exclude(ready_at=None).exists():
            self.problems.append("no other batching was ever served")

    def _reconciler(self, pk: int) -> VariantReconciler:
        actor, pace = Actor.system("agent:local"), AgentTimings(stop_grace=0.0)
        return VariantReconciler(pk, actor=actor, launcher=self.launcher, connect=self.launcher.connect, pace=pace)
