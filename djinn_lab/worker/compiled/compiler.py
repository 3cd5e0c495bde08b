"""``python -m djinn_lab.worker.compiled.compiler ...``: a process that compiles one region.

It reads what a session asked for, so it gives up what compiling does not need before that: other files than
its own, libraries and compilers, TCP, and most of the machine's time and memory. It runs no op: the region is
traced with tensors that have no memory, and that is what TorchInductor or another compiler gets."""

from __future__ import annotations

import argparse
import os
import resource
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from djinn_lab.errors import OptionError
from djinn_lab.protocol.compiling import (
    GENERATED,
    Compilation,
    encode_compilation,
    first_line,
    library_name,
    region_key,
)
from djinn_lab.srg.program import decode_program
from djinn_lab.srg.region_programs import validate_region
from djinn_lab.system.processes import end_with_parent
from djinn_lab.worker.sandbox import kernel, landlock
from djinn_lab.worker.sandbox.entering import CODE, MACHINE, code_directories
from djinn_lab.worker.sandbox.landlock import Access

if TYPE_CHECKING:
    from djinn_lab.worker.compiled.compilers import Compiler

NICENESS = 19
FILE_BYTES_MAX = 2**30
_PROGRAMS = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")
_ALL = Access((1 << landlock.BITS) - 1)
_RUN = CODE | Access.EXECUTE


class Target(NamedTuple):
    """``device``: the kind of device to compile for. ``threads``: of a CPU. ``directory``: to work in."""

    device: str
    threads: int
    directory: Path


def confine(own: Collection[Path], memory_bytes: int, seconds: int) -> None:
    """Give up what compiling does not need, for good. ``own``: directories to write to."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, FILE_BYTES_MAX))
    if sys.platform == "linux":
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if landlock.version():
        landlock.restrict(_reach(own))


def _reach(own: Collection[Path]) -> dict[Path, Access]:
    programs = map(Path, (*_PROGRAMS, sys.prefix, sys.base_prefix))
    found = dict.fromkeys((*programs, *code_directories()), _RUN)
    itself = f"/proc/{os.getpid()}"
    found |= {Path(path): CODE for path in (*MACHINE, itself, Path(__file__).parents[2])}
    found[Path("/dev/null")] = CODE | Access.WRITE
    own = (*own, *Path("/dev").glob("nvidia*"))
    return found | dict.fromkeys(own, _ALL)


def compile_region(region: bytes, into: Path, target: Target, compiler: Compiler) -> Compilation:
    """Compile an encoded region for a device, into a library that is named by the region's key."""
    began = perf_counter()
    problem = ""
    try:
        _compile(region, into, target, compiler)
    except Exception as error:  # noqa: BLE001 - a compiler may raise anything, and the pool reports it
        problem = f"{type(error).__name__}: {first_line(error)}"
    return Compilation(problem, perf_counter() - began)


def _compile(region: bytes, into: Path, target: Target, compiler: Compiler) -> None:
    program = decode_program(region)
    validate_region(program)
    from djinn_lab.worker.compiled.tracing import traced  # which takes seconds

    made = Path(compiler.compile(traced(program, target.device, target.threads), target.directory))
    if made.is_symlink() or not made.is_file() or target.directory.resolve() not in made.resolve().parents:
        raise ValueError(f"{made} is no file in the directory that was given")
    _publish(made, into / library_name(region_key(region)))


def _publish(made: Path, library: Path) -> None:
    """Move the library, and what it needs beside it, to where workers look, the library last."""
    calls = made.with_suffix(".json")
    if calls.exists():
        calls.replace(library.with_suffix(".json"))
    made.chmod(0o400)
    made.replace(library)


def _settle_in(work: Path) -> Path:
    """Write everything on the way below this directory, and what is of no use afterwards below the one that
    is returned. Precompiled headers stay for the next process, which they save most of its time."""
    generated = work / GENERATED
    generated.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = os.environ["HOME"] = str(work)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(generated)
    os.environ["USER"] = "djinn"
    return generated


def main(answer: Callable[[bytes], object] = sys.stdout.buffer.write) -> None:
    parser = argparse.ArgumentParser(prog="djinn_lab.worker.compiled.compiler")
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--check", action="store_true", help="only make the compiler")
    parser.add_argument("--into", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--memory-bytes", type=int)
    parser.add_argument("--seconds", type=int)
    given = parser.parse_args()
    end_with_parent()
    if not given.check:  # for which the pool's start waits
        os.nice(NICENESS)
    generated = None if given.check else _settle_in(given.work)
    from djinn_lab.worker.compiled.compilers import find_compiler  # torch takes seconds

    try:
        compiler = find_compiler(given.compiler)
    except OptionError as error:
        answer(encode_compilation(Compilation(error.message, 0.0)))
        return
    if generated is None:
        answer(encode_compilation(Compilation("", 0.0)))
        return
    target = Target(given.device, given.threads, generated)
    confine((given.into, given.work), given.memory_bytes, given.seconds)
    answer(encode_compilation(compile_region(sys.stdin.buffer.read(), given.into, target, compiler)))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
