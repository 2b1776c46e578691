"""What the diff of two releases costs: `python -m benchmarks.diff [--files N] [--rounds N]`.

Two releases of `--files` files each, on a PostgreSQL and a blob folder of its own: safetensors shards of 40 tensors, JSON
files, a graph, and a tokenizer of 30 000 words; every file of the second release has other bytes than that of the first.
Printed: inspecting and sealing each release, the diff as the API answers it (headers remembered at the seal), and the diff
where none was remembered, so that headers are read from the store.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.stores import database


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    with database(SLUICEGATE_LOG_LEVEL="ERROR"):
        measure(arguments.files, arguments.rounds)


def contents(release: int, files: int) -> Iterator[tuple[str, bytes]]:
    """(path, bytes) of the files of one release."""
    from tests.support.worlds.model_files import onnx_file, safetensors_file, tokenizer_file

    yield "artifact/model.onnx", onnx_file(f"release {release}")
    words = {f"word{i}": i for i in range(30_000)}
    yield "tokenizer/tokenizer.json", tokenizer_file(words | {f"only in r{release}": 30_000})
    for i in range(files - 2):
        if i % 2:
            yield f"artifact/settings/{i:04}.json", json.dumps({"release": release, "i": i}).encode()
        else:
            tensors = [(f"layers.{i}.{j}.weight", "F16", [release, 2 + j]) for j in range(40)]
            yield f"artifact/weights/{i:04}.safetensors", safetensors_file(tensors)


def measure(files: int, rounds: int) -> None:
    """Prints one line for each figure."""
    from accounts.actions import create_team
    from accounts.core.access import Actor
    from registry import actions
    from registry.models import Inspection
    from tests.support.worlds.registry_samples import release_yaml, served_model
    from validators.queries.release_diff import whole_diff

    actor = Actor.system("bench")
    create_team(actor=actor, slug="vision", title="Vision")
    model = served_model(actor)
    releases = []
    for number in (1, 2):
        draft, _ = actions.create_draft(actor=actor, model=model, spec=release_yaml())
        for path, data in contents(number, files):
            sha256 = hashlib.sha256(data).hexdigest()
            actions.add_file(actor=actor, release=draft, path=path, sha256=sha256, stream=io.BytesIO(data))
        began = time.perf_counter()
        releases.append(actions.seal(actor=actor, release=draft))
        print(f"seal of r{number}, {files} files inspected for the first time: {time.perf_counter() - began:.2f} s")
    old, new = releases
    say(f"diff of two releases of {files} files", each(lambda: json.dumps(whole_diff(old, new)), rounds))
    Inspection.objects.all().delete()
    say("the same, up to 200 headers read from the store", each(lambda: json.dumps(whole_diff(old, new)), 3))


def each(run: Callable[[], Any], times: int) -> list[float]:
    """Seconds of each run."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        run()
        took.append(time.perf_counter() - began)
    return took


def say(what: str, took: list[float]) -> None:
    print(f"{what}: median {statistics.median(took):.3f} s, worst {max(took):.3f} s of {len(took)}")


if __name__ == "__main__":
    main()
