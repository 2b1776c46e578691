"""Whether callers can steer a verdict on the real stack: rollouts beside an attacker, and the same rollouts without.

Run `python -m benchmarks.steering_live [--rate 40] [--only PART …] [--out FILE]`; about 12 minutes on two cores. It prints one line
for each rollout: its outcome, the seconds from its first traffic to its end, and what the engine counted for the candidate.
`benchmarks.steering` walks 300 pairs of each way; five of them here confirm the direction.

Each candidate is rolled out without an attacker first. Premise: an attacker has the gateway's address and no credential.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx

from benchmarks.faulty_code import FAILS, breaking
from benchmarks.load_generator import LoadGenerator
from sluicegate.stack import running
from tests.flows.tiny import MODEL, Shop

GOOD = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
WRONG_NAME = {"inputs": [{"name": "z", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
INFER = f"/v2/models/{MODEL}/infer"


@dataclass(frozen=True)
class Way:
    """One kind of call, so many each second."""

    name: str
    per_s: float
    method: str = "POST"
    path: str = INFER
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None


WAYS = (
    Way("readiness", 80, "GET", f"/v2/models/{MODEL}/ready"),
    Way("content type of gRPC", 2, headers={"content-type": "application/grpc"}, body=GOOD),
    Way("URL of 8,300 bytes", 2, path=f"{INFER}?{'a' * 8300}", body=GOOD),
    Way("the model's 400", 10, body=WRONG_NAME),
    Way("forced without the key", 2, headers={"x-sluicegate-release": "r1"}, body=GOOD),
)
STAGE = {"min_s": 10, "min_samples": 100, "deadline_s": 300}
POLICY = {
    "preset": "demo",
    "second_look": {"looks": 1},
    "steps": [{"weight_pct": 50, **STAGE}],
    "bake": STAGE,
    "guards": [{"indicator": "errors"}, {"indicator": "refused"}],
    "shadow": {"sample_pct": 0, "min_s": 1, "min_samples": 1, "deadline_s": 60},
}
CANDIDATES = {"healthy": ("promoted", 0.0), "fails 10 %": ("rolled_back", 0.1)}


@contextmanager
def calling(url: str, way: Way | None) -> Iterator[dict[int, int]]:
    """The attacker, while the block runs: the number of its calls by status."""
    said: dict[int, int] = {}
    enough = Event()

    def call() -> None:
        assert way is not None
        with httpx.Client(base_url=url, timeout=5, trust_env=False) as client:
            while not enough.wait(1 / way.per_s):
                answer = client.request(way.method, way.path, json=way.body, headers=way.headers)
                said[answer.status_code] = said.get(answer.status_code, 0) + 1

    thread = Thread(target=call, daemon=True)
    if way is not None:
        thread.start()
    try:
        yield said
    finally:
        enough.set()
        if way is not None:
            thread.join(10)


def one_run(shop: Shop, release: str, way: Way | None) -> dict[str, Any]:
    number = shop.start(release, policy=POLICY, again=True)
    shop.until(number, "shifting")
    shop.until_acknowledged(number)
    began = time.monotonic()
    with calling(shop.stack.gateway_http, way) as said:
        ended = shop.until(number, "rolled_back", "promoted", within_s=400)
    took_s = round(time.monotonic() - began, 1)
    if ended["state"] == "promoted":  # so that the next candidate meets the same stable release
        shop.manager.post(f"/models/{MODEL}/rollback", {"environment": "production", "reason": "the next run"})
        time.sleep(5)
    return {"outcome": ended["state"], "took_s": took_s, "reason": ended["reason"], "calls": said}


def measure(shop: Shop, ways: list[Way], crowd: LoadGenerator) -> Iterator[dict[str, Any]]:
    for name, (outcome, share) in CANDIDATES.items():
        release = shop.prove(name.replace(" ", "-").replace("%", "pct"), code=breaking(does=FAILS, share=share))
        crowd.breaks = True
        control: dict[str, Any] = {}
        for way in (None, *ways):
            found = one_run(shop, release, way)
            control = control or found
            ratio = found["took_s"] / control["took_s"]
            is_right = found["outcome"] == control["outcome"] == outcome
            yield {
                "candidate": name, "way": way.name if way else "nobody attacks", "is_right": is_right, "ratio": ratio, **found
            }  # fmt: skip


def told(row: dict[str, Any]) -> str:
    """The row in one line."""
    right = "ok  " if row["is_right"] else "OVER"
    outcome = f"{row['outcome']:12} after {row['took_s']:6.1f} s (× {row['ratio']:.2f})"
    return f"{row['candidate']:12} {row['way']:24} {right} {outcome}  {row['calls']}  {row['reason'][:140]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=40, help="users' requests per second (40)")
    parser.add_argument(
        "--only", nargs="*", default=[""], metavar="PART", help="ways whose name has one of these parts"
    )
    parser.add_argument("--out", type=Path, help="also write the rows as JSON")
    asked = parser.parse_args()
    ways = [way for way in WAYS if any(part in way.name for part in asked.only)]
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="sluicegate-steering-") as name,
        running(Path(name) / "state") as stack,
        Shop(stack, Path(name), step_s=1) as shop,
    ):
        first = shop.start(shop.prove("first"))
        shop.until(first, "shifting")
        shop.until_acknowledged(first)
        with LoadGenerator(f"{stack.gateway_http}{INFER}", asked.rate) as crowd:
            shop.until(first, "promoted")
            for row in measure(shop, ways, crowd):
                rows.append(row)
                print(told(row), flush=True)
    if asked.out:
        asked.out.write_text(json.dumps({"ways": [asdict(way) for way in ways], "rows": rows}, indent=1))
    if not all(row["is_right"] for row in rows):
        raise SystemExit("A verdict is not its control's.")


if __name__ == "__main__":
    main()
