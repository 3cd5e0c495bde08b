"""One seed again: printed, made short and compared, each attempt in a process forked for it."""

from __future__ import annotations

import os
import signal

from sweeps.fuzz.execution import difference
from sweeps.fuzz.generator import generate
from sweeps.fuzz.shrink import shrink
from sweeps.fuzz.steps import Program

ATTEMPT_S = 60


def repeat(seed: int) -> int:
    """Print the seed's program, what it shows and a shorter program that shows it. Return the exit code."""
    program = generate(seed)
    print(program)
    shown = attempt(program)
    print(f"\nseed {seed}: {shown or 'no difference'}")
    if not shown:
        return 0
    kind = shown.split(":")[0]
    short = shrink(program, lambda shorter: attempt(shorter).split(":")[0] == kind)
    print(f"\nshortened, {attempt(short)}\n{short}")
    return 1


def attempt(program: Program) -> str:
    """Return what the program shows: ``crash: SIGSEGV``, ``value: ...`` or nothing."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        signal.alarm(ATTEMPT_S)
        found = difference(program)
        if found is not None:
            os.write(writing, f"{found.kind}: v{found.slot}: {found.text}".encode()[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return "hang: " if name == "SIGALRM" else f"crash: {name}"
    return text
