"""A seccomp filter: system calls that no serving process needs, and that would lead out of the other layers.

Landlock alone stops no connection: a send with MSG_FASTOPEN, datagrams and unix sockets by path pass it (seen with ABI 7). So
`connect` is refused, and every socket but TCP, and io_uring, which goes round any filter.
"""

from __future__ import annotations

import ctypes
import errno
import struct

from serving.targets.agent.sandbox.system_calls import prctl

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
    "memfd_create": 319,
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
    "quotactl_fd": 443,
    "memfd_secret": 447,
    # Memory, semaphores and queues by number or name: no bound counts them, Triton has no use for them, and PostgreSQL has some.
    **{"shmget": 29, "shmat": 30, "shmctl": 31, "semget": 64, "semop": 65, "semctl": 66, "semtimedop": 220},
    **{"msgget": 68, "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "mq_open": 240, "mq_unlink": 241},
}
#: Refused as well where the service's files and processes can be named. Landlock knows no right to change a mode, an owner or a
#: time, for which a descriptor to read from is enough, and hinders nobody from what one process may do to another of its user.
REFUSED_BESIDE_THE_SERVICE = {
    **{"chmod": 90, "chown": 92, "fchown": 93, "lchown": 94, "fchownat": 260, "fchmodat": 268, "fchmodat2": 452},
    **{"setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "setxattrat": 463, "file_setattr": 469},
    **{"removexattr": 197, "lremovexattr": 198, "fremovexattr": 199, "removexattrat": 466},
    **{"utime": 132, "utimes": 235, "futimesat": 261, "utimensat": 280},
    **{"setpriority": 141, "ioprio_set": 251},
}
#: There, these are for the caller alone: their first argument is the process, and 0 is the caller.
_OF_ITSELF = {"prlimit64": 302, "sched_setparam": 142, "sched_setscheduler": 144, "sched_setattr": 314}
#: There, changes of a file that ask for no descriptor to write to: flags, generation, verity, encryption; and a lease, for which
#: whoever opens the file next must wait. Source: linux/fs.h, fs/ext4/ext4.h, linux/fsverity.h, linux/fscrypt.h, linux/fcntl.h.
_IOCTLS, _FCNTLS = (0x40086602, 0x40046602, 0x401C5820, 0x40087602, 0x40086604, 0x40806685, 0x800C6613), (1024,)
_CLONE, _CLONE3, _SOCKET, _FCHMOD, _SENDTO, _SENDMSG, _SENDMMSG = 56, 435, 41, 91, 44, 46, 307
_IOCTL, _FCNTL, _SET_AFFINITY, _MMAP = 16, 72, 203, 9
#: Memory that is shared and lies in no file: MAP_SHARED (or MAP_SHARED_VALIDATE) with MAP_ANONYMOUS. Source: asm-generic/mman-common.h.
_SHARED_AND_NOWHERE = 0x01 | 0x20
#: Memory that grows as a stack does, and that the bound on memory leaves out like one (MAP_GROWSDOWN). Source: linux/mm.h, is_data_mapping.
_LIKE_A_STACK = 0x100
_NEW_NAMESPACES, _FASTOPEN = 0x7E020000, 0x20000000  # Source: linux/sched.h, linux/socket.h
_AF_UNIX, _AF_INET, _AF_INET6, _IPPROTO_TCP = 1, 2, 10, 6
_SOCK_STREAM, _SOCK_SEQPACKET, _SOCK_KIND = 1, 5, 0xF
# Source: linux/filter.h, linux/seccomp.h, linux/audit.h. A filter's instruction is (code, jump if true, if false, value).
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT, _X86_64, _X32 = 0, 4, 16, 0xC000003E, 0x40000000
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x50000
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_REGION_MODE = 0o644


def filter_system_calls(*, sees_the_service: bool, has_gpu: bool) -> None:
    """From now on this process and its children are refused them. Raises OSError where the kernel has no seccomp.

    Args:
        sees_the_service: files and processes of the service can be named.
        has_gpu: allow what libcuda needs (decision 0046): sequential-packet unix sockets, which cannot send without `connect`, and
            memory that is shared and lies in no file.
    """
    program = _program(sees_the_service, has_gpu)
    code = ctypes.create_string_buffer(b"".join(program))
    prctl(_PR_SET_SECCOMP, _MODE_FILTER, struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code)))


def _program(sees_the_service: bool, has_gpu: bool) -> list[bytes]:
    code = [
        *(_load(_ARCHITECTURE_AT), _step(_EQUAL, _X86_64, 1), _step(_RETURN, _KILL)),
        *(_load(_NUMBER_AT), _step(_AT_LEAST, _X32, 0, 1), _refuse(errno.ENOSYS)),
        # glibc falls back to clone, whose flags can be looked at; with EPERM it would give up.
        *(_step(_EQUAL, _CLONE3, 0, 1), _refuse(errno.ENOSYS)),
    ]
    for number in (*REFUSED.values(), *(REFUSED_BESIDE_THE_SERVICE.values() if sees_the_service else ())):
        code += [_step(_EQUAL, number, 0, 1), _refuse(errno.EPERM)]
    flags = (_CLONE, 0, _NEW_NAMESPACES), (_SENDTO, 3, _FASTOPEN), (_SENDMSG, 2, _FASTOPEN), (_SENDMMSG, 3, _FASTOPEN)
    for number, place, bits in flags:
        code += _block(number, [_load_argument(place), _step(_ANY_BIT, bits, 0, 1), _refuse(errno.EPERM)])
    # The bound on memory counts what is private; regions in /dev/shm are bounded there, and these would be nowhere. A memfd can be
    # executed as well. (With a GPU there is no bound on memory.)
    nowhere = [
        _load_argument(3),
        _step(_AND, _SHARED_AND_NOWHERE),
        _step(_EQUAL, _SHARED_AND_NOWHERE, 0, 1),
        _refuse(errno.ENOMEM),
    ]
    like_a_stack = [_load_argument(3), _step(_ANY_BIT, _LIKE_A_STACK, 0, 1), _refuse(errno.ENOMEM)]
    code += _block(_MMAP, [*like_a_stack, *([] if has_gpu else nowhere)])
    if sees_the_service:
        code += _beside_the_service()
    else:  # Triton makes its regions with mode 0644; the umask counts, so the mode said once more is only said to be done.
        code += _block(_FCHMOD, [_load_argument(1), _step(_EQUAL, _REGION_MODE, 0, 1), _refuse(0)])
    refused = 9  # where the refusal stands in what follows; a jump counts from the next step
    check = [
        *(_load_argument(0), _step(_EQUAL, _AF_INET, 1), _step(_EQUAL, _AF_INET6, 0, refused - 3)),
        *(_load_argument(1), _step(_AND, _SOCK_KIND), _step(_EQUAL, _SOCK_STREAM, 0, refused - 6)),
        # Another protocol over a stream, as SCTP, connects without `connect`.
        *(_load_argument(2), _step(_EQUAL, 0, refused - 7), _step(_EQUAL, _IPPROTO_TCP, refused - 8)),
        _refuse(errno.EACCES),
    ]
    sequential = [
        *(_load_argument(0), _step(_EQUAL, _AF_UNIX, 0, 4)),
        *(_load_argument(1), _step(_AND, _SOCK_KIND), _step(_EQUAL, _SOCK_SEQPACKET, 0, 1), _step(_RETURN, _ALLOW)),
    ]
    code += [*_block(_SOCKET, [*(sequential if has_gpu else []), *check]), _step(_RETURN, _ALLOW)]
    return code


def _beside_the_service() -> list[bytes]:
    """What depends on arguments where the service's files and processes can be named."""
    code: list[bytes] = []
    for number in _OF_ITSELF.values():
        code += _block(number, [_load_argument(0), _step(_EQUAL, 0, 1), _refuse(errno.EPERM)])
    # A runtime pins its threads by their ids, which no filter knows from others' processes, and complains of each that it cannot
    # pin. So that is said to be done, and the kernel goes on choosing the processor.
    code += _block(_SET_AFFINITY, [_load_argument(0), _step(_EQUAL, 0, 1), _refuse(0)])
    # A region's mode is said to be set, as everywhere; no other mode is.
    code += _block(_FCHMOD, [_load_argument(1), _step(_EQUAL, _REGION_MODE, 0, 1), _refuse(0), _refuse(errno.EPERM)])
    for number, commands in ((_IOCTL, _IOCTLS), (_FCNTL, _FCNTLS)):
        refusals = [part for one in commands for part in (_step(_EQUAL, one, 0, 1), _refuse(errno.EPERM))]
        code += _block(number, [_load_argument(1), *refusals])
    return code


def _block(number: int, check: list[bytes]) -> list[bytes]:
    """For this system call what `check` says; it is allowed where that ends without an answer."""
    return [_step(_EQUAL, number, 0, len(check) + 1), *check, _step(_RETURN, _ALLOW)]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _load(at: int) -> bytes:
    return _step(_LOAD, at)


def _load_argument(place: int) -> bytes:
    """The lower 32 bits of the system call's argument; every one that is looked at is an int."""
    return _load(_ARGUMENTS_AT + 8 * place)


def _refuse(number: int) -> bytes:
    return _step(_RETURN, _ERRNO | number)
