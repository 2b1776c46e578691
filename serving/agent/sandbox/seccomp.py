"""A seccomp filter: system calls that no serving process needs, and that would lead out of the other layers.

Landlock alone stops no connection: a send with MSG_FASTOPEN, datagrams and unix sockets by path pass it (seen with ABI 7). So
`connect` is refused, and every socket but TCP, and io_uring, which goes round any filter.
"""

from __future__ import annotations

import ctypes
import errno
import struct

from serving.agent.sandbox.system_calls import prctl

#: System calls of x86-64 that are refused with EPERM.
REFUSED = {
    "connect": 42,
    "ptrace": 101,
    "pivot_root": 155,
    "chroot": 161,
    "acct": 163,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "init_module": 175,
    "delete_module": 176,
    "quotactl": 179,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "unshare": 272,
    "perf_event_open": 298,
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "finit_module": 313,
    "kexec_file_load": 320,
    "bpf": 321,
    "userfaultfd": 323,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
}
#: Refused as well where the service's files can be named: Landlock knows no right to change a mode or an owner.
REFUSED_BESIDE_THE_SERVICE = {
    "chmod": 90,
    "chown": 92,
    "lchown": 94,
    "fchownat": 260,
    "fchmodat": 268,
    "fchmodat2": 452,
    **{"setxattr": 188, "lsetxattr": 189, "removexattr": 197, "lremovexattr": 198},
}
_CLONE, _CLONE3, _SOCKET, _FCHMOD, _SENDTO, _SENDMSG, _SENDMMSG = 56, 435, 41, 91, 44, 46, 307
_NEW_NAMESPACES, _FASTOPEN = 0x7E020000, 0x20000000  # Source: linux/sched.h, linux/socket.h
_AF_INET, _AF_INET6, _SOCK_STREAM, _SOCK_KIND, _IPPROTO_TCP = 2, 10, 1, 0xF, 6
# Source: linux/filter.h, linux/seccomp.h, linux/audit.h. A filter's instruction is (code, jump if true, if false, value).
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT, _X86_64, _X32 = 0, 4, 16, 0xC000003E, 0x40000000
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x50000
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_REGION_MODE = 0o644


def filter_system_calls(*, sees_the_service: bool) -> None:
    """From now on this process and its children are refused them. Raises OSError where the kernel has no seccomp."""
    program = _program({**REFUSED, **(REFUSED_BESIDE_THE_SERVICE if sees_the_service else {})})
    code = ctypes.create_string_buffer(b"".join(program))
    prctl(_PR_SET_SECCOMP, _MODE_FILTER, struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code)))


def _program(refused_calls: dict[str, int]) -> list[bytes]:
    code = [
        *(_load(_ARCHITECTURE_AT), _step(_EQUAL, _X86_64, 1), _step(_RETURN, _KILL)),
        *(_load(_NUMBER_AT), _step(_AT_LEAST, _X32, 0, 1), _refuse(errno.ENOSYS)),
        # glibc falls back to clone, whose flags can be looked at; with EPERM it would give up.
        *(_step(_EQUAL, _CLONE3, 0, 1), _refuse(errno.ENOSYS)),
    ]
    for number in refused_calls.values():
        code += [_step(_EQUAL, number, 0, 1), _refuse(errno.EPERM)]
    flags = (_CLONE, 0, _NEW_NAMESPACES), (_SENDTO, 3, _FASTOPEN), (_SENDMSG, 2, _FASTOPEN), (_SENDMMSG, 3, _FASTOPEN)
    for number, place, bits in flags:
        check = [_load_argument(place), _step(_ANY_BIT, bits, 0, 1), _refuse(errno.EPERM), _step(_RETURN, _ALLOW)]
        code += [_step(_EQUAL, number, 0, len(check)), *check]
    # Triton makes its regions with mode 0644 and then says so once more. The second is only said to be done, so that the umask
    # counts and a region is its owner's alone.
    check = [_load_argument(1), _step(_EQUAL, _REGION_MODE, 0, 1), _refuse(0), _step(_RETURN, _ALLOW)]
    code += [_step(_EQUAL, _FCHMOD, 0, len(check)), *check]
    refused = 9  # where the refusal stands in what follows; a jump counts from the next step
    check = [
        *(_load_argument(0), _step(_EQUAL, _AF_INET, 1), _step(_EQUAL, _AF_INET6, 0, refused - 3)),
        *(_load_argument(1), _step(_AND, _SOCK_KIND), _step(_EQUAL, _SOCK_STREAM, 0, refused - 6)),
        # Another protocol over a stream, as SCTP, connects without `connect`.
        *(_load_argument(2), _step(_EQUAL, 0, refused - 7), _step(_EQUAL, _IPPROTO_TCP, refused - 8)),
        _refuse(errno.EACCES),
    ]
    code += [_step(_EQUAL, _SOCKET, 0, len(check)), *check, _step(_RETURN, _ALLOW)]
    return code


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _load(at: int) -> bytes:
    return _step(_LOAD, at)


def _load_argument(place: int) -> bytes:
    """The lower 32 bits of the system call's argument; every one that is looked at is an int."""
    return _load(_ARGUMENTS_AT + 8 * place)


def _refuse(number: int) -> bytes:
    return _step(_RETURN, _ERRNO | number)
