"""What a reading of GPUs says of faults and of servers, and that it is stored as it was read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serving.targets.core.gpu import (
    Gpu,
    GpuProcess,
    GpuReading,
    Xid,
    memory_by_server,
    reading_of,
    recovery,
    with_servers,
)

WELL = Gpu("GPU-a", "NVIDIA L4", recovery_action=0, row_remap_failed=False, xids=())


def on(*processes: GpuProcess, uuid: str = "GPU-a", parent: str | None = None) -> Gpu:
    return Gpu(uuid, parent_uuid=parent, processes=processes)


def test_a_reading_is_stored_as_it_was_read() -> None:
    gpu = replace(
        WELL, processes=(GpuProcess(1, None, 2),), xids=(Xid(31, 5.0),), xids_since_s=1.0, unknown={"power_w": "no"}
    )
    reading = GpuReading(12.345, (gpu, Gpu("GPU-b", lost="gone")), source="dcgm")
    stored = reading.as_json()
    assert stored["gpus"][1] == {"uuid": "GPU-b", "lost": "gone", "unknown": {}}, "what is unknown takes no room"
    assert reading_of(stored) == reading and reading_of({}) is None
    assert GpuReading(12.34567).as_json()["at_s"] == 12.346
    assert reading_of({"at_s": 1}) == GpuReading(1.0), "of an agent that tells less"
    stored["gpus"][0]["colour"] = "green"
    assert reading_of(stored) == reading, "of an agent that tells more"
    assert reading_of(GpuReading(1.0, unknown="no driver").as_json()) == GpuReading(1.0, unknown="no driver")


def test_faults_are_the_hardwares_and_a_programs_errors_are_none() -> None:
    assert WELL.faults == Gpu("GPU-a").faults == []
    assert replace(WELL, xids=(Xid(13, 1.0), Xid(79, 2.0), Xid(48, 3.0), Xid(79, 4.0))).faults == ["Xid 48, 79"]
    assert replace(WELL, xids=(Xid(109, 1.0),)).faults == []
    worst = replace(WELL, lost="gone", recovery_action=2, row_remap_failed=True)
    assert [one.split(":")[0] for one in worst.faults] == [
        "the driver has lost it", "it needs a reboot of the node", "a row of its memory could not be remapped, so it is to be replaced",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (1, "a reset of the GPU"), (2, "a reboot of the node"), (3, "a drain of its peers"), (4, "a drain and a reset"),
        (5, "a recovery of its IMEX domain"), (6, "a reset of the bus"), (7, "a reboot of the system"), (8, "recovery action 8"),
    ],
)  # fmt: skip
def test_recovery_actions_are_those_of_the_driver(action: int, said: str) -> None:
    assert recovery(action) == said


def test_what_faults_rest_on_and_nobody_told_is_named() -> None:
    assert WELL.untold == [] == Gpu("MIG-a", parent_uuid="GPU-a").untold
    assert Gpu("GPU-a").untold == ["whether it needs recovery", "rows of its memory", "Xids"]
    assert replace(WELL, row_remap_failed=None, retired_pages_pending=False).untold == [], "older cards have pages"


def test_processes_are_given_to_their_servers() -> None:
    reading = GpuReading(1.0, (on(GpuProcess(10), GpuProcess(11, 5)), Gpu("GPU-b")))
    first, second = with_servers(reading, {10: 7}).gpus
    assert first.processes == (GpuProcess(10, None, 7), GpuProcess(11, 5, None)) and second.processes is None


def test_memory_by_server_is_of_all_devices_and_of_what_is_known() -> None:
    two = GpuReading(
        1.0, (on(GpuProcess(1, 5, 7)), on(GpuProcess(1, 6, 7), GpuProcess(2, 9, 8), GpuProcess(3, 1), uuid="GPU-b"))
    )
    assert memory_by_server(two) == {7: 11, 8: 9}
    unsure = GpuReading(1.0, (on(GpuProcess(1, 5, 7)), on(GpuProcess(1, None, 7), uuid="GPU-b"), Gpu("GPU-c")))
    assert memory_by_server(unsure) == {}
    sliced = GpuReading(1.0, (on(GpuProcess(1, 5, 7)), on(GpuProcess(1, 5, 7), uuid="MIG-a", parent="GPU-a")))
    assert memory_by_server(sliced) == {7: 5}
