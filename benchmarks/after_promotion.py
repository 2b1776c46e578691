"""What happens when a release breaks after its promotion, on the real stack: Triton, Envoy, PostgreSQL, Valkey.

Run `python -m benchmarks.after_promotion [--scenes alarm,control,both]`.

r2 is promoted over r1 under users. Then a fifth of its answers takes 0.4 s more, against an objective of 1 % over 250 ms.

    alarm     r1 is warm and has no traffic: the page alarm, an undo window that is over and held open, then a rollback by hand
    control   r1 keeps 5 % as the control, and the policy may roll back: the rollback by the watch
    both      as `control`, and r1 turns slow at the same time: an alarm, and no rollback within four minutes

Seconds from the first slow request asked. Ends with 1 if a scene ends otherwise.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.faulty_code import breaking
from benchmarks.load_generator import LoadGenerator
from sluicegate.stack import Stack, running
from tests.flows.tiny import ENVIRONMENT, MODEL, Shop, model_document

SLOW = "time.sleep(0.4)"
SHARE, RATE_PER_S = 0.2, 8.0  # the server is busy for less than its time
#: The undo window of the first scene: it would be over before the alarm could come.
WINDOW_S = 60
#: Within which the page alarm is promised, and for which `both` is watched.
PROMISED_S, WATCHED_S = 150.0, 240.0


def policy(watch: dict[str, Any], window_s: float) -> dict[str, Any]:
    stage = {"min_s": 1, "min_samples": 30, "deadline_s": 120}
    return {
        "preset": "demo", "second_look": {"looks": 1}, "steps": [{"weight_pct": 50, **stage}], "bake": stage,
        "instant_window_s": window_s, "undo_max_s": 3600, "watch": watch,
    }  # fmt: skip


class Scene:
    """r2 after its promotion over r1, with users."""

    def __init__(self, shop: Shop, crowd: LoadGenerator) -> None:
        self.shop, self.crowd = shop, crowd

    def promote(self, release: str, plan: dict[str, Any]) -> int:
        number = self.shop.start(release, policy=plan)
        self.shop.until(number, "promoted")
        return number

    def alarm(self) -> dict[str, Any] | None:
        found = self.shop.manager.get("/alarms?live=true&tier=page")["results"]
        return found[0] if found else None

    def until(self, what: Callable[[], Any], within_s: float) -> Any:
        """Its first true result; None if the time is over."""
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            if found := what():
                return found
            time.sleep(0.5)
        return None

    def rollout(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = self.shop.manager.get(f"/rollouts/{number}")
        return found

    def since_fault(self, at: str) -> float:
        assert self.crowd.broke_at is not None
        return round(datetime.fromisoformat(at).timestamp() - self.crowd.broke_at, 1)


def alarm_scene(scene: Scene, number: int) -> tuple[bool, str]:
    alarm = scene.until(scene.alarm, 2 * PROMISED_S)
    if alarm is None:
        return False, "no alarm"
    after_s = scene.since_fault(alarm["opened_at"])
    time.sleep(max(0.0, WINDOW_S + 30 - after_s))
    window = scene.rollout(number)["undo_window"]
    began = time.monotonic()
    back = scene.shop.manager.post(f"/models/{MODEL}/rollback", {"environment": ENVIRONMENT, "reason": "It is slow."})
    is_right = window is not None and back["state"] == "reverted" and after_s <= PROMISED_S
    told = f"page alarm after {after_s} s, burn {alarm['facts']['burn']}; window of {WINDOW_S} s still open: {window is not None}; "
    return is_right, told + f"rolled back by hand in {time.monotonic() - began:.1f} s: {back['reason']}"


def control_scene(scene: Scene, number: int) -> tuple[bool, str]:
    reverted = scene.until(lambda: scene.rollout(number)["state"] == "reverted", 2 * PROMISED_S)
    row = scene.rollout(number)
    alarm = scene.alarm() or {}
    if not reverted:
        return False, f"not taken back; alarm {alarm}"
    after_s = scene.since_fault(row["clock"]["decided_at"])
    return after_s <= 2 * PROMISED_S, f"taken back by the watch after {after_s} s: {row['reason']}"


def both_scene(scene: Scene, number: int) -> tuple[bool, str]:
    alarm = scene.until(scene.alarm, 2 * PROMISED_S)
    time.sleep(WATCHED_S - PROMISED_S)
    state = scene.rollout(number)["state"]
    after = scene.since_fault(alarm["opened_at"]) if alarm else None
    return alarm is not None and state == "promoted", f"page alarm after {after} s; the rollout is {state}"


SCENES = {
    "alarm": (alarm_scene, {"control_pct": 0, "roll_back": "never"}, WINDOW_S),
    "control": (control_scene, {"control_pct": 5, "roll_back": "undo_window"}, 3600),
    "both": (both_scene, {"control_pct": 5, "roll_back": "undo_window"}, 3600),
}


def play(stack: Stack, folder: Path, name: str) -> bool:
    judge, watch, window_s = SCENES[name]
    slow = breaking(does=SLOW, share=SHARE)
    with Shop(stack, folder, step_s=1, has_model=False) as shop:
        document = model_document(1)
        document["objectives"] = {"errors_max_frac": 0.01, "slow": {"threshold_ms": 250, "max_frac": 0.01}}
        shop.author.post("/models", document)
        plan = policy(watch, window_s)
        first = shop.start(shop.prove("first", code=slow if name == "both" else ""), policy=plan)
        with LoadGenerator(f"{stack.gateway_http}/v2/models/{MODEL}/infer", RATE_PER_S) as crowd:
            shop.until(first, "promoted")
            scene = Scene(shop, crowd)
            number = scene.promote(shop.prove("second", code=slow), plan)
            time.sleep(15)
            failed_before = len(crowd.failed)
            crowd.breaks = True
            is_right, told = judge(scene, number)
            failed = len(crowd.failed) - failed_before
    print(f"| {name} | {'as promised' if is_right else 'OTHERWISE'} | {told} | {failed} |", flush=True)
    return is_right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", default=",".join(SCENES))
    asked = parser.parse_args()
    print("| scene | end | what happened | users' failures |\n|---|---|---|---|", flush=True)
    are_right = []
    for name in asked.scenes.split(","):
        with (
            tempfile.TemporaryDirectory(prefix="sluicegate-after-") as folder,
            running(Path(folder) / "state") as stack,
        ):
            are_right.append(play(stack, Path(folder), name))
    raise SystemExit(not all(are_right))


if __name__ == "__main__":
    main()
