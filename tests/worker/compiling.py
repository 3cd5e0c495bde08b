"""A device in this process whose sessions have a tolerance. A library here runs the region's own ops, so that
every bit can be compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from worker_kit import Device, read_fetched

from djinn_lab.protocol.compiling import region_key
from djinn_lab.protocol.worker import CompileRegion, RegionCompiled, RunSegment
from djinn_lab.srg.plan_key import keyed, resizable
from djinn_lab.srg.program import Program, decode_program, encode_program
from djinn_lab.srg.regions import RegionSize
from djinn_lab.worker.compiled.compilers import RunLibrary
from djinn_lab.worker.compiled.libraries import Libraries, Loader
from djinn_lab.worker.compiled.programs import CompiledPrograms
from djinn_lab.worker.compiled.recorded import Record
from djinn_lab.worker.compiled.replay import RegionReplay
from djinn_lab.worker.compiled.trial import RUNS_BEFORE
from djinn_lab.worker.outcome import Outcome, Stop
from djinn_lab.worker.templates import Call

Change = Callable[[list[torch.Tensor]], list[torch.Tensor]]
TOLERANCE = 1e-5
ANY_SIZE = RegionSize(ops_min=1, seconds_min=0.0, seconds_max=1e9)


def unchanged(roots: list[torch.Tensor]) -> list[torch.Tensor]:
    return roots


class Compiling:
    """``change``: what a library does to the results of its region's ops. ``record``: regions are recorded
    instead. ``foreign``: the library is of an installed package.
    ``regions``: that were asked for. ``inputs``: of the region that ran last."""

    def __init__(
        self,
        device: Device,
        change: Change = unchanged,
        record: Record | None = None,
        foreign: bool = False,
    ) -> None:
        self.device = device
        self.change = change
        self.regions: list[Program] = []
        self.inputs: Sequence[torch.Tensor] = ()
        self._asked: list[bytes] = []
        loader = Loader(self._load, foreign)
        libraries = Libraries(device.directory, torch.device("cpu"), self._ask, loader, record)
        self.programs = CompiledPrograms(device.interpreter, libraries, ANY_SIZE)

    def _ask(self, message: CompileRegion) -> None:
        self._asked.append(message.region)
        self.regions.append(decode_program(message.region))

    def _load(self, path: Path, device: torch.device) -> RunLibrary:
        region = next(one for one in self.regions if region_key(encode_program(one)) == path.stem)
        replay = RegionReplay(region, [Call(template, device) for template in region.templates])

        def run(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            self.inputs = inputs
            return self.change(replay(inputs))

        return run

    def answer(self, problem: str = "") -> None:
        """Answer what was asked for, as a pool does."""
        asked, self._asked = self._asked, []
        for region in asked:
            self.programs.answered(RegionCompiled(region_key(region), problem, 1.0))

    def run(
        self, session: str, program: Program, should_stop: Callable[[], Stop | None] = lambda: None
    ) -> Outcome:
        """Run a program, and all that follows a run."""
        encoded = encode_program(program)
        blobs = {
            source.blob: str(self.device.directory / source.blob)
            for source in program.sources
            if source.blob is not None
        }
        known = keyed(encoded)
        message = RunSegment(
            *("job", 0, session, encoded),
            key=known.key,
            tolerance=TOLERANCE,
            structure=resizable(known.material).structure,
        )
        outcome = self.programs.run(message, blobs, should_stop, lambda done, total: None)
        self.programs.after_run(message, outcome)
        self.answer()
        return outcome

    def fetch(self, session: str, program: Program) -> list[torch.Tensor]:
        outcome = self.run(session, program)
        assert outcome.failure is None, outcome.failure
        return [read_fetched(item, self.device.results) for item in outcome.fetched]

    def settle(self, program: Program) -> Outcome:
        """Run a program until it is compiled and checked."""
        for _ in range(RUNS_BEFORE + 1):
            outcome = self.run("earlier", program)
        return outcome
