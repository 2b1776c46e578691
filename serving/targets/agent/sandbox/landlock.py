"""Landlock: files and ports that the server may use, kept by the kernel, without any right of its own.

Source: linux/landlock.h. ABI 1 (Linux 5.13) has files, 2 (5.19) files moved between folders, 3 (6.2) truncation, 4 (6.7) TCP
ports, 5 (6.10) ioctl on devices, 6 (6.12) signals and abstract unix sockets.
"""

from __future__ import annotations

import os
import struct

from serving.targets.agent.sandbox.spec import NAMESPACES, SYSTEM, Spec
from serving.targets.agent.sandbox.system_calls import call

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # these numbers are the same on every architecture
_WANT_VERSION, _BENEATH_PATH, _ON_PORT = 1, 1, 2
_EXEC, _WRITE, _READ, _LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_RMDIR, _MAKE_CHAR, _MKDIR, _MAKE_BLOCK, _TRUNCATE, _IOCTL = 1 << 4, 1 << 6, 1 << 7, 1 << 11, 1 << 14, 1 << 15
_OF_A_FILE = _EXEC | _WRITE | _READ | _TRUNCATE | _IOCTL
_BIND_TCP, _ANY_TCP, _SIGNALS_AND_ABSTRACT_SOCKETS = 1, 3, 3


def version() -> int:
    """The kernel's ABI of Landlock. Raises OSError where Landlock is not to be had."""
    return call(_CREATE, None, 0, _WANT_VERSION)


def restrict(spec: Spec) -> None:
    """From now on this process and its children reach what the spec names. Raises OSError where Landlock is not to be had."""
    abi = version()
    known = (1 << min(13 + (abi > 1) + (abi > 2) + (abi > 4), 16)) - 1
    handled = struct.pack("QQQ", known, _ANY_TCP if abi > 3 else 0, _SIGNALS_AND_ABSTRACT_SOCKETS if abi > 5 else 0)
    rules = call(_CREATE, handled, 8 if abi < 4 else 16 if abi < 6 else 24, 0)
    for path, rights in _grants(spec, known).items():
        _allow(rules, path, rights & known)
    for port in spec.ports if abi > 3 else ():  # to listen; to connect is granted nowhere
        call(_ADD, rules, _ON_PORT, struct.pack("QQ", _BIND_TCP, port), 0)
    call(_RESTRICT, rules, 0)
    os.close(rules)


def _grants(spec: Spec, known: int) -> dict[str, int]:
    read, device = _EXEC | _READ | _LIST, _READ | _WRITE | _IOCTL
    write = known & ~(_EXEC | _MAKE_CHAR | _MAKE_BLOCK)
    grants = {
        **dict.fromkeys((*SYSTEM, *spec.read_only), read),
        **dict.fromkeys((spec.home, spec.tmp, "/dev/shm"), write),  # noqa: S108 - where Triton keeps its regions
        **dict.fromkeys(spec.devices, device),
    }
    # libcuda names its threads, and opens their files in /proc with O_TRUNC.
    named = _WRITE | _TRUNCATE if spec.has_gpu else 0
    if spec.has(NAMESPACES):
        return {**grants, "/": _LIST, "/proc": read | _WRITE | named}
    # Triton's python backend makes a folder in /tmp whatever TMPDIR says, and ends itself when it may not. To remove files there
    # would be a right on the service's own, so the removal of that folder fails: a wanted stop then ends with SIGABRT.
    # A process that the server starts is another one, so that there a model of the python backend cannot use a GPU.
    own_process = {"/proc/self": read | named, "/proc/stat": _READ, "/proc/meminfo": _READ, "/proc/cpuinfo": _READ}
    return {"/tmp": _LIST | _MKDIR | _RMDIR, **grants, **own_process}  # noqa: S108 - see above


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        allowed = rights if os.path.isdir(path) else rights & _OF_A_FILE
        call(_ADD, rules, _BENEATH_PATH, struct.pack("=Qi", allowed, handle), 0)
    finally:
        os.close(handle)
