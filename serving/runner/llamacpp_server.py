"""Runs llama.cpp's own HTTP server on the GGUF file beside this program, until SIGTERM.

    python model.py ADDRESS PORT MODEL

`sluicegate.json` beside it holds the release's `serving`: each instance is a slot with a context of
`options.n_ctx` tokens, and an answer has `options.n_predict` tokens unless its caller asks for
another number.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import xllamacpp

ENDS = {signal.SIGTERM, signal.SIGINT}


def main(address: str, port: str, model: str) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)  # before the server's threads begin
    folder = Path(__file__).resolve().parent
    serving = json.loads((folder / "sluicegate.json").read_text(encoding="utf-8"))
    options, slots = serving["options"], sum(group["count"] for group in serving["instance_group"])
    asked = xllamacpp.CommonParams()
    asked.model.path = str(folder / "model.gguf")
    asked.model_alias = {model}
    asked.hostnames, asked.port = [address], int(port)
    asked.n_parallel, asked.n_ctx, asked.n_predict = slots, slots * options["n_ctx"], options["n_predict"]
    asked.ui = asked.endpoint_slots = asked.endpoint_props = False
    asked.offline = True
    server = xllamacpp.Server(asked)
    signal.sigwait(ENDS)
    del server
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
