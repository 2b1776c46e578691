"""How much memory there is here: the machine's, or what a container leaves of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ledger.adapters.linux_memory import memory_here
from serving.targets.agent import containment
from serving.targets.agent.sandbox.spec import NAMESPACES, STACK
from serving.traffic.adapters import envoy_bootstrap

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
_MIB = 1 << 20


@pytest.mark.parametrize(
    ("own", "bounds", "wanted"),
    [
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": "max"}, MACHINE),
        ("0::/a/b", {"a/b/memory.max": f"{96 * _MIB}", "a/memory.max": "max"}, 96 * _MIB),
        ("0::/a/b", {"a/b/memory.max": f"{96 * _MIB}", "a/memory.max": f"{64 * _MIB}"}, 64 * _MIB),
        ("0::/", {"memory.max": f"{96 * _MIB}"}, 96 * _MIB),  # a container with a view of its own
        ("0::/kubepods/x", {"memory.max": f"{96 * _MIB}"}, 96 * _MIB),  # and one with its name outside
        ("0::/../x", {"memory.max": f"{96 * _MIB}"}, 96 * _MIB),
        ("5:cpu:/a\n4:memory:/a", {"memory/a/memory.limit_in_bytes": f"{96 * _MIB}"}, 96 * _MIB),
        ("4:memory:/a", {"memory/a/memory.limit_in_bytes": "9223372036854771712"}, MACHINE),
        ("0::/a", {"a/memory.max": f"{MACHINE * 2}"}, MACHINE),
        ("", {}, MACHINE),
    ],
)
def test_the_least_bound_counts(tmp_path: Path, own: str, bounds: dict[str, str], wanted: int) -> None:
    for name, bound in bounds.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{bound}\n")
    (tmp_path / "own").write_text(f"{own}\n" if own else "")
    assert memory_here(tmp_path, tmp_path / "own") == wanted


def test_a_machine_without_cgroups_has_what_it_has(tmp_path: Path) -> None:
    assert memory_here(tmp_path, tmp_path / "missing") == MACHINE


def test_servers_and_gateways_are_bounded_by_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (containment, envoy_bootstrap):
        monkeypatch.setattr(module, "memory_here", lambda: 1024 * _MIB)
    assert envoy_bootstrap.heap_of_this_machine() == 512 * _MIB
    bounds = containment.bounds_of({}, (NAMESPACES,))
    assert bounds.memory in (0, 512 * _MIB + bounds.processes * STACK) and bounds.shared_memory == 256 * _MIB
