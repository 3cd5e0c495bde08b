"""Compiles regions that workers ask for, one at a time, in a process that is closed in
(``djinn_lab/worker/compiled/compiler.py``).

A region is named by its content, so what one worker asked for serves all that run on such devices. A worker
that dies while it has libraries may have died of one of them: these are barred from then on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from djinn_lab.errors import OptionError
from djinn_lab.native.compiler import find_compiler
from djinn_lab.pool.devices.plans import DevicePlan
from djinn_lab.pool.launchers.environment import scrubbed
from djinn_lab.protocol.compiling import (
    GENERATED,
    INDUCTOR,
    decode_compilation,
    library_name,
    region_key,
)
from djinn_lab.protocol.worker import CompileRegion, RegionCompiled
from djinn_lab.system.liveness import process_is_alive

COMMAND = (sys.executable, "-m", "djinn_lab.worker.compiled.compiler")
SECONDS_MAX, CHECK_SECONDS_MAX = 600, 300
MEMORY_BYTES_MAX = 6 * 2**30
"""Of one process. TorchInductor starts compilers one after the other."""
PREFIX = "djinn-compiled-"
REGION_BYTES_MAX = 2**22
COMPLAINT_CHARS_MAX = 200
WAITING_MAX = 64
LIBRARIES_MAX = 256
"""The one that was asked for longest ago goes first. It may be of 1 to 2 MB."""

Answer = Callable[[RegionCompiled], None]

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Request:
    """A region that waits, or was compiled: then ``answer`` is there. ``asked``: calls that wait for it."""

    region: bytes
    directory: Path
    plan: DevicePlan
    asked: list[Answer] = field(default_factory=list)
    answer: RegionCompiled | None = None


def check_compiler(name: str) -> None:
    """Make an installed region compiler once, in a process of its own, since it may need torch. Raises
    OptionError where that fails."""
    command = (*COMMAND, "--compiler", name, "--check")
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=CHECK_SECONDS_MAX)
        said = done.stdout.splitlines()[-1] if done.stdout else b""
        problem = decode_compilation(said).problem
    except msgspec.DecodeError:
        problem = Ended(done.stdout, done.stderr, done.returncode).sentence()
    except subprocess.TimeoutExpired:
        problem = f"The region compiler {name!r} was not made within {CHECK_SECONDS_MAX} s."
    if problem:
        raise OptionError(problem, "Correct its package, or choose another --region-compiler.")


class Ended(NamedTuple):
    """What the process that compiles left: its output, its errors, and the code of its exit."""

    said: bytes
    complained: bytes
    code: int

    def sentence(self) -> str:
        """Say how it ended without an answer."""
        if self.code < 0:
            name = signal.Signals(-self.code).name
            return f"the process that compiled it was ended by {name}, for want of memory or time perhaps"
        lines = self.complained.decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it did not say why")
        return f"the process that compiled it ended with code {self.code}: {last[:COMPLAINT_CHARS_MAX]}"


class RegionCompiler:
    """Libraries and precompiled headers, of some hundred MB, lie in a directory of its own on the disk."""

    def __init__(self) -> None:
        _remove_left()
        self._directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self._work_directory = self._directory / "work"
        self._work_directory.mkdir()
        self._requests: OrderedDict[Path, Request] = OrderedDict()
        self._waiting: deque[Request] = deque()
        self._given: WeakKeyDictionary[object, set[Path]] = WeakKeyDictionary()
        """By worker, the libraries that it was given."""
        self._work: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None

    def directory_of(self, plan: DevicePlan) -> Path:
        """Return where libraries for such a device lie. Libraries are compiled for a number of threads."""
        made = self._directory / f"{plan.region_compiler}-{plan.kind}-{plan.threads}"
        made.mkdir(exist_ok=True)
        return made

    def want(self, message: CompileRegion, plan: DevicePlan, worker: object, answer: Answer) -> None:
        """Compile a region unless that was done, and answer. ``worker``: an object that stands for the one
        that asked."""
        key, directory = region_key(message.region), self.directory_of(plan)
        path = directory / library_name(key)
        request = self._requests.get(path)
        if request is None:
            problem = self._problem(message, plan)
            if problem:
                answer(RegionCompiled(key, problem, 0.0))
                return
            request = self._requests[path] = Request(message.region, directory, plan)
            self._waiting.append(request)
        self._requests.move_to_end(path)
        self._given.setdefault(worker, set()).add(path)
        if request.answer is not None:
            answer(request.answer)
            return
        request.asked.append(answer)
        if self._work is None or self._work.done():
            self._work = asyncio.get_running_loop().create_task(self._compile_all(), name="compile regions")

    def died(self, worker: object) -> None:
        """Bar what a worker had that died unexpectedly."""
        for path in self._given.pop(worker, ()):
            request = self._requests.get(path)
            if request is not None and request.answer is not None and not request.answer.problem:
                log.warning("a compiled region is not used any more: a worker that had it died")
                why = "a worker that ran it died"
                request.answer = msgspec.structs.replace(request.answer, problem=why)

    def kill(self) -> None:
        """Compile nothing any more, outside the event loop too."""
        self._end_process()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _end_process(self) -> None:
        """End the process that compiles, with what it started."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def close(self) -> None:
        """Compile nothing any more, and leave nothing behind."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        self.kill()

    # -- parts ---------------------------------------------------------------------------------------------

    def _problem(self, message: CompileRegion, plan: DevicePlan) -> str:
        if plan.region_compiler == INDUCTOR and find_compiler() is None:
            return "this pool's machine has no C++ compiler (g++)"
        if len(message.region) > REGION_BYTES_MAX:
            return "it is too large"
        if len(self._waiting) >= WAITING_MAX:
            return f"{WAITING_MAX} others wait to be compiled"
        return ""

    async def _compile_all(self) -> None:
        while self._waiting:
            request = self._waiting.popleft()
            answer = await self._compile(request)
            request.answer, request.region = answer, b""
            asked, request.asked = request.asked, []
            for tell in asked:
                tell(answer)
            self._forget_oldest()

    async def _compile(self, request: Request) -> RegionCompiled:
        key = region_key(request.region)
        problem, seconds = "", 0.0
        try:
            ended = await self._run(request)
            done = decode_compilation(ended.said.splitlines()[-1] if ended.said else b"")
            problem, seconds = done.problem, done.seconds
        except TimeoutError:
            problem = f"compiling took over {SECONDS_MAX} s"
        except msgspec.DecodeError:
            problem = ended.sentence()
        if problem:
            log.warning("a region could not be compiled: %s", problem)
        return RegionCompiled(key, problem, seconds)

    async def _run(self, request: Request) -> Ended:
        """Run the process. Raises TimeoutError."""
        plan, compiler = request.plan, find_compiler()
        environment = scrubbed(os.environ) | ({"CXX": compiler.command[0]} if compiler else {})
        self._process = process = await asyncio.create_subprocess_exec(
            *(*COMMAND, "--into", str(request.directory), "--work", str(self._work_directory)),
            *("--device", plan.kind, "--compiler", plan.region_compiler),
            *("--threads", str(plan.threads), "--seconds", str(SECONDS_MAX)),
            *("--memory-bytes", str(MEMORY_BYTES_MAX)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(SECONDS_MAX):
                said, complained = await process.communicate(request.region)
                return Ended(said, complained, await process.wait())
        finally:
            self._end_process()
            await process.wait()
            self._process = None
            shutil.rmtree(self._work_directory / GENERATED, ignore_errors=True)

    def _forget_oldest(self) -> None:
        ended = [path for path, request in self._requests.items() if request.answer is not None]
        for path in ended[: max(0, len(ended) - LIBRARIES_MAX)]:
            del self._requests[path]
            for file in (path, path.with_suffix(".json")):
                file.unlink(missing_ok=True)


def _remove_left() -> None:
    """Remove what a killed pool of this account left."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        process = path.name.removeprefix(PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):
            if (
                process.isdecimal()
                and path.stat().st_uid == os.getuid()
                and not process_is_alive(int(process))
            ):
                shutil.rmtree(path, ignore_errors=True)
