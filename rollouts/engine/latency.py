"""The gateways' latency counts, window by window. In memory until a window is full: a new engine loses the open window."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rollouts.actions.latency_records import record_latency
from rollouts.core.latency import NOTHING, OpenWindow, Seen, classes_of, window_s
from rollouts.models import Rollout
from serving.ports import ArmCounters
from serving.traffic.adapters.counter_readers import StatsPage


class LatencyRecorder:
    """For one thread: the engine's."""

    def __init__(self) -> None:
        self._windows: dict[int, OpenWindow] = {}
        self._began: dict[int, float] = {}

    def forget(self) -> None:
        """Another engine led meanwhile, and has counted what came."""
        self._windows.clear()

    def read(self, rollout: Rollout, gateways: Collection[str], pages: Mapping[str, StatsPage], now: float) -> None:
        """Takes in what these gateways have counted of both arms; those that did not answer are left as they were."""
        digests = rollout.candidate.digest or "", (rollout.stable.digest or "") if rollout.stable else ""
        window = self._windows.get(rollout.pk, OpenWindow(now, now))
        self._began.setdefault(rollout.pk, (rollout.started_at or rollout.created_at).timestamp())
        for name in gateways:
            page = pages.get(name)
            found = page.get(rollout.model.slug) if page is not None and not isinstance(page, str) else None
            if found is None or isinstance(found, str):
                continue
            arms = [_classes(found.by_release.get(digest)) for digest in digests]
            window = window.after(name, Seen(found.epoch, arms[0], arms[1]), now)
        self._windows[rollout.pk] = window

    def flush(self, active: Collection[int], now: float, *, fence: int) -> None:
        """Stores the windows that are full, and those of rollouts that are active no longer."""
        due = {
            pk: window
            for pk, window in self._windows.items()
            if pk not in active or window.at - window.from_at >= window_s(now - self._began[pk])
        }
        if stored := {pk: window for pk, window in due.items() if not window.is_empty}:
            record_latency(stored, fence=fence)
        for pk, window in due.items():
            if pk in active:
                self._windows[pk] = window.begun_anew()
            else:
                del self._windows[pk], self._began[pk]


def _classes(arm: ArmCounters | None) -> tuple[int, ...]:
    return classes_of(arm.latency_us, arm.timed) if arm is not None else NOTHING
