"""`python -S -m serving.targets.agent.sandbox SPEC REPORT`: starts the program of a spec in its sandbox, and ends as it ends.

Two processes stay: the server, and this one, which waits for it. It writes the server's process id, as its starter sees it, to
the descriptor REPORT once the program has begun. SIGTERM and SIGINT are handed on. What ends the server ends this
process in the same way, so that its starter sees the server's own exit status or signal.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from serving.targets.agent.sandbox import hidden_arguments, landlock, namespaces, seccomp
from serving.targets.agent.sandbox.spec import (
    FAILED,
    LANDLOCK,
    NAMESPACES,
    NOT_GRANTED,
    REFUSALS,
    SECCOMP,
    STACK,
    USER,
    Spec,
    read,
)
from serving.targets.agent.sandbox.system_calls import die_with_starter, gain_nothing, give_up_capabilities

_HANDED_ON = {signal.SIGTERM, signal.SIGINT}
_TRACED, _PLAIN = b"t", b"p"


def main(spec: Spec, report: int) -> NoReturn:
    """Raises OSError for a layer that is not to be had."""
    os.set_inheritable(report, False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # neither the server's memory nor ours is written to a disk
    if spec.has(NAMESPACES):
        namespaces.leave()
    told, tell = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDED_ON)  # none may come between the fork and the handler
    child = os.fork()
    if not child:
        _run(spec, tell)
    os.close(tell)
    for number in _HANDED_ON:
        signal.signal(number, _hand_on(child))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDED_ON)
    is_traced = os.read(told, 1) == _TRACED
    if spec.has(USER):
        os.kill(child, 0)  # a root that may not signal other users (without CAP_KILL) could never end it
    ended = hidden_arguments.point(child, list(spec.hidden)) if is_traced else None
    if ended is None:
        os.write(report, str(child).encode())
    os.close(report)
    _end_as(os.waitpid(child, 0)[1] if ended is None else ended)


def _hand_on(child: int) -> Callable[[int, FrameType | None], None]:
    def hand_on(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    return hand_on


def _run(spec: Spec, tell: int) -> NoReturn:
    """In the child: becomes the program, or says why not and ends with NOT_GRANTED or FAILED."""
    try:
        for number in _HANDED_ON:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDED_ON)
        _shut_in(spec)
        argv, env = hidden_arguments.placed(spec.argv, spec.env, spec.hidden)
        if not spec.hidden:
            os.write(tell, _PLAIN)
        elif hidden_arguments.ask_for_tracing():
            os.write(tell, _TRACED)
        else:
            os.write(tell, _PLAIN)
            argv, env = hidden_arguments.whole(spec.argv, spec.hidden), dict(spec.env)
        if spec.has(SECCOMP):
            seccomp.filter_system_calls(sees_the_service=not spec.has(NAMESPACES), has_gpu=spec.has_gpu)
        os.execve(argv[0], argv, env)  # noqa: S606 - a program by its path, without a shell
    except OSError as error:
        status = _report_failure(error)
    sys.stderr.flush()
    os._exit(status)


def _shut_in(spec: Spec) -> None:
    """Every layer but seccomp, which would refuse the tracing that comes before it."""
    has_namespaces = spec.has(NAMESPACES)
    if has_namespaces:
        namespaces.build(spec)
    if spec.has(USER):
        os.setgroups([])
        os.setgid(spec.uid)
        os.setuid(spec.uid)
    # With SIGTERM the server ends its model processes; where it has a process table of its own, they end with it anyway.
    die_with_starter(signal.SIGKILL if has_namespaces else signal.SIGTERM)
    _bound(spec)
    if spec.layers and not spec.has(USER) and os.getuid() == 0:
        give_up_capabilities()
    gain_nothing()
    os.umask(0o077)
    os.chdir(spec.home)
    if spec.has(LANDLOCK):
        landlock.restrict(spec)


def _bound(spec: Spec) -> None:
    bounds = spec.bounds
    limits = {
        resource.RLIMIT_NPROC: bounds.processes,
        resource.RLIMIT_NOFILE: bounds.open_files,
        resource.RLIMIT_DATA: bounds.memory or resource.RLIM_INFINITY,
        resource.RLIMIT_FSIZE: bounds.file,
        resource.RLIMIT_STACK: STACK,
    }
    for limit, most in limits.items():
        highest = resource.getrlimit(limit)[1]
        if highest != resource.RLIM_INFINITY and (most == resource.RLIM_INFINITY or most > highest):
            most = highest  # what is bounded already is not loosened
        resource.setrlimit(limit, (most, most))


def _report_failure(error: OSError) -> int:
    """Says what went wrong; the exit status for it."""
    sys.stderr.write(f"sandbox: {error}\n")
    return NOT_GRANTED if error.errno in REFUSALS else FAILED


def _end_as(status: int) -> NoReturn:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler to take off
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    try:
        main(read(Path(sys.argv[1]).read_text()), int(sys.argv[2]))
    except OSError as failed:
        sys.exit(_report_failure(failed))
