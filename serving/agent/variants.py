"""Brings one variant up, and ends its server as soon as nobody wants it.

Its asker prolongs it again and again, so that the server of an asker that died goes by itself. It is never brought back:
what was measured on one that ended is worth nothing. A server that a killed agent left is swept by the next, as no row of a
`Server` names its folder.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from django.utils import timezone

from accounts.core.access import Actor
from registry.queries import manifest_of
from serving import actions, queries
from serving.agent import warmup
from serving.agent.node_launcher import Connect, NodeLauncher
from serving.agent.reconciler import devices_of
from serving.agent.timings import AgentTimings, load_timeout_of, warmup_timeout_of
from serving.core.variants import Batching
from serving.models import Variant
from serving.ports import InferenceError, LaunchError, LaunchSpec, RunningServer

_LOOK_EVERY_S = 0.25


class _Over(Exception):
    """Why nobody waits any more for a server that is loading."""


class VariantReconciler:
    def __init__(
        self, variant_id: int, *, actor: Actor, launcher: NodeLauncher, connect: Connect, pace: AgentTimings
    ) -> None:
        self.variant_id = variant_id
        self._actor, self._launcher, self._connect, self._pace = actor, launcher, connect, pace
        self._running: RunningServer | None = None

    def step(self) -> float | None:
        """Takes the next step for the row; seconds until the next one, or None when the variant is over."""
        variant = queries.live_variants().filter(pk=self.variant_id).first()
        why = "its row is gone" if variant is None else self._why_over(variant)
        if variant is not None and not why and self._running is None:
            try:
                self._running = self._brought_up(variant)
            except (LaunchError, InferenceError) as error:
                why = f"{error.reason}: {error.message}"
            except _Over as over:
                why = str(over)
        if not why:
            return _LOOK_EVERY_S
        if self._running is not None:
            self._launcher.stop(self._running, grace_s=self._pace.stop_grace)
            self._running = None
        if variant is not None:  # the server first: once the row says that it is over, the next may come up
            actions.end_variant(actor=self._actor, variant=variant, reason=why)
        return None

    def _why_over(self, variant: Variant) -> str:
        """Empty while it is to come up, or to stay."""
        if not variant.deployment.is_wanted:
            return "the release is taken away from there"
        if variant.until <= timezone.now():
            return "it was measured, or whoever asked for it is gone"
        if self._running is None:
            return "the node's agent began anew" if variant.ready_at else ""
        return "" if self._launcher.is_alive(self._running) else "its server process ended"

    def _brought_up(self, variant: Variant) -> RunningServer:
        """Raises LaunchError, InferenceError and _Over; nothing is left of its server then."""
        release, manifest = variant.deployment.release, manifest_of(variant.deployment.release)
        model = release.model.slug
        serving = Batching(variant.max_batch_size, variant.max_queue_delay_us).within(manifest["serving"])
        folder = self._launcher.folder_for(variant.deployment_id, model, release.name)
        spec = LaunchSpec(
            variant.deployment_id,
            model,
            release.name,
            release.digest or "",
            manifest,
            folder,
            devices=devices_of(variant.deployment),
            serving=serving,
        )
        running = self._launcher.start(spec)
        try:
            timeout_s = load_timeout_of(manifest.get("envelope") or {}, default_s=self._pace.load_timeout)
            self._launcher.await_loaded(running, model, timeout_s=timeout_s, beat=self._looking())
            client = self._connect(running)
            try:
                within_s = warmup_timeout_of(variant.deployment, self._pace)
                warmup.warm_up(client, model, serving, limits=warmup.limits_of(manifest), timeout_s=within_s)
            finally:
                client.close()
            actions.record_variant(actor=self._actor, variant=variant, running=running)
        except BaseException:
            self._launcher.stop(running, grace_s=self._pace.stop_grace)
            raise
        return running

    def _looking(self) -> Callable[[], None]:
        """Looks now and then whether it is still wanted: a load may take far longer than its asker waits. It raises _Over."""
        look_at = 0.0

        def look() -> None:
            nonlocal look_at
            if monotonic() < look_at:
                return
            variant = queries.live_variants().filter(pk=self.variant_id).first()
            why = "its row is gone" if variant is None else self._why_over(variant)
            if why:
                raise _Over(why)
            look_at = monotonic() + _LOOK_EVERY_S

        return look
