"""seccomp: the system calls that this process and its threads may make.

It may read and write what is open, open files (Landlock says which), take memory and start threads. It may
not make sockets or processes, run programs, or look at, signal or trace another process. What is refused
fails with an error, so that a library that tries continues without."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Sequence

from djinn_lab.worker.sandbox import kernel
from djinn_lab.worker.sandbox.syscalls import MACHINES, Machine

PR_SET_SECCOMP, MODE_FILTER = 22, 2
SET_MODE_FILTER, OF_ALL_THREADS = 1, 1
ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
LOAD, EQUAL, GREATER_EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16
FOREIGN_NUMBERS = 0x40000000
"""From here on: calls of another convention of the same processor."""
CLONE_THREAD = 0x00010000
NAMES_OF_THREADS_AND_MEMORY = (3, 15, 16, 39, 0x53564D41)
"""Uses of prctl: names, and questions about this process."""
CONDITIONAL = ("clone", "clone3", "tgkill", "prctl", "prlimit64", "ioctl")

Instruction = tuple[int, int, int, int]
"""Code, jumps where true and where false, operand."""


def install() -> None:
    """Restrict this process, which has one thread. Raises OSError where the kernel or the processor has no
    filter."""
    header = _header(build(_machine(), os.getpid()))
    kernel.prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.addressof(header))


def install_beside_driver() -> None:
    """Restrict this process and the threads that a device's driver has begun in it: what no driver needs is
    refused, and all else allowed. Raises OSError as :func:`install` does."""
    machine = _machine()
    header = _header(build_beside_driver(machine, os.getpid()))
    kernel.syscall(machine.seccomp, SET_MODE_FILTER, OF_ALL_THREADS, ctypes.byref(header))


def _machine() -> Machine:
    machine = MACHINES.get(os.uname().machine)
    if machine is None:
        raise OSError(errno.ENOSYS, f"no list of system calls for {os.uname().machine}")
    return machine


class _Header(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("program", ctypes.c_char_p)]


def _header(program: Sequence[Instruction]) -> _Header:
    return _Header(len(program), b"".join(struct.pack("HBBI", *one) for one in program))


def build(machine: Machine, process: int) -> list[Instruction]:
    """Return the program of the filter that allows what is listed."""
    calls = machine.calls
    found = _begun(machine, process)
    found += _case(calls["ioctl"], [_refuse(errno.ENOTTY)])
    found += _case(calls["prctl"], [_load(0), *_any_of(NAMES_OF_THREADS_AND_MEMORY), _refuse(errno.EPERM)])
    found += _any_of(sorted(number for name, number in calls.items() if name not in CONDITIONAL))
    return [*found, _refuse(errno.EPERM)]


def build_beside_driver(machine: Machine, process: int) -> list[Instruction]:
    """Return the program of the filter that refuses what is listed."""
    found = _begun(machine, process)
    undumpable = [_load(0), (EQUAL, 0, 1, kernel.PR_SET_DUMPABLE), _refuse(errno.EPERM), _allow()]
    found += _case(machine.calls["prctl"], undumpable)
    for number in sorted(machine.refused.values()):
        found += _case(number, [_refuse(errno.EPERM)])
    return [*found, _allow()]


def _begun(machine: Machine, process: int) -> list[Instruction]:
    """Return what both filters begin with: no calls of other conventions, threads alone, signals to own
    threads alone, and only questions about limits."""
    calls = machine.calls
    found: list[Instruction] = [
        (LOAD, 0, 0, ARCHITECTURE_AT),
        (EQUAL, 1, 0, machine.architecture),
        _refuse(KILL),
        (LOAD, 0, 0, NUMBER_AT),
        (GREATER_EQUAL, 0, 1, FOREIGN_NUMBERS),
        _refuse(errno.EPERM),
    ]
    found += _case(calls["clone"], [_load(0), (ANY_BIT, 0, 1, CLONE_THREAD), _allow(), _refuse(errno.EPERM)])
    found += _case(calls["clone3"], [_refuse(errno.ENOSYS)])  # its flags cannot be seen; libraries use clone
    found += _case(calls["tgkill"], [_load(0), (EQUAL, 0, 1, process), _allow(), _refuse(errno.EPERM)])
    asks = [_load(0), (EQUAL, 0, 5, 0), _load(2), (EQUAL, 0, 3, 0), _load(2, high=True), (EQUAL, 0, 1, 0)]
    return [*found, *_case(calls["prlimit64"], [*asks, _allow(), _refuse(errno.EPERM)])]


def _case(number: int, body: Sequence[Instruction]) -> list[Instruction]:
    """For one call, a body that decides."""
    return [(EQUAL, 0, len(body), number), *body]


def _any_of(values: Sequence[int]) -> list[Instruction]:
    return [one for value in values for one in ((EQUAL, 0, 1, value), _allow())]


def _load(argument: int, high: bool = False) -> Instruction:
    return LOAD, 0, 0, ARGUMENTS_AT + 8 * argument + 4 * high


def _allow() -> Instruction:
    return RETURN, 0, 0, ALLOW


def _refuse(how: int) -> Instruction:
    return RETURN, 0, 0, how if how == KILL else ERRNO | how
