"""The steps of the proof by part, in their order."""

from __future__ import annotations

from benchmarks.gpu_proof.outcome import Step
from benchmarks.gpu_proof.steps import clean, device, gates, growth, load, pair, rollout, stream, xid

_SERVER, _CARD = ("triton", "form"), ("gpu",)
MAIN = (
    Step("reader_idle", "The reader reads the card, and how long that takes", "device", device.reader_idle, _CARD, 40),
    Step(
        "reader_load",
        "The reader sees load, power and a second process",
        "device",
        device.reader_load,
        ("gpu", "torch"),
        120,
    ),
    Step(
        "throttling",
        "Energy and throttling facts under bf16 products",
        "device",
        device.throttling,
        ("gpu", "torch"),
        120,
    ),
    Step("recordings", "Recordings of the card that tests replay", "device", device.recordings, ("gpu", "torch"), 90),
    Step("cuda_adapter", "The driver names the GPU", "device", device.cuda_adapter, _CARD, 40),
    Step("launch", "The launcher starts a release in its sandbox", "release", gates.launch, _SERVER, 200),
    Step(
        "contract", "The contract gate passes it, and fails a mis-declared one", "release", gates.contract, _SERVER, 150
    ),
    Step(
        "cold_start", "The cold start gate measures fetch, load and warm-up", "release", gates.cold_start, _SERVER, 90
    ),
    Step("load", "The load gate at a third of its capacity", "release", load.load, _SERVER, 120),
    Step("overload", "At 1.2 times its capacity it goes on answering", "release", load.overload, _SERVER, 90),
    Step("resources", "The resources gate holds it to its envelope", "release", load.resources, _SERVER, 90),
    Step("gpu_gate", "The gpu gate watches it under load", "release", load.gpu, ("triton", "form", "gpu"), 90),
    Step("growth", "A leak for each request is found", "release", growth.growth, _SERVER, 150),
    Step("two_servers", "Two servers beside each other", "release", pair.two_servers, _SERVER, 150),
    Step("stream_times", "Token times of a streaming release", "release", stream.stream_times, _SERVER, 150),
    Step("rollout_errors", "A candidate that fails is rolled back", "release", rollout.rollout_errors, _SERVER, 120),
    Step(
        "rollout_slow",
        "A candidate that slows down is rolled back",
        "rollout",
        rollout.rollout_slow,
        _SERVER,
        120,
        is_quick=False,
    ),
    Step("xid", "An Xid reaches the listener, and blames the release", "xid", xid.xid, ("gpu", "nvcc"), 90),
    Step("clean_end", "Nothing is left", "end", clean.clean_end, (), 60),
)
PARTS = {"main": MAIN}
