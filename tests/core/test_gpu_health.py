"""What recorded GPUs say of a measurement: whose fault it is, or that nobody can tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ledger.core.errors import Invalid
from serving.targets.agent.gpu_reader import GpuReader
from serving.targets.core.gpu import Gpu, GpuProcess, GpuReading, Xid, with_servers
from tests.support.fakes.nvml import replayed
from validators.core.gpu_checks import CHECKS, Watch, Window, window_of
from validators.core.gpu_health import MOST_GPUS, counts, judge_gpu
from validators.core.policy import parse_policy
from validators.core.verdict import Judgement, Verdict

SERVER, PID = 7, 4242
UUID = "GPU-aaaa"
#: The second and the third of a recording's four readings lie in it.
LOAD = Window("load", 100.5, 102.5)


def readings(name: str) -> tuple[GpuReading, ...]:
    """Of each frame, a second apart from 100.0 s on."""
    found = []
    with replayed(name) as library:
        reader = GpuReader(now=lambda: 100.0 + library.at)
        for at, _ in enumerate(library.frames):
            library.at = at
            found.append(with_servers(reader.read(), {PID: SERVER}))
    return tuple(found)


def changed(told: tuple[GpuReading, ...], change: Callable[[Gpu], Gpu]) -> tuple[GpuReading, ...]:
    return tuple(replace(one, gpus=tuple(change(gpu) for gpu in one.gpus)) for one in told)


def judged(
    told: str | tuple[GpuReading, ...], *, declares: bool = True, mib: int | None = 9000, windows: tuple[Window, ...] = (LOAD,),
    **policy: Any,
) -> Judgement:  # fmt: skip
    section = parse_policy({"gates": ["load", "gpu"], "gpu": policy}).of("gpu")
    found = readings(told) if isinstance(told, str) else told
    watch = Watch(SERVER, 90.0, windows, readings=found, why_not="NVML Shared Library Not Found")
    return judge_gpu(watch, section, declares=declares, declared_mib=mib)


def unknown(found: Judgement) -> list[str]:
    return found.evidence["unknown"]


def test_a_gpu_that_was_well_passes_with_its_readings_told() -> None:
    found = judged("well")
    assert (found.verdict, found.evidence["finding"], unknown(found)) == (Verdict.PASSED, "well", [])
    assert [check["check"] for check in found.evidence["checks"]] == list(CHECKS)
    assert found.evidence["declares_gpu"] is True
    (told,) = found.evidence["gpus"]
    assert (told["uuid"], told["readings"], told["seconds"]) == (UUID, 4, 3.0)
    assert (told["energy_j_grown"], told["median_sm_clock_mhz"], told["xids"]) == (1530.0, 1980, [])
    assert told["unknown"] == {"retired_pages_pending": "Not Supported"}


@pytest.mark.parametrize(
    ("name", "verdict", "finding", "said"),
    [
        ("xid_79", Verdict.ERRORED, "node", "GPU-aaaa: the driver has lost it: GPU is lost; GPU-aaaa: Xid 79"),
        ("lost", Verdict.ERRORED, "node", "the driver has lost it"),
        ("ecc_uncorrected", Verdict.ERRORED, "node", "1 uncorrected errors of its memory"),
        ("remap_failed", Verdict.ERRORED, "node", "to be replaced"),
        ("xid_31", Verdict.FAILED, "release", "Xid 31, 45, which programs bring about"),
        ("throttled", Verdict.UNDECIDED, "perf_invalid", "slowed down for 0.9 s by hardware slowdown and heat, by hardware"),
    ],
)  # fmt: skip
def test_each_fault_has_its_author(name: str, verdict: Verdict, finding: str, said: str) -> None:
    found = judged(name)
    assert (found.verdict, found.evidence["finding"]) == (verdict, finding), found.reason
    assert said in found.reason


def test_a_fault_of_the_machine_comes_before_one_of_the_release() -> None:
    """What a broken GPU makes of a release says nothing against it."""
    found = judged("xid_79", mib=10)
    assert found.verdict is Verdict.ERRORED and "not the release" in found.reason
    assert {one["finding"] for one in found.evidence["checks"]} >= {"node", "release"}


def test_a_fault_of_the_release_comes_before_a_measurement_that_does_not_count() -> None:
    assert judged("throttled", mib=8000).verdict is Verdict.FAILED


def test_more_memory_than_declared_is_the_releases_fault() -> None:
    assert judged("well", mib=8192).verdict is Verdict.PASSED, "what the process holds, not what the GPU has in use"
    found = judged("well", mib=8191)
    assert (
        found.verdict is Verdict.FAILED
        and "held 8192 MiB of GPU memory; its envelope declares 8191 MiB" in found.reason
    )
    assert judged("well", mib=None).verdict is Verdict.PASSED


def test_without_the_processs_own_memory_the_gpus_counts_if_nobody_else_is_there() -> None:
    def untold(gpu: Gpu) -> Gpu:
        return replace(gpu, processes=tuple(replace(one, memory_bytes=None) for one in gpu.processes or ()))

    assert judged(changed(readings("well"), untold), mib=8268).verdict is Verdict.FAILED  # 8669880320 bytes
    assert judged(changed(readings("well"), untold), mib=8269).verdict is Verdict.PASSED


def test_heat_between_two_samples_is_seen_by_the_counter() -> None:
    def unseen(gpu: Gpu) -> Gpu:
        return replace(gpu, clock_event_reasons=0)

    found = judged(changed(readings("throttled"), unseen))
    assert found.evidence["finding"] == "perf_invalid" and "for 0.9 s by heat" in found.reason


def test_what_slowed_it_outside_of_the_measurement_does_not_count_against_it() -> None:
    found = judged("throttled", windows=(Window("load", 100.1, 100.9),))
    assert found.evidence["finding"] == "unknown" and "not read meanwhile" in found.reason
    quick = (Window("load", 100.0, 101.0),)
    assert judged("throttled", windows=quick).verdict is Verdict.PASSED, "a margin of 3 °C is told, not judged"
    assert "3 °C from it" in str(judged("throttled", windows=quick).evidence["checks"])


@pytest.mark.parametrize(
    ("bit", "counts"),
    [(0x01, True), (0x02, True), (0x04, True), (0x08, False), (0x10, True), (0x20, False), (0x40, False), (0x80, False), (0x100, True)],
)  # fmt: skip
def test_idling_and_chosen_clocks_do_not_make_a_measurement_void_and_heat_and_the_brake_do(
    bit: int, counts: bool
) -> None:
    found = judged(changed(readings("well"), lambda gpu: replace(gpu, clock_event_reasons=bit)))
    assert (found.verdict is Verdict.PASSED) == counts and found.evidence["finding"] == (
        "well" if counts else "perf_invalid"
    )


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68, 109, 46, 48, 62, 63, 64, 74, 79, 94, 95, 119, 120])
def test_which_xids_are_a_programs(code: int) -> None:
    heard = changed(readings("well"), lambda gpu: replace(gpu, xids=(Xid(code, 101.0),)))
    assert judged(heard).evidence["finding"] == ("release" if code in (13, 31, 43, 45, 68, 109) else "node")


@pytest.mark.parametrize(
    ("action", "said"), [(1, "a reset of the GPU"), (2, "a reboot of the node"), (99, "recovery action 99")]
)
def test_any_recovery_that_is_called_for_is_the_machines_fault(action: int, said: str) -> None:
    found = judged(changed(readings("well"), lambda gpu: replace(gpu, recovery_action=action)))
    assert found.verdict is Verdict.ERRORED and f"it needs {said}" in found.reason


def test_what_is_told_without_being_judged() -> None:
    told = readings("well")
    later = changed(
        told[2:], lambda gpu: replace(gpu, ecc_corrected=8, row_remap_pending=True, memory_used_bytes=85 * 10**9)
    )
    found = judged((*told[:2], *later))
    said = str(found.evidence["checks"])
    assert found.verdict is Verdict.PASSED
    assert "5 that were corrected" in said and "mended at the next reset" in said and "nearly full" in said


def test_a_power_limit_is_told_and_judged_where_the_policy_asks_for_it() -> None:
    found = judged("power_capped")
    assert found.verdict is Verdict.PASSED and "held it back for 75% of the time" in str(found.evidence["checks"])
    found = judged("power_capped", max_power_capped_frac=0.5)
    assert (found.verdict, found.evidence["finding"]) == (Verdict.UNDECIDED, "perf_invalid")
    without = changed(readings("power_capped"), lambda gpu: replace(gpu, power_capped_s=None))
    assert unknown(judged(without, max_power_capped_frac=0.5)) == ["throttling"]


def test_what_a_card_does_not_tell_blocks_until_the_policy_lets_it_go() -> None:
    found = judged("unsupported")
    assert (found.verdict, found.evidence["finding"]) == (Verdict.UNDECIDED, "unknown")
    assert unknown(found) == ["device", "ecc", "rows", "throttling", "xid"]
    found = judged("unsupported", must_know=["readings", "memory", "alone"])
    assert found.verdict is Verdict.PASSED
    assert found.reason.endswith("Unknown, which the policy allows: device, ecc, rows, throttling, xid.")


def test_must_know_names_checks_and_at_least_one() -> None:
    for must_know in ([], ["luck"]):
        with pytest.raises(Invalid, match="gpu.must_know"):
            judged("well", must_know=must_know)


def test_company_makes_the_measurement_void_unless_the_policy_allows_it() -> None:
    shared = changed(
        readings("well"), lambda gpu: replace(gpu, processes=(*(gpu.processes or ()), replace(gpu.processes[0], pid=9, server=8)))
    )  # fmt: skip
    found = judged(shared)
    assert found.evidence["finding"] == "perf_invalid" and "process 9 computed on it too" in found.reason
    assert judged(shared, alone=False).verdict is Verdict.PASSED


def test_an_xid_in_company_is_nobodys_until_somebody_can_tell() -> None:
    shared = changed(
        readings("xid_31"), lambda gpu: replace(gpu, processes=(*(gpu.processes or ()), *readings("mig")[0].gpus[2].processes))
    )  # fmt: skip
    found = judged(shared, alone=False)
    assert found.verdict is Verdict.UNDECIDED and "whether it was the release's is unknown" in found.reason


def test_a_release_that_was_seen_on_no_gpu_is_not_known_to_be_alone_or_within_its_memory() -> None:
    strangers = changed(readings("well"), lambda gpu: replace(gpu, processes=()))
    assert unknown(judged(strangers)) == ["alone", "memory"]


def test_in_a_slice_it_is_judged_by_its_slice_and_the_gpu_around_it() -> None:
    found = judged("mig", mib=4096)
    assert unknown(found) == ["rows"], (
        "the stranger in the other slice does not disturb, and rows are not told in this mode"
    )
    assert judged("mig", mib=4095).verdict is Verdict.FAILED
    assert judged("mig", mib=4096, must_know=[name for name in CHECKS if name != "rows"]).verdict is Verdict.PASSED


@pytest.mark.parametrize(
    ("windows", "said"),
    [
        ((Window("load", 99.0, 101.0),), "not read before load"),
        ((LOAD, Window("capacity", 102.6, 104.0)), "not read after capacity"),
    ],
)
def test_readings_that_do_not_reach_over_the_measurement_are_not_enough(windows: Any, said: str) -> None:
    found = judged("well", windows=windows)
    assert found.verdict is Verdict.UNDECIDED and said in found.reason
    assert "slowed" not in found.reason, "what is well is no part of why"


def test_a_gap_in_the_readings_is_told() -> None:
    late = tuple(replace(one, at_s=100 + 5.5 * at) for at, one in enumerate(readings("well")))
    assert judged(late, windows=(Window("load", 100.0, 116.5),)).verdict is Verdict.PASSED
    gap = (*late[:1], *late[2:])
    assert "not read for 11 s while load ran" in judged(gap, windows=(Window("load", 100.0, 116.5),)).reason


def test_a_measurement_between_two_readings_proves_nobody_alone() -> None:
    assert unknown(judged("well", windows=(Window("load", 101.1, 101.9),))) == ["alone", "memory", "throttling"]


def test_who_began_to_listen_late_has_not_heard_everything() -> None:
    late = changed(readings("well"), lambda gpu: replace(gpu, xids_since_s=101.0))
    assert unknown(judged(late)) == ["xid"]


def test_old_xids_are_not_this_servers() -> None:
    old = changed(
        readings("xid_31"), lambda gpu: replace(gpu, xids=tuple(replace(x, at_s=80.0) for x in gpu.xids or ()))
    )
    assert judged(old).verdict is Verdict.PASSED


def test_a_counter_that_began_anew_tells_nothing() -> None:
    told = readings("well")
    anew = (*changed(told[:2], lambda gpu: replace(gpu, ecc_uncorrected=5)), *told[2:])
    assert unknown(judged(anew)) == ["ecc"]


def test_older_cards_tell_of_pages_in_the_place_of_rows() -> None:
    def older(gpu: Gpu) -> Gpu:
        return replace(gpu, row_remap_failed=None, row_remap_pending=None, retired_pages_pending=True)

    found = judged(changed(readings("well"), older))
    assert found.verdict is Verdict.PASSED and "mended at the next reset" in str(found.evidence["checks"])


def test_nothing_read_is_undecided_and_says_why() -> None:
    for told in ((), (GpuReading(100.0, unknown="Driver Not Loaded"),)):
        found = judged(told)
        assert found.verdict is Verdict.UNDECIDED
        assert found.reason == "The GPUs of its node were not read: NVML Shared Library Not Found."
        assert found.evidence["declares_gpu"] is True and found.evidence["unknown"] == sorted(CHECKS)
    assert judged("well", windows=()).verdict is Verdict.UNDECIDED
    watch = Watch(SERVER, 90.0, (LOAD,), ["capacity"], readings("well"))
    found = judge_gpu(watch, {}, declares=True, declared_mib=None)
    assert found.reason == "Nobody watched the GPUs for capacity, which measured another server."


def test_a_release_without_a_gpu_has_nothing_to_prove_but_must_keep_off_them() -> None:
    found = judged((), declares=False, windows=())
    assert (found.verdict, found.reason) == (Verdict.PASSED, "It declares no GPU: nothing to prove.")
    assert found.evidence["declares_gpu"] is False
    found = judged("well", declares=False)
    assert found.verdict is Verdict.FAILED and "computes on GPU-aaaa, and declares no GPU" in found.reason


def test_no_single_missing_answer_passes() -> None:
    """Whatever one field is taken away, the gate passes only where another answers the same question."""
    may_go = {
        "name", "busy_frac", "memory_used_bytes", "memory_total_bytes", "memory_reserved_bytes", "temperature_c",
        "temperature_margin_c", "power_w", "power_limit_w", "energy_j", "sm_clock_mhz", "sm_clock_max_mhz", "power_capped_s",
        "thermal_throttled_s", "ecc_corrected", "row_remap_pending", "retired_pages_pending", "pcie_width", "pcie_width_max",
        "is_sliced", "parent_uuid",
    }  # fmt: skip
    told = readings("well")
    names = [name for name in vars(told[0].gpus[0]) if name not in ("uuid", "lost", "unknown")]
    for name in names:
        without = changed(told, lambda gpu, name=name: replace(gpu, **{name: None}))
        assert (judged(without).verdict is Verdict.PASSED) == (name in may_go), name


def test_a_report_tells_of_so_many_gpus_and_no_more() -> None:
    crowd = tuple(
        replace(one, gpus=tuple(replace(one.gpus[0], uuid=f"GPU-{at:02}") for at in range(20)))
        for one in readings("well")
    )
    assert len(judged(crowd).evidence["gpus"]) == MOST_GPUS == 16


def test_what_a_report_measured_counts_if_its_gpu_gate_vouches_for_it() -> None:
    for verdict in Verdict:
        gates = [{"gate": "load", "verdict": "undecided"}, {"gate": "gpu", "verdict": verdict.value}]
        assert counts({"gates": gates}) == (verdict is Verdict.PASSED)
    assert counts({"gates": [{"gate": "capacity", "verdict": "passed"}]}) and counts({})


def each(name: str, *values: Any) -> tuple[GpuReading, ...]:
    """The well recording with a field's value for each of its four readings."""
    told = readings("well")
    return tuple(
        replace(one, gpus=(replace(one.gpus[0], **{name: value}),)) for one, value in zip(told, values, strict=True)
    )


def sentence(found: Judgement, check: str) -> str:
    return next(one["sentence"] for one in found.evidence["checks"] if one["check"] == check)


def test_a_summary_is_of_what_was_told_last_and_of_what_grew() -> None:
    told = judged(each("is_sliced", False, False, False, True)).evidence["gpus"][0]
    assert told["is_sliced"] is True and told["readings"] == 4
    told = judged(each("energy_j", 1.0, None, 1.5, 2.00049)).evidence["gpus"][0]
    assert told["energy_j_grown"] == 1.0 and told["highest_power_w"] == 512.3
    told = judged(tuple(replace(one, at_s=one.at_s * 1.00001) for one in readings("well"))).evidence["gpus"][0]
    assert told["seconds"] == 3.0


def test_what_is_not_to_be_told_is_not() -> None:
    found = judged("well")
    assert sentence(found, "ecc") == "no uncorrected error of its memory"
    assert sentence(found, "rows") == "its memory needs no mending"
    assert sentence(found, "throttling") == "it was not slowed down"
    assert sentence(found, "memory") == "it held at most 8192 MiB of GPU memory of the 9000 MiB declared"
    assert sentence(judged("well", mib=None), "memory").endswith("of GPU memory; nothing is declared")
    assert sentence(judged(each("ecc_corrected", *[None] * 4)), "ecc") == "no uncorrected error of its memory"
    assert sentence(judged(each("ecc_corrected", 3, 4, 4, 4)), "ecc").endswith(", 1 that were corrected")


@pytest.mark.parametrize(("margin_c", "is_near"), [(4.9, True), (5.0, False), (9.0, False)])
def test_five_degrees_before_it_slows_itself_down_are_told_of(margin_c: float, is_near: bool) -> None:
    found = judged(each("temperature_margin_c", 20.0, margin_c, 20.0, 1.0))
    assert ("from it" in sentence(found, "throttling")) == is_near, "of the time in which it measured"


def test_the_most_memory_of_any_reading_is_held_against_the_envelope() -> None:
    def held(mib: int) -> tuple[GpuProcess, ...]:
        return (GpuProcess(PID, mib << 20, SERVER),)

    assert judged(each("processes", held(1), held(100), held(9001), held(1))).verdict is Verdict.FAILED
    assert judged(each("processes", held(9999), held(100), held(9000), held(9999))).verdict is Verdict.PASSED


def test_each_of_two_measurements_is_looked_at_and_the_time_between_is_not() -> None:
    both = (Window("load", 100.0, 101.0), Window("capacity", 102.0, 103.0))
    for reasons in ((0x40, 0, 0, 0), (0, 0x40, 0, 0), (0, 0, 0, 0x40)):
        assert judged(each("clock_event_reasons", *reasons), windows=both).evidence["finding"] == "perf_invalid"
    assert judged(each("thermal_throttled_s", 0.0, 0.0, 0.5, 0.5), windows=both).verdict is Verdict.PASSED
    assert judged(each("thermal_throttled_s", 0.0, 0.1, 0.1, 0.2), windows=both).evidence["finding"] == "perf_invalid"
    capped = each("power_capped_s", 0.0, 0.5, 0.5, 1.0)
    assert "for 50% of the time" in sentence(judged(capped, windows=both), "throttling")
    assert "for 50% of the time" in sentence(judged(capped, windows=both[:1]), "throttling"), "one second, too"


def test_xids_are_listened_to_from_before_the_first_request_in_every_reading() -> None:
    late = each("xids_since_s", 100.0, 101.0, 101.0, 101.0)
    assert unknown(judged(late)) == ["xid"], "the driver's library was opened anew in between"
    on_time = each("xids", *[(Xid(79, 90.0),)] * 4)
    assert judged(on_time).verdict is Verdict.ERRORED, "heard as the server came up"


def test_when_a_gate_sent_its_requests() -> None:
    told = {"answered": {"began_s": 5.0, "per_s": [1, 2, 3]}, "began_s": 1.0}
    assert window_of("load", told, 99.0) == Window("load", 5.0, 8.0)
    assert window_of("capacity", {"began_s": 7.5}, 99.0) == Window("capacity", 7.5, 99.0)
    assert window_of("load", {}, 99.0) is None
