"""Arguments that no other user of the machine can read.

/proc/<pid>/cmdline is open to everybody, /proc/<pid>/environ to the process's own user alone, and tritonserver takes its secrets
from its arguments only. So they are put into the environment, and at the moment at which the program has begun and not yet read
anything, its table of arguments is pointed there. The kernel goes on showing what was given at first.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from collections.abc import Mapping, Sequence

from serving.targets.agent.sandbox.system_calls import PTRACE, call

#: Stands in the arguments' place for everybody to see.
PLACEHOLDER = "(hidden)"
_NAME = "SLUICEGATE_ARGUMENT_"
# Source: linux/ptrace.h; the place of rsp is that of struct user_regs_struct in x86's user_64.h.
_TRACEME, _PEEK, _POKE, _CONTINUE, _GET_REGISTERS, _DETACH = 0, 2, 5, 7, 12, 17
_REGISTERS, _STACK_POINTER, _WORD = 27, 19, 8


def placed(argv: Sequence[str], env: Mapping[str, str], hidden: Mapping[int, str]) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment to begin with, for `point` to put right."""
    shown = [PLACEHOLDER if place in hidden else argument for place, argument in enumerate(argv)]
    return shown, {**env, **{f"{_NAME}{place}": value for place, value in hidden.items()}}


def whole(argv: Sequence[str], hidden: Mapping[int, str]) -> list[str]:
    """All arguments for everybody to see, for a machine that grants no tracing."""
    return [hidden.get(place, argument) for place, argument in enumerate(argv)]


def ask_for_tracing() -> bool:
    """In the child: it stops when its program has begun. False where that is not to be had, as in some containers."""
    try:
        call(PTRACE, _TRACEME, 0, 0, 0)
    except OSError:
        return False
    return True


def point(pid: int, places: Sequence[int]) -> int | None:
    """In the parent: waits until the child's program has begun, points these arguments to their values, and lets it run.

    Returns the child's wait status if it ended before, else None. Raises OSError.
    """
    while True:
        _, status = os.waitpid(pid, 0)
        if not os.WIFSTOPPED(status):
            return status
        if os.WSTOPSIG(status) == signal.SIGTRAP:
            break
        call(PTRACE, _CONTINUE, pid, 0, os.WSTOPSIG(status))
    registers = ctypes.create_string_buffer(_REGISTERS * _WORD)
    call(PTRACE, _GET_REGISTERS, pid, 0, registers)
    # The stack of a new program: the number of arguments, their addresses, 0, the environment's addresses, 0.
    # Source: the System V ABI for x86-64, section 3.4.1.
    stack = struct.unpack(f"{_REGISTERS}Q", registers.raw)[_STACK_POINTER]
    first_argument = stack + _WORD
    address = first_argument + _WORD * (_word(pid, stack) + 1)
    wanted = {f"{_NAME}{place}=".encode(): place for place in places}
    while variable := _word(pid, address):
        for name, place in wanted.items():
            if _begins_with(pid, variable, name):
                call(PTRACE, _POKE, pid, first_argument + _WORD * place, variable + len(name))
        address += _WORD
    call(PTRACE, _DETACH, pid, 0, 0)
    return None


def _word(pid: int, address: int) -> int:
    found = ctypes.create_string_buffer(_WORD)
    call(PTRACE, _PEEK, pid, address, found)
    return int.from_bytes(found.raw, "little")


def _begins_with(pid: int, address: int, text: bytes) -> bool:
    """Word by word, and no further than the text is the same: behind the last variable nothing may be read."""
    for start in range(0, len(text), _WORD):
        expected = text[start : start + _WORD]
        if _word(pid, address + start).to_bytes(_WORD, "little")[: len(expected)] != expected:
            return False
    return True
