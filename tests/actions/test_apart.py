"""Large input is read in a child process, which is bounded and ends with its work."""

from __future__ import annotations

import io
import json
import os
import time
from typing import Any

import pytest

from ledger.adapters import apart
from ledger.adapters.apart import Apart, Through, run_sized
from ledger.core.errors import Invalid, Unavailable


def test_a_child_returns_raises_and_reads_through_the_caller() -> None:
    with Apart() as child:
        assert child.call(json.loads, b"[1]") == [1]
        with pytest.raises(ValueError, match="Expecting value"):
            child.call(json.loads, b"x")
        file = Through(io.BytesIO(b"bytes of the caller"))
        assert child.call(read_from, file, 9) == b"the calle"
        pids = {child.call(os.getpid), child.call(os.getpid)}
    assert len(pids) == 1 and os.getpid() not in pids
    assert not os.path.exists(f"/proc/{pids.pop()}")


def read_from(readable: Any, at: int) -> bytes:
    readable.seek(at)
    return bytes(readable.read(9))


def refuse(word: str) -> None:
    raise Invalid("wrong", f"The word is {word}.", errors=[word])


def test_a_refusal_keeps_its_code_and_facts() -> None:
    with Apart() as child, pytest.raises(Invalid) as caught:
        child.call(refuse, "x")
    assert (caught.value.code, caught.value.message, caught.value.facts) == (
        "wrong",
        "The word is x.",
        {"errors": ["x"]},
    )


def test_small_input_stays_here() -> None:
    assert run_sized(apart.SMALL_BYTES, os.getpid) == os.getpid()
    assert run_sized(apart.SMALL_BYTES + 1, os.getpid) != os.getpid()


def spin(limit_s: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, resource.RLIM_INFINITY))
    while True:
        pass


def fill() -> None:
    bytearray(apart.MOST_MEMORY_BYTES)


@pytest.mark.parametrize(("function", "args"), [(spin, (1,)), (fill, ())])
def test_a_document_that_costs_too_much_is_refused(function: Any, args: tuple[int, ...]) -> None:
    with Apart() as child, pytest.raises(Invalid) as caught:
        child.call(function, *args)
    assert caught.value.code == "too_costly"
    assert run_sized(1 << 20, abs, -1) == 1  # its place is free again


def test_a_fault_of_the_child_is_no_mistake_of_the_caller() -> None:
    with Apart() as child, pytest.raises(RuntimeError, match="ended with 7"):
        child.call(os._exit, 7)


def test_few_children_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "_MOST_WAIT_S", 0.05)
    with Apart() as one, Apart() as two, Apart() as third:
        one.call(abs, 1)
        two.call(abs, 1)
        with pytest.raises(Unavailable) as caught:
            third.call(abs, 1)
    assert (caught.value.code, caught.value.facts["retry_after_s"]) == ("readers_busy", 10)
    assert run_sized(1 << 20, abs, -1) == 1


def test_the_work_costs_this_process_nothing() -> None:
    began = time.process_time()
    with Apart() as child:
        used = child.call(work)
    assert time.process_time() - began < used


def work() -> float:
    began = time.process_time()
    sum(i * i % 7 for i in range(5_000_000))
    return time.process_time() - began
