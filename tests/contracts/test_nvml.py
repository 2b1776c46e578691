"""The GPU reader on recordings of NVML, through the real `pynvml`, and the same contract on a machine with a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import pynvml
import pytest

from serving.targets.agent.gpu_reader import MOST_XIDS, GpuReader
from serving.targets.core.gpu import Gpu, GpuReading, Xid, reading_of
from tests.support.fakes.nvml import RECORDINGS, RecordedLibrary, record, replayed

EVERY = sorted(path.stem for path in RECORDINGS.glob("*.json"))
_TOLD = {one.name for one in fields(Gpu)} - {"uuid", "name", "parent_uuid", "lost", "unknown", "xids_since_s"}


def readings(name: str) -> list[GpuReading]:
    """One of each frame, a second apart, from 100.0 s on."""
    with replayed(name) as library:
        reader = GpuReader(now=lambda: 100.0 + library.at)
        found = []
        for at, _ in enumerate(library.frames):
            library.at = at
            found.append(reader.read())
        reader.close()
        assert library.opened == 0, "what was opened is given back"
    return found


def keeps_its_contract(found: GpuReading) -> None:
    """Every question has an answer or a reason, and nothing has both."""
    assert bool(found.gpus) != bool(found.unknown)
    for gpu in found.gpus:
        known = {name for name in _TOLD if getattr(gpu, name) is not None}
        assert known.isdisjoint(gpu.unknown), known & set(gpu.unknown)
        assert gpu.uuid and (gpu.parent_uuid or known | set(gpu.unknown) == _TOLD)
    assert reading_of(found.as_json()) == GpuReading(round(found.at_s, 3), found.gpus, found.unknown, found.source), (
        "what is stored is what was read"
    )


@pytest.mark.parametrize("name", EVERY)
def test_every_recorded_reading_keeps_the_contract(name: str) -> None:
    every = readings(name)
    assert every, "the recording is empty"
    for found in every:
        keeps_its_contract(found)


@pytest.mark.real("gpu")
@pytest.mark.shows("gpu:nvml")
def test_the_gpus_of_this_machine_keep_the_contract() -> None:
    reader = GpuReader()
    for _ in range(3):
        found = reader.read()
        assert found.gpus, found.unknown
        keeps_its_contract(found)
    reader.close()


def test_what_a_gpu_tells_has_its_units() -> None:
    (gpu,) = readings("well")[1].gpus
    assert (gpu.uuid, gpu.name) == ("GPU-aaaa", "NVIDIA H100 80GB HBM3")
    assert (gpu.power_w, gpu.power_limit_w, gpu.energy_j, gpu.busy_frac) == (512.3, 700.0, 9510.0, 0.84)
    assert (gpu.memory_used_bytes, gpu.memory_reserved_bytes) == (8669880320, 545259520)
    assert (gpu.temperature_c, gpu.temperature_margin_c, gpu.sm_clock_mhz) == (58.0, 29.0, 1980)
    assert (gpu.ecc_corrected, gpu.ecc_uncorrected, gpu.row_remap_failed, gpu.recovery_action) == (3, 0, False, 0)
    assert gpu.processes and (gpu.processes[0].pid, gpu.processes[0].memory_bytes) == (4242, 8 << 30)
    assert (gpu.xids, gpu.xids_since_s) == ((), 100.0)
    assert gpu.unknown == {"retired_pages_pending": "Not Supported"} and gpu.faults == []


def test_times_of_throttling_are_seconds_of_the_violation_counters() -> None:
    assert [one.gpus[0].thermal_throttled_s for one in readings("throttled")] == [0.0, 0.0, 0.65, 0.9]


def test_without_the_library_nothing_is_known_and_nothing_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_here() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", not_here)
    found = GpuReader().read()
    assert (found.gpus, found.unknown) == ((), "NVML Shared Library Not Found")


def test_a_driver_that_is_not_loaded_is_unknown() -> None:
    assert readings("no_driver")[0].unknown == "Driver Not Loaded"


def test_what_is_not_supported_is_unknown_and_never_nought() -> None:
    (gpu,) = readings("unsupported")[0].gpus
    assert gpu.temperature_c == 58.0, "by the older name"
    assert gpu.recovery_action is None and gpu.unknown["recovery_action"] == "Not Supported"
    for name in ("ecc_uncorrected", "row_remap_failed", "clock_event_reasons", "xids", "power_w"):
        assert getattr(gpu, name) is None and name in gpu.unknown
    assert gpu.processes and gpu.processes[0].memory_bytes is None


def test_an_older_library_is_asked_by_the_names_that_it_knows() -> None:
    with replayed("well") as library:
        for frame in library.frames:
            frame["0"]["nvmlDeviceGetCurrentClocksThrottleReasons"] = 4
            for name in ("CurrentClocksEventReasons", "TemperatureV", "MarginTemperature", "MemoryInfo_v2"):
                del frame["0"][f"nvmlDeviceGet{name}"]
        (gpu,) = GpuReader().read().gpus
    assert (gpu.clock_event_reasons, gpu.temperature_c, gpu.temperature_margin_c) == (4, 58.0, 32.0)
    assert gpu.unknown["memory_used_bytes"] == "Function Not Found", "what it reserves is not told apart"


def test_xids_are_heard_once_and_stay() -> None:
    told = [one.gpus[0].xids for one in readings("xid_31")]
    assert told == [(), (), (Xid(31, 102.0), Xid(45, 102.0)), (Xid(31, 102.0), Xid(45, 102.0))]


def test_a_gpu_that_is_lost_stays_in_the_reading_with_its_last_xid() -> None:
    last = [one.gpus[0] for one in readings("xid_79")][2:]
    assert [gpu.uuid for gpu in last] == ["GPU-aaaa"] * 2
    assert [gpu.lost for gpu in last] == ["GPU is lost", "it is not found any more"]
    assert last[0].faults == ["the driver has lost it: GPU is lost", "Xid 79"]
    assert last[1].xids == (Xid(79, 102.0),) and last[1].memory_used_bytes is None


def test_a_gpu_that_comes_back_is_listened_to_anew() -> None:
    with replayed("lost") as library:
        reader = GpuReader(now=lambda: 100.0 + library.at)
        for library.at in (0, 2, 3, 1):
            found = reader.read()
    (gpu,) = found.gpus
    assert (gpu.lost, gpu.xids_since_s) == ("", 101.0), "nobody heard what came meanwhile"


def test_a_slice_answers_for_its_memory_and_its_gpu_for_the_rest() -> None:
    whole, own, other = readings("mig")[0].gpus
    assert whole.is_sliced and whole.unknown["row_remap_failed"] == whole.unknown["busy_frac"] == "Not Supported"
    assert (own.uuid, own.parent_uuid, own.memory_used_bytes) == ("MIG-bbbb", "GPU-aaaa", 4 << 30)
    assert other.processes and other.processes[0].pid == 777 and own.power_w is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ecc_uncorrected", ["it needs a reset of the GPU", "Xid 48"]),
        ("remap_failed", ["a row of its memory could not be remapped, so it is to be replaced"]),
        ("lost", ["the driver has lost it: it is not found any more"]),
        ("xid_31", []),
        ("throttled", []),
    ],
)
def test_faults_are_the_hardwares_own(name: str, said: list[str]) -> None:
    assert readings(name)[-1].gpus[0].faults == said


def test_a_storm_of_xids_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with replayed("well") as library:
        library.frames[0]["0"]["xids"] = [13] * 200
        reader = GpuReader(now=lambda: 1.0)
        (gpu,) = reader.read().gpus
        assert gpu.xids and len(gpu.xids) == MOST_XIDS
        assert len(library.frames[0]["0"]["xids"]) > 100, "a reading ends, however many there are"


@pytest.fixture
def recorded() -> Iterator[RecordedLibrary]:
    with replayed("mig") as library:
        yield library


def test_what_is_recorded_is_what_is_replayed(recorded: RecordedLibrary) -> None:
    """A recording of a recording says the same, so one of a real GPU can be believed."""
    (frame,) = record(1, recorded)
    for device, answers in frame.items():
        for call, answer in answers.items():
            was = recorded.frames[0][device][call]
            assert answer == was or (isinstance(was, dict) and was.items() <= answer.items()), call
    assert {"0", "0/0", "0/1"} <= frame.keys() and len(frame["0"]) >= 20


def test_a_driver_that_goes_away_has_lost_its_gpus() -> None:
    with replayed("lost") as library:
        reader = GpuReader(now=lambda: 1.0)
        for library.at in (0, 2):
            reader.read()
        library.frames[2][""] = {"nvmlInitWithFlags": {"error": pynvml.NVML_ERROR_DRIVER_NOT_LOADED}}
        (gpu,) = reader.read().gpus
    assert (gpu.uuid, gpu.lost, gpu.unknown["power_w"]) == ("GPU-aaaa", "Driver Not Loaded", "Driver Not Loaded")
