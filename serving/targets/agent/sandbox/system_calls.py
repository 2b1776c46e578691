"""System calls that Python has no function for, with the kernel's numbers.

Numbers below 335 are those of x86-64, the one architecture that the servers' wheel is built for.
Source: arch/x86/entry/syscalls/syscall_64.tbl.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

ARCHITECTURE = "x86_64"
PTRACE, PIVOT_ROOT = 101, 155
_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 24, 38  # Source: linux/prctl.h
_CAPSET, _CAPABILITIES_3 = 126, 0x20080522  # Source: linux/capability.h
_MOST_CAPABILITIES = 64

Argument = int | bytes | str | None | ctypes.Array[ctypes.c_char]


def call(number: int, *arguments: Argument) -> int:
    """The system call's result. Raises OSError."""
    result: int = _LIBC.syscall(ctypes.c_long(number), *map(_as_c, arguments))
    return _checked(result, f"system call {number}")


def unshare(flags: int) -> None:
    _checked(_LIBC.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    told = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _checked(_LIBC.mount(*told), f"mount {kind or source} at {target}")


def detach(target: str) -> None:
    """Unmounts what is mounted there once nobody uses it any more (MNT_DETACH)."""
    _checked(_LIBC.umount2(target.encode(), ctypes.c_int(2)), f"unmount {target}")


def prctl(option: int, *arguments: Argument) -> None:
    given = [*arguments, 0, 0, 0, 0][:4]
    _checked(_LIBC.prctl(ctypes.c_int(option), *map(_as_c, given)), f"prctl {option}")


def die_with_starter(death_signal: int) -> None:
    """From now on the kernel sends this signal when the starter ends. Forgotten by a change of user: call it after that."""
    prctl(_PR_SET_PDEATHSIG, death_signal)


def gain_nothing() -> None:
    """No program started from here on has more rights than this one; Landlock and seccomp ask for that. Source: prctl(2)."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


def give_up_capabilities() -> None:
    """Root keeps its user and none of root's capabilities. `gain_nothing` must follow, so that no program gets them back.

    They go from the bounding set too, where there is the right to take them from it. Source: capabilities(7).
    """
    for capability in range(_MOST_CAPABILITIES):
        try:
            prctl(_PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EPERM):  # the kernel knows no more of them, or this root may not
                break
            raise
    call(_CAPSET, struct.pack("=Ii", _CAPABILITIES_3, 0), bytes(24))  # effective, permitted, inheritable: none


def _as_c(argument: Argument) -> object:
    if isinstance(argument, str):
        return argument.encode()
    return ctypes.c_long(argument) if isinstance(argument, int) else argument


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
