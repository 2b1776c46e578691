"""What GPUs said, on the fleet page, over REST and on the page of a gate run; what nobody knows is said to be unknown."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from accounts.models import User
from serving.models import Node
from serving.targets.agent.gpu_reader import GpuReader
from serving.targets.core.gpu import GpuReading
from tests.api.cli_world import Run, run, tokens  # noqa: F401
from tests.core.test_gpu_health import judged
from tests.pages.gallery import hardware
from tests.pages.markup import squeezed
from tests.pages.test_gate_run_page import judge, member, running, shown  # noqa: F401
from tests.pages.test_model_tabs import HOSTILE, signed_in
from tests.support.fakes.nvml import replayed
from tests.support.worlds.factories import make_node, make_user
from validators.models import GateResult, GateRun

pytestmark = pytest.mark.django_db


def test_the_pictured_machine_that_is_silent_was_read_before_it_fell_silent() -> None:
    for name in hardware.READ:
        make_node(name)
    hardware.gpus_are_read()
    ages_s = {one.name: time.time() - one.gpus["at_s"] for one in Node.objects.all()}
    assert ages_s.pop(hardware.SILENT) >= hardware.SILENT_S > max(ages_s.values())


def read(name: str, frame: int = 0, *, ago: timedelta = timedelta()) -> None:
    """The node's agent read this."""
    make_node()
    with replayed(name) as library:
        reader = GpuReader(now=lambda: time.time() - ago.total_seconds())
        reader.read()
        library.at = frame
        Node.objects.update(gpus=reader.read().as_json())


def fleet() -> str:
    user = User.objects.filter(username="root").first() or make_user("root", is_admin=True)
    return squeezed(signed_in(user).get(reverse("fleet")).content.decode())


def test_a_node_whose_agent_read_no_gpu_says_why() -> None:
    make_node()
    assert "unknown: its agent has read none" in fleet()
    Node.objects.update(gpus=GpuReading(time.time(), unknown=HOSTILE).as_json())
    page = fleet()
    assert HOSTILE not in page and "unknown: &lt;" in page


def test_what_a_gpu_said_is_shown_with_what_it_did_not_say() -> None:
    read("unsupported")
    page = fleet()
    assert "NVIDIA GeForce GTX 1050" in page and "58 °C" in page and "no fault seen" in page
    assert "ecc_uncorrected: Not Supported" in page and "unknown of unknown" in page, "the power"
    assert "unknown: whether it needs recovery, rows of its memory, Xids" in page, "so no fault seen is not well"
    assert "8268 MiB of 81559 MiB" in page


def test_a_slice_is_shown_with_its_memory_and_the_rest_is_its_gpus() -> None:
    read("mig")
    page = fleet()
    assert "4096 MiB of 9984 MiB" in page and page.count("a slice") == 2 and page.count("its GPU's") == 4
    assert "unknown: rows of its memory" in page


def test_a_fault_of_the_hardware_is_shown() -> None:
    read("ecc_uncorrected", 2)
    page = fleet()
    assert (
        "it needs a reset of the GPU" in page and "Xid 48" in page and "Repair it before you place more there." in page
    )


def test_a_reading_that_is_old_is_not_what_is_so_now() -> None:
    read("well", ago=timedelta(minutes=2))
    assert "unknown: its agent, or its driver, has not answered since" in fleet()


def test_over_rest_nothing_unknown_is_nought() -> None:
    read("unsupported")
    client = Client()
    client.force_login(make_user("ana", team="search"))
    (node,) = client.get("/api/v1/nodes").json()["results"]
    (gpu,) = node["gpus_read"]["gpus"]
    assert node["gpus_read"]["why_unknown"] == "" and node["gpus_read"]["at"]
    assert (gpu["temperature_c"], gpu["power_w"], gpu["xids"], gpu["processes"]) == (58.0, None, None, 1)
    assert gpu["unknown"]["xids"] == "Not Supported" and gpu["faults"] == [] and len(gpu["untold"]) == 3
    read("xid_79", 2)
    gpu = client.get("/api/v1/nodes").json()["results"][0]["gpus_read"]["gpus"][0]
    assert gpu["faults"] == ["the driver has lost it: GPU is lost", "Xid 79"] and gpu["xids"][0]["code"] == 79


def test_the_page_of_a_gate_run_has_every_check_with_its_answer(member: Client, running: GateRun) -> None:
    GateResult.objects.create(gate_run=running, gate="gpu", position=2)
    found: dict[str, Any] = judged("throttled").evidence
    judge(running, "gpu", found, "undecided")
    page = shown(member, "gate_run", running)
    assert "does not count" in page and "slowed down for 0.9 s" in page and "readings: 4" in page
    assert "not judged yet" not in page, "a check of a GPU has an answer, and no verdict"
