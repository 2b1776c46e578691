"""A file system, process table and shared memory of its own for one server: what is not put there does not exist for it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from serving.targets.agent.sandbox.spec import PROC, SYSTEM, Spec
from serving.targets.agent.sandbox.system_calls import PIVOT_ROOT, call, detach, mount, unshare

# Source: linux/sched.h, linux/mount.h.
_NEWNS, _NEWUSER, _NEWPID, _NEWIPC = 0x20000, 0x10000000, 0x20000000, 0x8000000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
#: Flags of a mount that may not be taken off again in a user namespace: ro, nosuid, nodev, noexec, noatime, nodiratime.
_KEPT = 0xC0F
_TMP_BYTES = 64 << 20  # Triton's python backend makes a folder in it for each model; nothing else needs it
_FILES = 65_536  # of one file system in memory: an empty file takes memory too


def leave() -> None:
    """The next child of this process is the first of a process table of its own, and may mount for itself.

    Without root's rights this takes a user namespace, in which the user is still itself. Raises OSError where the kernel
    grants none.
    """
    uid, gid = os.getuid(), os.getgid()
    try:
        unshare(_NEWNS | _NEWPID | _NEWIPC | (_NEWUSER if uid else 0))
    except OSError as error:
        if error.errno == errno.ENOSPC and _are_switched_off():
            raise PermissionError(errno.EPERM, "namespaces are switched off in /proc/sys/user") from error
        raise
    if uid:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _are_switched_off() -> bool:
    """A limit of 0 is a refusal for good, and the kernel words it as lack of space. Source: namespaces(7)."""
    limits = [Path(f"/proc/sys/user/max_{kind}_namespaces") for kind in ("user", "mnt", "pid", "ipc")]
    return any(limit.exists() and limit.read_text().strip() == "0" for limit in limits)


def build(spec: Spec) -> None:
    """Puts together what the server sees, in memory, and makes it the root. In the child that `leave` speaks of. Raises OSError."""
    os.umask(0o022)  # root makes these folders, and another user must pass through them
    mount("none", "/", flags=_REC | _PRIVATE)
    mount("tmpfs", spec.root, "tmpfs", _NOSUID | _NODEV, "mode=0755,size=1m")
    _own(spec.root, "/tmp", f"mode=1777,size={_TMP_BYTES},nr_inodes={_FILES}")  # noqa: S108 - the server's own
    _own(spec.root, "/dev/shm", f"mode=1777,size={spec.bounds.shared_memory},nr_inodes={_FILES}")  # noqa: S108 - as well
    for path in (*SYSTEM, *spec.devices, *sorted(spec.read_only)):  # above a path comes before it
        _show(spec, path)
    owner = spec.uid or os.getuid()
    _own(spec.root, spec.home, f"mode=0700,size={spec.bounds.scratch},nr_inodes={_FILES},uid={owner}")
    if spec.has(PROC):
        os.makedirs(spec.root + "/proc", exist_ok=True)
        mount("proc", spec.root + "/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    os.chdir(spec.root)
    call(PIVOT_ROOT, ".", ".")
    detach(".")
    mount("none", "/", flags=_BIND | _REMOUNT | _RDONLY | _NOSUID | _NODEV)


def _own(root: str, path: str, options: str) -> None:
    os.makedirs(root + path, exist_ok=True)
    mount("tmpfs", root + path, "tmpfs", _NOSUID | _NODEV | _NOEXEC, options)


def _show(spec: Spec, path: str) -> None:
    """The same path as outside, read-only unless it is a device. A link stays one; what is not there is left out."""
    inside, is_device = spec.root + path, path in spec.devices
    if os.path.islink(path):
        os.makedirs(os.path.dirname(inside), exist_ok=True)
        os.symlink(os.readlink(path), inside)
        return
    if not os.path.exists(path):
        return
    if os.path.isdir(path):
        os.makedirs(inside, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(inside), exist_ok=True)
        Path(inside).touch()
    mount(path, inside, flags=_BIND | _REC)
    kept = os.statvfs(path).f_flag & _KEPT
    bounded = _NOSUID if is_device else _NOSUID | _NODEV | _RDONLY
    mount("none", inside, flags=_BIND | _REMOUNT | kept | bounded)
