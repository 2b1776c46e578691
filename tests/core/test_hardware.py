"""Differences of hardware between the arms, and what this machine tells of itself."""

from __future__ import annotations

import pytest

from serving.targets.agent.hardware import cpu_model_in, hardware
from serving.targets.core.hardware import difference

NAMES = ("r2", "r1")
H100 = {"gpus": ["NVIDIA H100"], "driver": "550.1", "cpu_model": "EPYC", "cpu_count": 16}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gpus": ["NVIDIA L4"]}, "r2 runs on GPU NVIDIA L4 and r1 on NVIDIA H100"),
        ({"driver": "535.2"}, "r2 runs on driver 535.2 and r1 on 550.1"),
        ({"cpu_model": "Xeon"}, "r2 runs on CPU Xeon and r1 on EPYC"),
    ],
)
def test_the_first_difference_is_named(change: dict, said: str) -> None:
    assert difference([{**H100, **change}], [H100], names=NAMES) == said


def test_what_is_unknown_is_no_difference() -> None:
    for unknown in ({"gpus": None}, {"gpus": []}, {"driver": ""}, {}):
        assert difference([unknown], [H100], names=NAMES) == ""
    assert difference([], [H100], names=NAMES) == ""
    assert difference([H100, H100], [H100], names=NAMES) == ""


def test_an_arm_on_mixed_machines_differs_from_one_on_equal_ones() -> None:
    assert "NVIDIA H100, NVIDIA L4" in difference([H100, {**H100, "gpus": ["NVIDIA L4"]}], [H100], names=NAMES)


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("processor\t: 0\nmodel name\t: AMD EPYC 7B13\n", "AMD EPYC 7B13"),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n", "ARM implementer 0x41 part 0xd0c"),
        ("CPU implementer\t: 0x41\n", None),
        ("", None),
    ],
)
def test_a_cpu_has_a_name_or_the_numbers_of_its_maker(cpuinfo: str, name: str | None) -> None:
    assert cpu_model_in(cpuinfo) == name


def test_this_machine_says_what_it_has_or_why_it_cannot_tell() -> None:
    found = hardware()
    assert found["gpus"] or found["gpus_unknown"]
    assert found["cpu_model"] is None or len(found["cpu_model"]) > 2
