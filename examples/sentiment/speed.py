"""How many texts a second one thread answers with a release's graph, one by one, without any server.

    .venv-serving/bin/python examples/sentiment/speed.py .build/sentiment/r1 [--seconds 3] < texts.jsonl

Takes one JSON string a line and prints {"per_s": …}. A server with one instance of one thread does about as much: it has
more to do for each request, and batches of texts of like length save it a tenth. So this tells within seconds that a
machine is too small.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path

from offline import OfflineModel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", type=Path)
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    texts = [json.loads(line) for line in sys.stdin if line.strip()]
    model = OfflineModel(
        arguments.release / "artifact" / "model.onnx", arguments.release / "tokenizer" / "tokenizer.json"
    )
    model.run(texts[:1])
    answered, began = 0, time.perf_counter()
    for text in itertools.cycle(texts):
        model.run([text])
        answered += 1
        if (spent_s := time.perf_counter() - began) >= arguments.seconds:
            break
    print(json.dumps({"per_s": round(answered / spent_s, 2)}))


if __name__ == "__main__":
    main()
