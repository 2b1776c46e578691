"""The resources gate's judgement: every limit at its very edge, and nothing passes that was not read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from serving.targets.core.use import Reading, Use
from validators.core.answered import Answered
from validators.core.envelope import judged as with_envelope
from validators.core.policy import parse_policy
from validators.core.resources import judge_resources, needs_more
from validators.core.verdict import Judgement, Verdict

MIB = 2**20
PLAIN = Use(200 * MIB, 100 * MIB, 4 * MIB, 10.0, 70)
ANSWERED = Answered(1000.0, (20,) * 60)


def policy(**over: Any) -> dict[str, Any]:
    return parse_policy({"gates": ["load", "resources"], "resources": {"min_requests": 1000, **over}}).of("resources")


def readings(per_request: float = 0.0, *, use: Use = PLAIN, files: float = 0.0, shared: float = 0.0) -> list[Reading]:
    """Two a second; 5 ms of CPU time for each request."""
    assert use.own_bytes is not None
    return [
        Reading(
            1000.0 + at / 2,
            replace(
                use,
                own_bytes=use.own_bytes + round(per_request * 10 * at),
                shared_bytes=None if use.shared_bytes is None else use.shared_bytes + round(shared * 10 * at),
                cpu_s=None if use.cpu_s is None else use.cpu_s + 0.05 * at,
                open_files=None if use.open_files is None else use.open_files + round(files * 10 * at),
            ),
        )
        for at in range(121)
    ]


def judged(found: list[Reading], envelope: dict[str, Any] | None = None, **over: Any) -> Judgement:
    """The gate's verdict with its envelope's rows, with the default policy."""
    asked = parse_policy({}).of("envelope")
    judgement = judge_resources(found, ANSWERED, policy(**over))
    return with_envelope(judgement, "resources", envelope or {}, asked, hardware="NVIDIA L4", uses_gpu=True)


def test_a_good_server_passes_and_the_evidence_says_what_it_used() -> None:
    found = judged(readings(), {"host": {"memory_mib_min": 200, "shm_mib_min": 4}})
    assert found.verdict is Verdict.PASSED
    assert found.reason == ("Its memory grew by at most 0 bytes a request over 900 requests; 4096 are allowed.")
    assert found.evidence["cpu_ms_per_request"] == 5.0 and found.evidence["gpu_memory_bytes"] is None
    assert found.evidence["peaks"] == {
        "memory_bytes": 200 * MIB, "own_bytes": 100 * MIB, "shared_bytes": 4 * MIB, "open_files": 70,
    }  # fmt: skip
    assert (found.evidence["requests"], found.evidence["readings"]) == (1200, 121)
    assert found.evidence["points"][2] == [20.0, 200 * MIB, 100 * MIB]


@pytest.mark.parametrize(
    ("envelope", "says"),
    [
        ({"host": {"memory_mib_min": 199}}, "Its envelope declares 199 MiB (memory); 200 MiB were measured."),
        ({"host": {"shm_mib_min": 3}}, "Its envelope declares 3 MiB (shared memory); 4 MiB were measured."),
    ],
)
def test_more_than_the_envelope_declares_fails(envelope: dict[str, Any], says: str) -> None:
    found = judged(readings(), envelope)
    assert found.verdict is Verdict.FAILED and found.reason.startswith(says)


def test_gpu_memory_that_is_declared_and_not_read_is_undecided_and_never_passes() -> None:
    on_gpu = {"accelerator": {"vendor": "nvidia", "memory_mib_min": 1000, "memory_mib_peak_declared": 2000}}
    found = judged(readings(), on_gpu)
    assert found.verdict is Verdict.UNDECIDED
    assert found.reason.startswith(
        "Its envelope declares 2000 MiB (GPU memory); the resources gate could not measure it."
    )
    assert judged(readings(), {"accelerator": {"vendor": "none", "memory_mib_min": 5}}).verdict is Verdict.PASSED
    for held, verdict in ((2000, Verdict.PASSED), (2001, Verdict.FAILED)):
        assert judged(readings(use=replace(PLAIN, gpu_memory_bytes=held * MIB)), on_gpu).verdict is verdict


@pytest.mark.parametrize(
    ("per_request", "verdict"), [(4096, Verdict.PASSED), (4097, Verdict.FAILED), (2**20 / 100, Verdict.FAILED)]
)
def test_growth_is_held_to_its_limit(per_request: float, verdict: Verdict) -> None:
    found = judged(readings(per_request))
    assert found.verdict is verdict, found.reason
    assert found.evidence["growth"]["per_request"] == pytest.approx(per_request, abs=1)
    if verdict is Verdict.FAILED:
        assert found.reason.startswith(f"It leaks: its memory grew by {per_request:.0f} bytes a request")


def test_growth_that_slows_down_is_not_called_a_leak() -> None:
    found = [
        replace(one, use=replace(PLAIN, own_bytes=round(100 * MIB + 20e6 * (1 - 0.97**at))))
        for at, one in enumerate(readings())
    ]
    judgement = judged(found)
    assert judgement.verdict is Verdict.UNDECIDED
    assert "bytes a request, ever more slowly" in judgement.reason


def test_shared_memory_that_fills_fails_where_all_memory_is_too_rough_to_tell() -> None:
    dice = np.random.default_rng(3)

    def rough(shared: float) -> list[Reading]:
        """Allocations swing by tens of MiB, and hide what is added to them."""
        return [
            replace(one, use=replace(one.use, own_bytes=100 * MIB + int(dice.integers(60 * MIB))))
            for one in readings(shared=shared)
        ]

    leaking = judged(rough(8192))
    assert leaking.verdict is Verdict.FAILED
    assert (
        leaking.reason
        == "It leaves 8192 bytes of shared memory behind for each request, over 900 requests; 4096 are allowed."
    )
    assert leaking.evidence["shared_growth"]["per_request"] == 8192
    assert "shared memory" not in judged(rough(4096)).reason
    early = judged(readings(shared=8192), min_requests=2000)
    assert early.verdict is Verdict.UNDECIDED and "Whether it fills its shared memory is not proven" in early.reason
    step = [
        replace(one, use=replace(one.use, shared_bytes=64 * MIB)) if at > 60 else one
        for at, one in enumerate(readings())
    ]
    assert judged(step).verdict is Verdict.PASSED, "an allocator's step is no leak"
    unread = judged(readings(use=replace(PLAIN, shared_bytes=None)))
    assert unread.verdict is Verdict.PASSED and unread.evidence["shared_growth"] is None


def test_files_that_stay_open_fail_and_those_of_connections_do_not() -> None:
    leaking = judged(readings(files=0.5))
    assert leaking.verdict is Verdict.FAILED
    assert leaking.reason.startswith("It leaves 0.50 files open for each request")
    early = judged(readings(files=0.5), min_requests=2000)
    assert early.verdict is Verdict.UNDECIDED and "it answered 1200 requests, and 2000 are asked for" in early.reason
    assert "Whether it leaves files open is not proven" in early.reason
    assert judged(readings(files=0.01)).verdict is Verdict.PASSED
    burst = [
        replace(one, use=replace(one.use, open_files=170)) if at > 90 else one for at, one in enumerate(readings())
    ]
    assert judged(burst).verdict is Verdict.PASSED


def test_cpu_time_is_judged_where_the_policy_asks() -> None:
    assert judged(readings(), max_cpu_ms=5).verdict is Verdict.PASSED
    over = judged(readings(), max_cpu_ms=4.9)
    assert (over.verdict, over.reason) == (
        Verdict.FAILED, "A request took 5.0 ms of CPU time; 4.9 ms are allowed."
    )  # fmt: skip
    assert judged(readings(use=replace(PLAIN, cpu_s=None)), max_cpu_ms=5).verdict is Verdict.UNDECIDED


def test_what_was_not_read_is_undecided() -> None:
    for found, answered in (([], ANSWERED), (readings(), None), ([], None)):
        judgement = judge_resources(found, answered, policy())
        assert judgement.verdict is Verdict.UNDECIDED and judgement.reason.startswith("What it uses is unknown")
    hidden = [replace(one, use=Use(one.use.memory_bytes)) for one in readings()]
    judgement = judged(hidden)
    assert judgement.verdict is Verdict.UNDECIDED
    assert judgement.reason.startswith("Whether it leaks is unknown: 0 readings over 1200 requests are too few")
    assert judged(readings()[:20]).verdict is Verdict.UNDECIDED


def test_the_evidence_of_a_long_run_is_bounded() -> None:
    long = [replace(one, at_s=1000 + at / 100) for at, one in enumerate(readings() * 20)]
    assert len(judge_resources(long, ANSWERED, policy()).evidence["points"]) <= 240


def test_a_soak_is_asked_for_where_it_may_prove_something() -> None:
    assert needs_more(judged(readings(), min_requests=1201)) and not needs_more(judged(readings(), min_requests=1200))
    assert needs_more(judged(readings(2**20 / 100), min_requests=1201)), "a leak is not blamed on too few, either"
    assert needs_more(judge_resources([], None, policy()))
    assert not needs_more(judge_resources([], ANSWERED, policy())), "nobody looks at its processes"
    assert not needs_more(judged([replace(one, use=Use(one.use.memory_bytes)) for one in readings()]))
    over = {"host": {"memory_mib_min": 1}}
    assert not needs_more(judged(readings(), over, min_requests=1201)), "it failed anyhow"
    on_gpu = {"accelerator": {"vendor": "nvidia", "memory_mib_min": 1}}
    assert not needs_more(judged(readings(), on_gpu)), "more requests tell nothing of a GPU that is not read"


def test_fewer_requests_than_are_asked_for_prove_nothing() -> None:
    found = judged(readings(), min_requests=1201)
    assert (found.verdict, found.reason) == (
        Verdict.UNDECIDED,
        "Whether it leaks is not proven: it answered 1200 requests, and 1201 are asked for.",
    )
