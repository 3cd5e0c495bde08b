"""Compiled libraries of regions, as they come from the pool, and what is known of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch

from djinn_lab.protocol.compiling import library_name, region_key
from djinn_lab.protocol.worker import CompileRegion, RegionCompiled

RunLibrary = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]


class Library:
    """What became of one region. ``run``: returns the roots for its inputs; None where there is no library.
    ``problem``: why there is none, or will be none. ``seconds``: that compiling took."""

    def __init__(self) -> None:
        self.run: RunLibrary | None = None
        self.problem = ""
        self.seconds = 0.0

    @property
    def answered(self) -> bool:
        """Return whether the pool has answered."""
        return self.run is not None or bool(self.problem)


class Libraries:
    """``directory``: where the pool puts them; None: nothing is compiled for this worker. ``ask``: sends a
    request to the pool. ``load``: loads a library for a device."""

    def __init__(
        self,
        directory: Path | None,
        device: torch.device,
        ask: Callable[[CompileRegion], None],
        load: Callable[[Path, torch.device], RunLibrary] | None = None,
    ) -> None:
        self._directory = directory
        self._device = device
        self._load = load or load_library
        self._ask = ask
        self._known: WeakValueDictionary[str, Library] = WeakValueDictionary()
        """Those that a program has, or waits for."""

    def want(self, region: bytes) -> Library:
        """Return the library of an encoded region, which is asked for where it is new."""
        key = region_key(region)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Library()
            if self._directory is None:
                found.problem = "this pool compiles nothing"
            else:
                self._ask(CompileRegion(region))
        return found

    def answered(self, message: RegionCompiled) -> None:
        """Note the pool's answer, and load the library."""
        found = self._known.get(message.region)
        if found is None or self._directory is None:
            return
        found.seconds, found.problem = message.seconds, message.problem
        if found.problem:
            return
        try:
            found.run = self._load(self._directory / library_name(message.region), self._device)
        except (RuntimeError, OSError) as error:
            found.problem = f"its library cannot be loaded: {error}"


def load_library(path: Path, device: torch.device) -> RunLibrary:
    """Load a library. Raises RuntimeError for a file that is none."""
    runners: Any = torch._C._aoti
    if device.type == "cpu":
        runner = runners.AOTIModelContainerRunnerCpu(str(path), 1)
    else:
        runner = runners.AOTIModelContainerRunnerCuda(str(path), 1, str(device))

    def run(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        returned: list[torch.Tensor] = runner.run(list(inputs))
        return returned

    return run
