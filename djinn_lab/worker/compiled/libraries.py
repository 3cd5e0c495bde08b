"""What runs regions in place of their ops: libraries, as they come from the pool, or recordings; and what is
known of each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

import torch

from djinn_lab.errors import OptionError
from djinn_lab.protocol.compiling import CUDA_GRAPHS, INDUCTOR, first_line, library_name, region_key
from djinn_lab.protocol.worker import CompileRegion, RegionCompiled
from djinn_lab.srg.program import decode_program
from djinn_lab.worker.compiled.compilers import RunLibrary, find_compiler
from djinn_lab.worker.compiled.recorded import Record
from djinn_lab.worker.compiled.replay import RegionReplay
from djinn_lab.worker.templates import Call

Load = Callable[[Path, torch.device], RunLibrary]


class Loader(NamedTuple):
    """``foreign``: of an installed package, whose libraries may write what they should only read."""

    load: Load
    foreign: bool = False


class Library:
    """What became of one region. ``run``: returns the roots for its inputs; None where there is no library.
    ``record``: records what ``run`` does, where that is its ops. ``problem``: why there is no library, or
    will be none. ``seconds``: that compiling took. ``foreign``: as of its :class:`Loader`."""

    def __init__(self) -> None:
        self.run: RunLibrary | None = None
        self.record: Record | None = None
        self.problem = ""
        self.seconds = 0.0
        self.foreign = False

    @property
    def answered(self) -> bool:
        """Return whether it is known what became of it."""
        return self.run is not None or bool(self.problem)


class Libraries:
    """``directory``: where the pool puts them; None: nothing is compiled for this worker. ``ask``: sends a
    request to the pool. ``loader``: loads libraries. ``record``: regions are recorded, and nothing
    is compiled."""

    def __init__(
        self,
        directory: Path | None,
        device: torch.device,
        ask: Callable[[CompileRegion], None],
        loader: Loader | None,
        record: Record | None = None,
    ) -> None:
        self._directory = directory
        self._device = device
        self._loader = loader
        self._record = record
        self._ask = ask
        self._known: WeakValueDictionary[str, Library] = WeakValueDictionary()
        """Those that a program has, or waits for."""

    @property
    def are_recorded(self) -> bool:
        """Return whether regions are recorded, and nothing is compiled."""
        return self._record is not None

    def want(self, region: bytes) -> Library:
        """Return the library of an encoded region, which is asked for where it is new."""
        key = region_key(region)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Library()
            if self._record is not None:
                found.run, found.record = self._ops(region), self._record
            elif self._directory is None or self._loader is None:
                found.problem = "this pool compiles nothing"
            else:
                self._ask(CompileRegion(region))
        return found

    def _ops(self, region: bytes) -> RunLibrary:
        program = decode_program(region)
        return RegionReplay(program, [Call(template, self._device) for template in program.templates])

    def answered(self, message: RegionCompiled) -> None:
        """Note the pool's answer, and load the library."""
        found = self._known.get(message.region)
        if found is None or self._directory is None or self._loader is None:
            return
        found.seconds, found.problem = message.seconds, message.problem
        if found.problem:
            return
        try:
            found.foreign = self._loader.foreign
            found.run = self._loader.load(self._directory / library_name(message.region), self._device)
        except Exception as error:  # noqa: BLE001 - a compiler of an installed package may raise anything
            found.problem = f"its library cannot be loaded: {first_line(error)}"


def loader(name: str) -> Loader | None:
    """Return what loads the libraries of a region compiler, None where regions are recorded. A compiler that
    cannot be made says so for each library."""
    if name == CUDA_GRAPHS:
        return None
    try:
        return Loader(find_compiler(name).load, foreign=name != INDUCTOR)
    except OptionError as error:
        return Loader(partial(_refuse, error))


def _refuse(error: OptionError, file: Path, device: torch.device) -> RunLibrary:
    raise error
