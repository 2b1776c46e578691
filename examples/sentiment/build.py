"""Builds the release folders r1 … r5 of the sentiment model, ready for `sluicegate push`.

    python examples/sentiment/build.py --runtime NAME@sha256:… [--out .build/sentiment]

`--runtime` is a runtime image that a node offers (`sluicegate runtimes`). Weights come from the package named in
weights.lock, checked by hash, and are converted once: a later build with the same inputs only writes the folders.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml
from convert import convert

HERE = Path(__file__).resolve().parent
DEFAULT_OUT = HERE.parent.parent / ".build" / "sentiment"


def serving(*, code: bool) -> dict[str, Any]:
    """The serving part of release.yaml, the same for every release but for who runs the graph."""
    config: dict[str, Any] = {
        "max_batch_size": 16,
        "inputs": [{"name": "text", "data_type": "BYTES", "dims": [1]}],
        "outputs": [{"name": "probabilities", "data_type": "FP32", "dims": [2]}],
        # nobody waits for a batch to fill: it saves a tenth of the work at most, and no queue policy: Triton 2.51 stalls with one
        "dynamic_batching": {},
        "instance_group": [{"kind": "cpu", "count": 1}],
        "warmup": [{"batch_size": 1, "inputs": {"text": "a short sentence to warm up with"}}],
    }
    if not code:
        config["parameters"] = {"max_tokens": "128"}
    return config


def processor() -> str:
    """This machine's processor by the name that a node gives it: the releases run where they are built."""
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def release_document(*, runtime: str, note: str, code: bool, precision: str) -> dict[str, Any]:
    provenance = {
        "dataset": "vaderSentiment 3.3.2, ratings of 0.5 and stronger",
        "license": "Apache-2.0",
        "notes": note,
        "labels": {"precision": precision},
    }
    commit = subprocess.run(["git", "-C", str(HERE), "rev-parse", "HEAD"], capture_output=True, text=True)
    if commit.returncode == 0:
        provenance["git_commit"] = commit.stdout.strip()
    return {
        "model": "sentiment",
        "runtime": {"image": runtime, "server": "triton", "backend": "python" if code else "sluicegate-onnx"},
        "serving": serving(code=code),
        "envelope": {
            # what a small and busy machine holds as well; `sluicegate release show` has the measurements beside it
            "performance": [
                {
                    "hardware": processor(),
                    "workload": "golden.jsonl, one sentence in a request",
                    "source": "declared",
                    "load_shape": {"mode": "open", "rate_per_s": 8},
                    "latency_ms": {"p50": 250, "p95": 1000},
                    "error_max_frac": 0.05,
                    "cold_start_s": {"download": 60, "load": 60, "warmup": 30},
                }
            ],
            "host": {"cpu_cores_min": 1, "memory_mib_min": 512},
            # more in flight never means less served here, as texts are batched by length; each protocol gets half of the places
            "limits": {"max_batch_size": 16, "max_input_tokens": 128, "max_concurrency": 32},
        },
        "provenance": provenance,
    }


#: folder, graph, tokenizer, code (a file of runners/), note
RELEASES = (
    ("r1", "fp32.onnx", "tokenizer.json", "", "The reference: float32."),
    ("r2", "int8.onnx", "tokenizer.json", "", "Int8 per channel: smaller and faster, nearly the same answers."),
    ("r3", "fp32.onnx", "tokenizer-cased.json", "", "The reference with a tokenizer that forgot to lower-case."),
    (
        "r4",
        "int8.onnx",
        "tokenizer.json",
        "long_text.py",
        "Reads texts beyond 128 tokens in windows: slow on paragraphs.",
    ),
    ("r5", "int8.onnx", "tokenizer.json", "letter_buffer.py", "A fixed buffer for the text: letters crash the server."),
)


def write_releases(out: Path, converted: Path, runtime: str) -> list[Path]:
    folders = []
    for name, graph, tokenizer, code, note in RELEASES:
        folder = out / name
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "artifact").mkdir(parents=True)
        (folder / "tokenizer").mkdir()
        _place(converted / graph, folder / "artifact" / "model.onnx")
        _place(converted / tokenizer, folder / "tokenizer" / "tokenizer.json")
        if code:
            shutil.copyfile(HERE / "runners" / code, folder / "artifact" / "model.py")
            shutil.copyfile(HERE / "runners" / "sentiment_runner.py", folder / "artifact" / "sentiment_runner.py")
        document = release_document(runtime=runtime, note=note, code=bool(code), precision=graph.removesuffix(".onnx"))
        (folder / "release.yaml").write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
        folders.append(folder)
    return folders


def _place(source: Path, target: Path) -> None:
    """A second name for the same bytes where the file system can, a copy where it cannot."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime", required=True, help="runtime image by digest, as `sluicegate runtimes` lists it")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    arguments = parser.parse_args()
    folders = write_releases(arguments.out, convert(arguments.out / "converted"), arguments.runtime)
    print("wrote " + ", ".join(str(folder) for folder in folders))


if __name__ == "__main__":
    main()
